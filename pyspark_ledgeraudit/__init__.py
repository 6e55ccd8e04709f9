"""Spark finds this module by its name, and with it ``spark.read.format("ledgeraudit")``.

Spark takes one source from each module whose name begins with ``pyspark_``, so this source has a module
beside ``pyspark_ledgerlog``. The rules for imports that are stated there hold here too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The format ``ledgeraudit``; see docs/SPARK.md. Spark calls its methods."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ledgeraudit"

    def schema(self) -> str:
        """Return the columns of a table of findings."""
        from ledgerlog.spark.audit import DECLARED

        return DECLARED

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``. Raises InvalidArgument for a wrong option or schema."""
        from ledgerlog.spark.audit import audit_reader

        return audit_reader(dict(self.options), schema)
