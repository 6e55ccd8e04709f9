"""The first signal ends a command. Further signals during its cleanup change nothing."""

from __future__ import annotations

import os
import signal

import pytest
import trio

from ledgerlog.signals import run_until_stopped


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_second_signal_during_the_clean_up_changes_nothing(
    first: signal.Signals, second: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that goes away may send SIGHUP twice, and a person is impatient."""
    redelivered: list[int] = []
    cleaned_up = False

    async def body() -> None:
        nonlocal cleaned_up
        try:
            os.kill(os.getpid(), first)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                os.kill(os.getpid(), second)
                for _ in range(10):
                    await trio.lowlevel.checkpoint()
            cleaned_up = True

    # If nobody takes the signal, trio raises it again, which would end this process.
    monkeypatch.setattr("signal.raise_signal", redelivered.append)
    # nohup may have started this process with SIGHUP ignored.
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        assert await run_until_stopped(body) == first
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert cleaned_up
    assert redelivered == []
