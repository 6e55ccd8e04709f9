"""A new directory is durable with every directory that holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledgerlog import durable_directories
from ledgerlog.durable_directories import make_directories, sync_directory


def test_each_new_name_is_synced_in_the_directory_that_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable_directories, "sync_directory", synced.append)
    make_directories(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    make_directories(tmp_path / "a" / "b" / "c")
    assert len(synced) == 3


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        sync_directory(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_directories(tmp_path / "file" / "below")
