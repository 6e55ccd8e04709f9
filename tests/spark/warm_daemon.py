"""The daemon that forks Spark's Python workers, after it has loaded all that the workers import.

Spark's own daemon forks first. So each of the hundreds of workers that the tests cause imports pyspark,
pyarrow and our modules anew, and pyspark out of a zip file, which keeps no compiled modules. That takes more
time than the work. This daemon takes pyspark from the installed package and imports everything once. What
the workers do is Spark's own code.

``tests/spark/conftest.py`` names this module to Spark (``spark.python.daemon.module``).
"""

from __future__ import annotations

import sys
from importlib import import_module

IMPORTED_BY_WORKERS = (
    "pandas",
    "pyarrow.parquet",
    "pyspark.worker",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.sql.worker.commit_data_source_write",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark_ledgeraudit",
    "pyspark_ledgerlog",
    "ledgerlog.spark.audit",
    "ledgerlog.spark.sink",
    "ledgerlog.spark.source",
    "ledgerlog.spark.stream",
)


def main() -> None:
    sys.path[:] = [place for place in sys.path if not place.endswith(("pyspark.zip", "-src.zip"))]
    for name in IMPORTED_BY_WORKERS:
        import_module(name)
    import_module("pyspark.daemon").manager()


if __name__ == "__main__":
    main()
