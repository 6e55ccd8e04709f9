"""Spark finds this module by its name, and with it ``spark.read.format("ledgeraudit")``.

A module of its own beside ``pyspark_ledgerlog``, because Spark takes one source from each module whose name
begins with ``pyspark_``. What that one says of imports holds here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The format ``ledgeraudit``; see docs/SPARK.md."""

    @classmethod
    def name(cls) -> str:
        return "ledgeraudit"

    def schema(self) -> str:
        from ledgerlog.spark.audit import DECLARED

        return DECLARED

    def reader(self, schema: StructType) -> DataSourceReader:
        from ledgerlog.spark.audit import audit_reader

        return audit_reader(dict(self.options), schema)
