"""Packages for the nodes of a Spark cluster: what the commands of docs/SPARK.md need to run without an index.

pip gets wheels that are made from what is installed here. ``ledgerlog`` is always whole. The other packages
are whole too, or one stub that says where they are installed. Packing, sending and unpacking whole ones takes
longer than the job.
"""

from __future__ import annotations

import os
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from tests.integration.pages import ROOT, Block, blocks

SUBMIT = "spark-submit"
PYTHON = "python3.11"
ASKED = ("ledgerlog[archive]", "pandas")
"""What the page installs."""


def submitting_block() -> Block:
    """Return the block of docs/SPARK.md that packs an environment and sends it with a job."""
    (found,) = [block for block in blocks("docs/SPARK.md", "sh") if SUBMIT in block.code]
    return found


def prepare(stage: Path, *, whole: bool) -> dict[str, str]:
    """Make what the block needs in ``stage``: wheels, and the Python. Return the variables for its shell."""
    wheels, programs = stage / "wheels", stage / "bin"
    wheels.mkdir()
    programs.mkdir()
    python = programs / PYTHON
    python.write_text(f'#!/bin/sh\nexec {sys._base_executable} "$@"\n')
    python.chmod(0o755)
    for found in _closure(ASKED) if whole else [metadata.distribution("ledgerlog")]:
        _repack(found, wheels)
    if not whole:
        _write_stub("pandas", wheels)
    return {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(wheels),
        "PIP_NO_COMPILE": "1",
        "PIP_NO_DEPS": "0" if whole else "1",
        "PIP_NO_INDEX": "1",
        "PIP_QUIET": "1",
    }


def _closure(asked: Sequence[str]) -> Iterator[metadata.Distribution]:
    """Yield the installed distributions that these requirements need, each once."""
    todo, seen, yielded = [Requirement(each) for each in asked], set(), set()
    while todo:
        wanted = todo.pop()
        name = wanted.name.lower().replace("_", "-")
        if (name, frozenset(wanted.extras)) in seen:
            continue
        seen.add((name, frozenset(wanted.extras)))
        found = metadata.distribution(wanted.name)
        for each in map(Requirement, found.requires or ()):
            extras = wanted.extras or {""}
            if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
                todo.append(each)
        if name not in yielded:
            yielded.add(name)
            yield found


def _repack(found: metadata.Distribution, wheels: Path) -> None:
    """Make a wheel from an installed distribution; ours may be installed in place, so take its sources."""
    said = (found.read_text("WHEEL") or "").splitlines()
    tag = [line.removeprefix("Tag: ") for line in said if line.startswith("Tag: ")][-1]
    files = [file for file in found.files or () if file.suffix != ".pyc" and ".." not in file.parts]
    (info,) = {file.parts[0] for file in files if file.parts[0].endswith(".dist-info")}
    with zipfile.ZipFile(wheels / f"{info.removesuffix('.dist-info')}-{tag}.whl", "w") as wheel:
        for file in files:
            is_ours = found.name == "ledgerlog"
            if Path(str(file.locate())).is_file() and (file.parts[0] == info or not is_ours):
                wheel.write(str(file.locate()), str(file))
        if found.name == "ledgerlog":
            project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
            for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
                for source in sorted((ROOT / package).rglob("*")):
                    if source.is_file() and source.suffix != ".pyc":
                        wheel.write(source, str(source.relative_to(ROOT)))


def _write_stub(name: str, wheels: Path) -> None:
    """Make a wheel of a package that only says where the packages of this interpreter are."""
    version = metadata.version(name)
    info = f"{name}-{version}.dist-info"
    places = [place for place in sys.path if place.endswith(("site-packages", "dist-packages"))]
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
        "installed_on_the_nodes.pth": "".join(f"{place}\n" for place in places),
    }
    with zipfile.ZipFile(wheels / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
