"""Logs in Spark: ``spark.read.format("ledgerlog")`` and ``spark.readStream``; see docs/SPARK.md.

``session()`` starts a session on this machine with nothing to install but ``ledgerlog[spark]``. Any other
session finds the format by itself where the package is installed. ``ledgerlog.spark.progress`` says how far
streams have come.
"""

from ledgerlog.spark.session import JavaMissing, session

__all__ = ["JavaMissing", "session"]
