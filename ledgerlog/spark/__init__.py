"""Logs in Spark: ``spark.read.format("ledgerlog")`` and ``spark.readStream``; see docs/SPARK.md.

``session()`` starts a Spark session on this machine; ``ledgerlog[spark]`` is all that you have to install.
Any other session finds the format by itself if this package is installed. ``ledgerlog.spark.progress`` shows
how far streams have come.
"""

from ledgerlog.spark.session import JavaMissing, session

__all__ = ["JavaMissing", "session"]
