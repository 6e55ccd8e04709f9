"""``ledgerlog spark``: jobs on Spark over many logs, or over the whole of one.

Each command has its own module and is added to the group here. A command uses a Spark session on this machine
unless ``--master`` names another master. A command starts the session after it has checked its options, so
wrong usage does not start Java. Only ``ledgerlog.spark`` imports pyspark, and only inside functions called
from here. So the other commands work if pyspark is not installed.
"""

from __future__ import annotations

import click

from ledgerlog.cli.spark_archive import spark_archive, spark_compact
from ledgerlog.cli.spark_audit import spark_audit

__all__ = ["spark"]


@click.group()
def spark() -> None:
    """Run jobs on Spark. They need the extra ledgerlog[spark]."""


spark.add_command(spark_audit)
spark.add_command(spark_archive)
spark.add_command(spark_compact)
