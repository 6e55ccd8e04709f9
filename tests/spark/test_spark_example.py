"""The example for Spark does what it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import trio

from tests.spark.conftest import SparkOnLogs
from tests.spark.standalone import standalone_cluster

pytestmark = pytest.mark.processes

PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "spark_lines.py"


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_lines", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check(said: str, plot: Path) -> None:
    """Check that the table has every appended line, and the figures have the lines of all past seconds."""
    found = re.search(r"^([\d,]+) lines appended$", said, re.MULTILINE)
    assert found is not None
    appended = int(found[1].replace(",", ""))
    minutes = [
        int(count.replace(",", "")) for count in re.findall(r":00  ([\d,]+) lines$", said, re.MULTILINE)
    ]
    assert sum(minutes) == appended
    seconds = [int(count.replace(",", "")) for count in re.findall(r"  ([\d,]+) lines, [\d,]+ bytes", said)]
    assert 0 < sum(seconds) <= appended
    assert re.search(r"-per-second batch \d+: [\d,]+ rows, [\d,]+ rows/s; \S+ at [\d,]+, ", said)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_the_steps_of_the_example_count_every_line(
    on_spark: SparkOnLogs, log_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, plot = example(), tmp_path / "plot.png"
    text = tmp_path / "text"
    written = ["2026-03-01T12:00:07 first", "2026-03-01 12:01:09,5 second", "12:02 is no moment"]
    text.write_text("\n\n".join(written * 100), encoding="utf-8")
    lines = module.text_lines([text])
    assert lines == [line.encode() for line in written] * 100
    module.run(on_spark.spark, on_spark.uri, log_name, lines, 4, plot)
    said = capsys.readouterr()
    check(said.out + said.err, plot)
    first, second, *appended = re.findall(r"^(\S+ \S+):00  ([\d,]+) lines$", said.out, re.MULTILINE)
    assert [first[0], second[0]] == ["2026-03-01 12:00", "2026-03-01 12:01"], "as the lines say"
    assert appended, "the minutes in which the other lines were appended"
    assert first[1] == second[1]


def run_by_itself(tmp_path: Path, *options: str, environment: dict[str, str] | None = None) -> None:
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), "--seconds", "10", *options],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=True,
        text=True,
    )
    check(ran.stdout, tmp_path / "lines.png")


@pytest.mark.soak
def test_the_example_runs_by_itself(tmp_path: Path) -> None:
    run_by_itself(tmp_path)


@pytest.mark.soak
async def test_the_example_runs_on_a_spark_cluster_with_one_option_more(tmp_path: Path) -> None:
    async with standalone_cluster(tmp_path / "spark", cores=2) as spark:
        options = ("--master", spark.master)
        await trio.to_thread.run_sync(
            lambda: run_by_itself(tmp_path, *options, environment=spark.environment)
        )


def test_the_example_is_short() -> None:
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) < 160
