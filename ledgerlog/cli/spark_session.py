"""The Spark session of a command: on this machine, or at the master that ``--master`` names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from ledgerlog.credential_options import given_credentials
from ledgerlog.optional_packages import how_to_install, is_installed

__all__ = ["local_session"]


@contextmanager
def local_session(app_name: str, master: str) -> Iterator[Any]:
    """Give a quiet Spark session for the body of the ``with``. Its tasks use the command's credentials.

    Raises:
        click.ClickException: Spark is not installed.
        JavaMissing: No Java was found.
        SparkNotStarted: Spark did not start at ``master``.
    """
    if not is_installed("pyspark"):
        raise click.ClickException(f"Spark is not installed: {how_to_install('pyspark')}")
    from ledgerlog.spark.session import session

    config = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        # Workers must import our modules, not files with the same names in their working directory.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    # Spark's tasks and the jobs that this process starts read their credentials from the environment.
    for name, value in given_credentials().variables().items():
        os.environ[name] = config[f"spark.executorEnv.{name}"] = value
    spark = session(app_name, master=master, config=config)
    try:
        yield spark
    finally:
        spark.stop()
