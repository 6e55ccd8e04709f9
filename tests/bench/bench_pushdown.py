"""What Spark reads of a log's history, beside plain Parquet: ``python -m tests.bench.bench_pushdown [ROWS]``.

The same rows lie in closed ledgers on bookies, in an archive whose copies were given up, and in Parquet that
Spark wrote. Each question is asked of all of them in turns, in one run, and the processor time of the JVM and
of its Python processes is counted; the bookies' is told apart. Compare figures of one run only.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledgerlog.archive.jobs.job import archive_log
from ledgerlog.spark.connection import run_connected
from ledgerlog.spark.views import register_logs
from tests.bench.bench_spark import Bench, Times, open_bench

ROUNDS = 3
ROWS = 2_500_000
LEDGERS = 10
KEYS = 1_000_000
_WORDS = (
    "order",
    "paid",
    "shipped",
    "basket",
    "user",
    "timeout",
    "retry",
    "stock",
    "price",
    "refund",
    "cart",
)


def lines(rng: random.Random, count: int) -> list[bytes]:
    return [
        f"{at:08d} {' '.join(rng.choices(_WORDS, k=12))} {rng.randrange(10**8)}".encode()
        for at in range(count)
    ]


def fill(bench: Bench, name: str, rows: int) -> None:
    rng = random.Random(1)
    log = bench.cluster.create_log(name)
    with log.writer() as writer:
        for ledger in range(LEDGERS):
            if ledger:
                writer.roll()
            count = rows * (ledger + 1) // LEDGERS - rows * ledger // LEDGERS
            keys = [b"user-%07d" % rng.randrange(KEYS) for _ in range(count)]
            writer.append_many(lines(rng, count), keys=keys)
    log.seal()


def archive(bench: Bench, name: str) -> None:
    where = str(bench.path / "archive")
    steps = run_connected(bench.uri, lambda client: archive_log(client, name, where, keep_copies_s=0))
    assert {step.what for step in steps} == {"copied", "given up"}, steps


def count(table: Any) -> int:
    found: int = table.count()
    return found


def throw_away(table: Any) -> int:
    table.write.format("noop").mode("overwrite").save()
    return 0


def measure(bench: Bench, questions: dict[str, dict[str, Callable[[], Any]]]) -> None:
    for question, ways in questions.items():
        taken: dict[str, list[Times]] = {way: [] for way in ways}
        answers = {}
        for number in range(ROUNDS + 1):
            for way, ask in ways.items():
                before = bench.clock()
                answers[way] = ask()
                if number:  # The first round warms up.
                    taken[way].append(bench.clock().since(before))
        assert len(set(answers.values())) == 1, answers
        least = statistics.median(times.spark for times in taken["Parquet"])
        for way, times in taken.items():
            middle = statistics.median(each.spark for each in times)
            one = min(times, key=lambda each: abs(each.spark - middle))
            print(
                f"{question:22} {way:34} {middle:6.2f} s  {middle / least:5.1f}  ({one.words()})", flush=True
            )


def main() -> None:
    rows = int(sys.argv[1]) if sys.argv[1:] else ROWS
    with tempfile.TemporaryDirectory() as path, open_bench(Path(path)) as bench:
        for name in ("closed", "archived"):
            fill(bench, name, rows)
        archive(bench, "archived")
        bench.log().load("closed").drop("log").write.mode("overwrite").parquet(f"{path}/plain")
        register_logs(bench.spark, bench.uri, pattern="archived", archives_as_parquet=True)
        last = rows - rows // 50
        key = bench.spark.read.parquet(f"{path}/plain").first().key.hex()

        def parquet() -> Any:
            return bench.spark.read.parquet(f"{path}/plain")

        def log(name: str, schema: str | None = None, **options: Any) -> Any:
            read = bench.log().options(**options)
            return (read if schema is None else read.schema(schema)).load(name)

        def view() -> Any:
            return bench.spark.table("archived").drop("log")

        measure(
            bench,
            {
                "count": {
                    "Parquet": lambda: count(parquet()),
                    "closed": lambda: count(log("closed")),
                    "closed, offset alone": lambda: count(log("closed", "offset LONG")),
                    "archived": lambda: count(log("archived")),
                    "archived, offset alone": lambda: count(log("archived", "offset LONG")),
                    "archived, view": lambda: count(view()),
                },
                "last 2 %": {
                    "Parquet": lambda: throw_away(parquet().where(f"offset >= {last}")),
                    "closed": lambda: throw_away(log("closed").where(f"offset >= {last}")),
                    "closed, startingOffsets": lambda: throw_away(log("closed", startingOffsets=last)),
                    "archived, startingOffsets": lambda: throw_away(log("archived", startingOffsets=last)),
                    "archived, view": lambda: throw_away(view().where(f"offset >= {last}")),
                },
                "all columns": {
                    "Parquet": lambda: throw_away(parquet()),
                    "closed": lambda: throw_away(log("closed")),
                    "archived": lambda: throw_away(log("archived")),
                    "archived, view": lambda: throw_away(view()),
                },
                "one key": {
                    "Parquet": lambda: throw_away(parquet().where(f"key = X'{key}'")),
                    "archived": lambda: throw_away(log("archived").where(f"key = X'{key}'")),
                    "archived, view": lambda: throw_away(view().where(f"key = X'{key}'")),
                },
            },
        )


if __name__ == "__main__":
    main()
