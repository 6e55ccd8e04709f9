"""``ledgerlog spark``: jobs over many logs, or over all of one, that run on Spark.

Each command lies in a module of its own and is added to the group here. What they share: a session on this
machine unless ``--master`` names another, started when the command has understood its options, so that wrong
usage costs no Java. pyspark is imported by ``ledgerlog.spark`` alone, and there only inside of functions on
the way from here, so the other commands work where it is not installed.
"""

from __future__ import annotations

import click

from ledgerlog.cli.spark_archive import spark_archive, spark_compact
from ledgerlog.cli.spark_audit import spark_audit

__all__ = ["spark"]


@click.group()
def spark() -> None:
    """Jobs on Spark; they need ledgerlog[spark]."""


spark.add_command(spark_audit)
spark.add_command(spark_archive)
spark.add_command(spark_compact)
