"""The Spark session of a command: on this machine, or where ``--master`` says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from ledgerlog.optional_packages import how_to_install, is_installed

__all__ = ["local_session"]


@contextmanager
def local_session(app_name: str, master: str) -> Iterator[Any]:
    """A session that says nothing by itself, for the body of the ``with``. ClickException where Spark is not
    installed; JavaMissing."""
    if not is_installed("pyspark"):
        raise click.ClickException(f"Spark is not installed: {how_to_install('pyspark')}")
    from ledgerlog.spark.session import session

    config = {
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        # Workers run our modules, and no file of their names in the directory that they start in.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
    }
    spark = session(app_name, master=master, config=config)
    try:
        yield spark
    finally:
        spark.stop()
