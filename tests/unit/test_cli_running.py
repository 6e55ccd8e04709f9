"""Commands run one loop, raise no exception groups, and end cleanly on signals."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from ledgerlog.cli.complaints import complaint
from ledgerlog.cli.options import numbers, parse_start, replication_of
from ledgerlog.cli.running import Interrupted, interruptible, run, run_until_interrupted, unwrap
from ledgerlog.errors import (
    ArchiveCorrupt,
    ArchiveUnavailable,
    InvalidArgument,
    LedgerNotFound,
    LogNotFound,
    NotEnoughBookies,
    StorageCorrupt,
    Unauthenticated,
)
from ledgerlog.meta.backup_file import open_backup
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.model.admission import Admission, ProvenBy
from ledgerlog.model.ids import Position
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.quorum import Replication
from ledgerlog.net.prover import Prover


def test_what_the_body_returns_is_returned() -> None:
    async def body() -> int:
        await trio.lowlevel.checkpoint()
        return 7

    assert run(body) == 7


def test_an_error_from_nested_nurseries_comes_out_as_itself() -> None:
    async def body() -> None:
        async with trio.open_nursery(), trio.open_nursery():
            raise LogNotFound("x")

    with pytest.raises(LogNotFound):
        run(body)


def test_a_bug_is_told_before_the_faults_beside_it() -> None:
    bug = ZeroDivisionError("a bug")
    group = BaseExceptionGroup("", [LogNotFound("x"), ExceptionGroup("", [bug])])
    assert unwrap(group) is bug
    assert bug.__notes__ == ["beside it: LogNotFound: there is no log named 'x'"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_body_through_its_context_managers(number: signal.Signals) -> None:
    left = []

    async def body() -> None:
        try:
            os.kill(os.getpid(), number)
            await trio.sleep_forever()
        finally:
            left.append("left")

    with pytest.raises(Interrupted) as caught:
        run(body)
    assert caught.value.exit_code == 128 + number
    run_until_interrupted(body)
    assert left == ["left", "left"]


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_means_nothing_to_us_changes_nothing(number: signal.Signals) -> None:
    async def body() -> str:
        os.kill(os.getpid(), number)
        await trio.lowlevel.checkpoint()
        return "done"

    assert run(body) == "done"
    with interruptible():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) is signal.SIG_DFL


def test_a_hangup_that_is_ignored_stays_ignored() -> None:
    async def body() -> object:
        await trio.lowlevel.checkpoint()
        return signal.getsignal(signal.SIGHUP)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(body) is signal.SIG_IGN, "nohup asks for that"
        with interruptible():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_interrupts_a_body_that_has_no_loop_whatever_becomes_of_it_there(
    number: signal.Signals,
) -> None:
    def grouped() -> None:
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt as error:
            raise BaseExceptionGroup("as a nursery does it", [error]) from None

    def swallowed() -> None:
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)

    def asks(check: Callable[[], None]) -> None:
        swallowed()
        check()
        raise AssertionError("an outcome that the signal may have made is relied on")

    before = signal.getsignal(number)
    with pytest.raises(Interrupted) as caught, interruptible():
        grouped()
    assert caught.value.exit_code == 128 + number
    with pytest.raises(Interrupted), interruptible():
        swallowed()
    with pytest.raises(Interrupted), interruptible() as check:
        asks(check)
    assert signal.getsignal(number) is before
    with pytest.raises(ZeroDivisionError), interruptible():
        raise ZeroDivisionError


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("inside_trio", [False, True])
def test_a_signal_cancels_the_loop_that_runs_and_raises_nothing_inside(
    number: signal.Signals, inside_trio: bool
) -> None:
    went_on, left = [], []

    def interrupted() -> None:
        for _ in range(2 if inside_trio else 1):
            os.kill(os.getpid(), number)
            went_on.append("no exception")

    if inside_trio:  # As in the scheduler, where an exception would break the loop.
        trio.lowlevel.enable_ki_protection(interrupted)

    async def body() -> None:
        try:
            interrupted()
            await trio.sleep_forever()
        finally:
            left.append("an orderly end")

    with pytest.raises(Interrupted) as caught, interruptible():
        trio.run(body)
    assert caught.value.exit_code == 128 + number
    assert (len(went_on), len(left)) == (2 if inside_trio else 1, 1)


def test_a_second_signal_ends_a_task_that_comes_to_no_checkpoint() -> None:
    async def body() -> None:
        while True:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted), interruptible():
        trio.run(body)


def test_a_complaint_is_one_line_that_says_what_to_try() -> None:
    line = complaint(NotEnoughBookies("3 are needed,\n  2 registered."))
    assert line.startswith("3 are needed, 2 registered (")
    assert "bookie list" in line
    assert "ledger list" in complaint(LedgerNotFound(3))
    assert "'ledgerlog metadata restore' restores the store from a backup" in complaint(
        MetadataCorrupt("metadata of ledger 3: not valid CBOR")
    )


def test_a_complaint_gives_no_advice_that_does_not_fit_the_message() -> None:
    moved = "the archive was moved from here to /new: name that place"
    assert complaint(ArchiveUnavailable("/old", moved)) == f"archive file /old: {moved}"
    table = complaint(ArchiveCorrupt("of table orders", "it is damaged; or make a new table"))
    assert "(if a file is damaged, restore it from a copy" in table
    prover = Prover()
    for proof, variable in ((ProvenBy.SECRET, "LEDGERLOG_SECRET_FILE"), (ProvenBy.TLS, "LEDGERLOG_TLS_CA")):
        prover.admit(Admission(proof))
        with pytest.raises(Unauthenticated) as refused:
            prover.check_own()
        said = complaint(refused.value)
        assert f"{variable} (as in Spark) (correct what the message names, then try again)" in said


def test_where_to_start_is_an_offset_a_position_a_time_or_a_word() -> None:
    assert parse_start("17") == 17
    assert parse_start("latest") == "latest"
    assert parse_start("3:4:5") == Position(3, 4, 5)
    moment = parse_start("2026-01-31T12:00:00+00:00")
    assert getattr(moment, "year", None) == 2026
    assert getattr(parse_start("2026-01-31T12:00"), "tzinfo", None) is not None
    for wrong in ("", "-1", "tomorrow", "1:2", "1:2:x"):
        with pytest.raises(InvalidArgument):
            parse_start(wrong)


def test_replication_options_that_are_left_out_follow_from_those_that_are_given() -> None:
    assert replication_of(None, None, None, False) is None
    assert replication_of(None, None, None, True) == Replication(3, 3, 2, True)
    assert replication_of(1, None, None, False) == Replication(1, 1, 1)
    assert replication_of(5, None, None, False) == Replication(5, 3, 2)
    assert replication_of(None, 4, None, False) == Replication(4, 4, 3)
    assert replication_of(None, None, 3, False) == Replication(3, 3, 3)


def test_numbers_with_commas_are_checked() -> None:
    import click

    callback = numbers(1, 10)
    command = click.Command("x")
    ctx, param = click.Context(command), click.Option(["--size"])
    assert callback(ctx, param, "1, 10") == (1, 10)
    for wrong in ("", "0", "11", "1,x"):
        with pytest.raises(click.BadParameter):
            callback(ctx, param, wrong)


async def test_the_advice_about_damage_fits_the_kind_of_file(tmp_path: Path) -> None:
    (tmp_path / "backup").write_bytes(b"cut short")
    with pytest.raises(StorageCorrupt) as of_backup:
        open_backup(str(tmp_path / "backup"))
    assert complaint(of_backup.value).endswith("(use another backup file)")

    metadata = tmp_path / "metadata.sqlite"
    (tmp_path / "metadata.sqlite-wal").write_bytes(b"left")
    with pytest.raises(StorageCorrupt) as of_log:
        async with open_sqlite_store(metadata):
            pass
    assert f"move {metadata}-wal and {metadata}-shm away; then 'ledgerlog metadata restore'" in complaint(
        of_log.value
    )

    of_bookie = StorageCorrupt("/b1/journal/1.journal", 7, "no block")
    assert complaint(of_bookie).endswith("(keep the files; 'bookie repair' salvages a bookie's directory)")
