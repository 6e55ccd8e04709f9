"""Logs in Spark: ``spark.read.format("ledgerlog")`` and ``spark.readStream``; see docs/SPARK.md.

``session()`` starts a Spark session on this machine; ``ledgerlog[spark]`` is all that you have to install.
If this package is installed, any other session finds the format by itself. ``ledgerlog.spark.progress`` shows
how far streams have come; ``ledgerlog.spark.views`` makes a view of SQL for each log.
"""

from ledgerlog.spark.session import JavaMissing, SparkNotStarted, session

__all__ = ["JavaMissing", "SparkNotStarted", "session"]
