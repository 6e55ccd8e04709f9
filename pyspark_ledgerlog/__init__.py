"""Spark finds this module by its name, and with it ``spark.read.format("ledgerlog")``.

Spark imports every installed module whose name begins with ``pyspark_``, in each process that plans a query,
and takes the module's ``DefaultSource``. If one such import fails, no Python source works any more, from any
package. So this module imports only what Spark has loaded already. It imports the rest when this source is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    """The format ``ledgerlog``; see docs/SPARK.md. Spark calls its methods."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ledgerlog"

    def schema(self) -> str:
        """Return the columns of a table if its reader declares none."""
        from ledgerlog.spark.columns import DECLARED, DECLARED_WITH_HEADERS
        from ledgerlog.spark.options import includes_headers

        return DECLARED_WITH_HEADERS if includes_headers(dict(self.options)) else DECLARED

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``. Raises InvalidArgument for a wrong option or schema."""
        from ledgerlog.spark.source import batch_reader

        return batch_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for ``spark.readStream``. Raises InvalidArgument for a wrong option or schema."""
        from ledgerlog.spark.source import stream_reader

        return stream_reader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer for ``df.write``.

        Raises InvalidArgument for a wrong option, schema or mode, and LogNotFound if the log is missing.
        """
        from ledgerlog.spark.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer for ``df.writeStream``.

        Raises InvalidArgument for a wrong option, schema or mode, and LogNotFound if the log is missing.
        """
        from ledgerlog.spark.sink import stream_writer

        return stream_writer(dict(self.options), schema, overwrite, is_commit=self._was_sent)

    _was_sent = False
    """Whether this object was sent to another process: Spark sends it to the process that commits or aborts a
    batch, and makes a new one to plan a batch."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._was_sent = True
