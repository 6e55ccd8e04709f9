"""The secret file: who may read it, what is refused, and how a process follows its changes."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets
from ledgerlog.net import secret_file
from ledgerlog.net.prover import Prover
from ledgerlog.net.secret_file import (
    SecretFile,
    ensure_secret_file,
    make_secret_file,
    new_secret,
    read_secret_file,
    replace_secret_file,
)

SECRETS = Secrets(None, (b"1" * 32,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the.secret"


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_file, "_LOOK_S", 0.0)


def test_a_file_is_made_for_its_owner_only_and_never_over_another(path: Path) -> None:
    before = os.umask(0)
    try:
        make_secret_file(str(path), SECRETS)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_secret_file(str(path)) == SECRETS
    with pytest.raises(InvalidArgument, match="cannot be made: File exists"):
        make_secret_file(str(path), Secrets(None, (new_secret(),)))
    assert read_secret_file(str(path)) == SECRETS
    assert os.listdir(path.parent) == [path.name], "no half-made file is left"


def test_a_file_that_another_process_makes_first_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_secret_file(str(path), SECRETS)
    monkeypatch.setattr(secret_file, "exists", lambda path: False)  # So it looked a moment ago.
    assert ensure_secret_file(str(path)) == str(path)
    assert read_secret_file(str(path)) == SECRETS
    assert os.listdir(path.parent) == [path.name]
    path.chmod(0o644)
    with pytest.raises(InvalidArgument, match="other users can access"):
        ensure_secret_file(str(path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610])
def test_a_file_that_others_may_use_is_refused(path: Path, mode: int) -> None:
    make_secret_file(str(path), SECRETS)
    path.chmod(mode)
    with pytest.raises(InvalidArgument, match=f"other users can access the secret file {path}.*chmod 600"):
        read_secret_file(str(path))


def test_what_is_no_secret_file_is_refused_with_its_name(path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{path} cannot be read: No such file"):
        read_secret_file(str(path))
    path.mkdir()
    with pytest.raises(InvalidArgument, match="is not a file"):
        read_secret_file(str(path))
    path.rmdir()
    os.mkfifo(path, 0o600)
    with pytest.raises(InvalidArgument, match="is not a file"):
        read_secret_file(str(path))
    path.unlink()
    path.touch(0o600)
    path.write_bytes(b"#" * 5000)
    with pytest.raises(InvalidArgument, match="more than 4096 bytes"):
        read_secret_file(str(path))
    path.write_bytes(b"\xff\xfe:")
    with pytest.raises(InvalidArgument, match="not a secret file"):
        read_secret_file(str(path))


@pytest.mark.usefixtures("looks_always")
def test_a_changed_file_is_read_again(path: Path) -> None:
    make_secret_file(str(path), SECRETS)
    source = SecretFile(str(path))
    assert (source.current(), source.where) == (SECRETS, str(path))
    rotated = SECRETS.rotated(new_secret())
    replace_secret_file(str(path), rotated)
    assert source.current() == rotated


@pytest.mark.usefixtures("looks_always")
@pytest.mark.parametrize("bad", ["", "open", "gone", "another holder"])
def test_a_bad_change_leaves_the_secrets_as_they_were_and_is_told_once(
    path: Path, bad: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_secret_file(str(path), SECRETS)
    source = SecretFile(str(path))
    if bad == "gone":
        path.unlink()
    elif bad == "open":
        path.chmod(0o644)
    elif bad:
        replace_secret_file(str(path), SECRETS.derived(Principal.parse("client/a")))
    else:
        path.write_bytes(b"")
    for _ in range(3):
        assert source.current() == SECRETS
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "the secrets stay as they were" in warnings[0].getMessage()
    assert SECRETS.values[0].hex() not in caplog.text


def test_a_file_is_read_at_once_when_it_is_asked_for(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without that, a process looks at most once a second, and only when a connection begins."""
    caplog.set_level(logging.INFO)
    make_secret_file(str(path), SECRETS)
    source = SecretFile(str(path))
    rotated = SECRETS.rotated(new_secret())
    replace_secret_file(str(path), rotated)
    assert source.current() == SECRETS
    source.reload()
    assert source.current() == rotated
    assert "the secret file was read again" in caplog.text
    path.chmod(0o644)
    source.reload()
    assert source.current() == rotated
    assert "the secrets stay as they were" in caplog.text


def test_a_process_without_a_secret_file_has_nothing_to_read_again(path: Path) -> None:
    assert not Prover().reload()
    make_secret_file(str(path), SECRETS)
    assert Prover(SecretFile(str(path))).reload()
