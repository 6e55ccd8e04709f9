"""What ``make release`` refuses, and the checksums that it writes."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import ledgerlog
from tools.release import ROOT, checksums, newest_glibc, why_not

CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2026-01-31\n\n## [0.1.0]\n"


def test_a_release_needs_a_clean_tree_and_a_section_in_the_changelog() -> None:
    assert why_not("0.2.0", CHANGELOG, "") is None
    assert why_not("0.1.0", CHANGELOG, "") is None
    assert "?? notes.txt" in str(why_not("0.2.0", CHANGELOG, "?? notes.txt\n"))
    assert "no section '## [0.2.1] - DATE'" in str(why_not("0.2.1", CHANGELOG, ""))
    assert why_not("0.2", CHANGELOG, "") is not None
    assert why_not("0.2.0", "## 0.2.0\n\nas of [0.2.0]\n", "") is not None


def test_no_release_leaves_changes_of_the_changelog_without_a_version() -> None:
    full = CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n\n### Added\n\n- A command.\n")
    for version in ("0.2.0", "0.1.0"):
        assert "changes under '## [Unreleased]'" in str(why_not(version, full, ""))
    assert why_not("0.2.0", CHANGELOG.replace("## [Unreleased]\n\n", ""), "") is None


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "ledgerlog/__init__.py"
    source = (ROOT / "ledgerlog" / "__init__.py").read_text(encoding="utf-8")
    assert f'\n__version__ = "{ledgerlog.__version__}"\n' in source


def test_a_compiled_wheel_is_refused_for_the_newest_glibc_that_it_needs() -> None:
    assert newest_glibc(b"\0GLIBC_2.2.5\0GLIBC_2.34\0GLIBC_2.17\0") == 34
    assert newest_glibc(b"\0GLIBC_2.2.5\0") == 2
    assert newest_glibc(b"") == 0


def test_sha256sum_accepts_the_checksums(tmp_path: Path) -> None:
    for name in ("b.whl", "a.tar.gz"):
        (tmp_path / name).write_bytes(name.encode())
    written = checksums(tmp_path.iterdir())
    assert [line.split("  ")[1] for line in written.splitlines()] == ["a.tar.gz", "b.whl"]
    (tmp_path / "SHA256SUMS").write_text(written)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True)
