"""A source that takes filters as Spark 4.3 lets a source in Python take them, to show what comes of it."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, GreaterThanOrEqual, InputPartition
from pyspark.sql.types import StructType


class Numbers(DataSource):
    """The numbers from 0 to 99. Its reader leaves out those that a pushed filter leaves out, and returns all
    filters to Spark."""

    @classmethod
    def name(cls) -> str:
        return "numbers_below_100"

    def schema(self) -> str:
        return "number LONG NOT NULL"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _NumbersReader()


class _NumbersReader(DataSourceReader):
    def __init__(self) -> None:
        self.least = 0

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        for each in filters:
            if isinstance(each, GreaterThanOrEqual):
                self.least = each.value
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.least)]

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        for number in range(partition.value, 100):
            yield (number,)
