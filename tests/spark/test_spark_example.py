"""The example for Spark does what it says."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.spark.conftest import SparkOnLogs

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
    text.write_text("first\n\nsecond\n" * 100, encoding="utf-8")
    lines = module.text_lines([text])
    assert lines == [b"first", b"second"] * 100
    module.run(on_spark.spark, on_spark.uri, log_name, lines, 4, plot)
    said = capsys.readouterr()
    check(said.out + said.err, plot)


@pytest.mark.soak
def test_the_example_runs_by_itself(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, str(PROGRAM), "--seconds", "10"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=600,
        check=True,
        text=True,
    )
    check(ran.stdout, tmp_path / "throughput.png")


def test_the_example_is_short() -> None:
    assert len(PROGRAM.read_text(encoding="utf-8").splitlines()) < 150
