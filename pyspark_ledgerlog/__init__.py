"""Spark finds this module by its name, and with it ``spark.read.format("ledgerlog")``.

Spark imports every installed module whose name begins with ``pyspark_``, in each process that plans a query,
and takes its ``DefaultSource``. One that fails to import breaks all Python sources, also those of others. So
nothing is imported here but what Spark has loaded already; the rest comes with the first use of this source.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """The format ``ledgerlog``; see docs/SPARK.md."""

    @classmethod
    def name(cls) -> str:
        return "ledgerlog"

    def schema(self) -> str:
        from ledgerlog.spark.columns import DECLARED

        return DECLARED

    def reader(self, schema: StructType) -> DataSourceReader:
        from ledgerlog.spark.source import batch_reader

        return batch_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from ledgerlog.spark.source import stream_reader

        return stream_reader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from ledgerlog.spark.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from ledgerlog.spark.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite)
