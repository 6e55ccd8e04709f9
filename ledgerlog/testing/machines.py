"""Check that a state machine is deterministic: ``check_machine``.

    from ledgerlog.testing import check_machine

    def test_my_machine() -> None:
        check_machine(MyMachine, [b"SET a 1", b"DEL a", b"SET b 2"])

It looks for everything that could make replicas differ. It applies the same commands in several ways, and
compares every result and every state:

* twice in this process. The state and the results must not depend on the identity of an object;
* with a snapshot at every position. A fresh machine restores the snapshot and applies the remaining commands.
  A snapshot must hold everything that matters;
* with a snapshot that is taken at a position and read after the next commands. Its content must not change
  after it was taken;
* in other processes, with other hash seeds. The state and the results must not depend on the order of a set,
  or on anything else that depends on hashes. For this, the factory must be importable: a class or function of
  a module, not one inside a test function.

The commands are stamped as a leader stamps them, with the same stamps each time. If two ways differ,
``NotDeterministic`` names the command that shows the difference."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence

from ledgerlog.errors import InvalidArgument
from ledgerlog.machine.core.replica import ReplicaCore, digest_of
from ledgerlog.machine.machine import StateMachine
from ledgerlog.model.command import CommandOutcome, Envelope

__all__ = ["NotDeterministic", "check_machine"]

Factory = Callable[[], StateMachine]

_CHILD = "from ledgerlog.testing.machines import serve_child; import {0}; serve_child({0}.{1})"
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*\Z")
_CHILD_S = 120.0


class NotDeterministic(AssertionError):
    """Two ways to apply the same commands gave different results or states. The message names the command."""


def check_machine(
    factory: Factory,
    commands: Sequence[bytes],
    *,
    hash_seeds: Sequence[int] = (1, 2),
    snapshots_every: int = 1,
) -> None:
    """Check that a state machine is deterministic, and that its snapshots are complete.

        check_machine(MyMachine, [b"SET a 1", b"DEL a", b"SET b 2"])

    Args:
        factory: Makes a fresh machine. Other processes must be able to import it, unless ``hash_seeds`` is
            empty.
        commands: The commands to apply, in order.
        hash_seeds: Apply the commands also in one process for each of these values of ``PYTHONHASHSEED``.
        snapshots_every: Check a snapshot at every n-th position. Use a larger n if the machine's state is
            large.

    Raises:
        NotDeterministic: Two ways to apply the commands gave different results or states, or a process with
            another hash seed failed.
        InvalidArgument: Another process cannot import ``factory``, or what it makes is no machine.
        TypeError: The machine's ``apply`` returned something else than bytes or None.
    """
    outcomes, digests = _walk(factory, commands)
    _compare("applied a second time", commands, (outcomes, digests), _walk(factory, commands))
    for position in range(0, len(commands) + 1, snapshots_every):
        _check_snapshot(factory, commands, position, outcomes, digests)
    for hash_seed in hash_seeds:
        _compare(
            f"with hash seed {hash_seed}",
            commands,
            (outcomes, digests),
            _walk_in_child(factory, commands, hash_seed),
        )


def _envelope(position: int, data: bytes) -> Envelope:
    """Stamp a command as a leader does, with the same stamps each time."""
    return Envelope(
        timestamp_ms=1_700_000_000_000 + 7 * position,
        seed=(position * 0x9E3779B97F4A7C15) % 2**64,
        request_id=f"request-{position}",
        data=data,
    )


def _apply(core: ReplicaCore, position: int, data: bytes) -> CommandOutcome:
    outcome = core.apply(position, _envelope(position, data))
    assert outcome is not None
    return outcome


def _state(core: ReplicaCore, chunks: Iterable[bytes] | None = None) -> str:
    return digest_of(core.next_offset, b"", core.chunks() if chunks is None else chunks)


def _walk(factory: Factory, commands: Sequence[bytes]) -> tuple[list[CommandOutcome], list[str]]:
    """Return the outcome of each command, and the digests of the first state and of the state after each."""
    core = ReplicaCore(factory())
    outcomes, digests = [], [_state(core)]
    for position, data in enumerate(commands):
        outcomes.append(_apply(core, position, data))
        digests.append(_state(core))
    return outcomes, digests


def _check_snapshot(
    factory: Factory,
    commands: Sequence[bytes],
    position: int,
    outcomes: list[CommandOutcome],
    digests: list[str],
) -> None:
    core = ReplicaCore(factory())
    for at in range(position):
        _apply(core, at, commands[at])
    late = core.chunks()  # Read only after more commands were applied.
    chunks = list(core.chunks())
    for at in range(position, min(position + 3, len(commands))):
        _apply(core, at, commands[at])
    if digest_of(position, b"", late) != digests[position]:
        raise NotDeterministic(
            f"a snapshot taken before command {position} changed when more commands were applied: "
            "its chunks must be copies of the state"
        )
    restored = ReplicaCore(factory())
    restored.restore(position, 0, core.requests.__class__(), chunks)
    if _state(restored) != digests[position]:
        raise NotDeterministic(
            f"the state restored from the snapshot before command {position} differs from the state when "
            "the snapshot was taken"
        )
    for at in range(position, len(commands)):
        outcome = _apply(restored, at, commands[at])
        where = f"after a restore from the snapshot before command {position}"
        if outcome != outcomes[at]:
            raise NotDeterministic(
                f"{where}, command {at}, {commands[at][:200]!r}, gives {_words(outcome)}, "
                f"not {_words(outcomes[at])}"
            )
        if _state(restored) != digests[at + 1]:
            raise NotDeterministic(f"{where}, command {at}, {commands[at][:200]!r}, leaves another state")


def _compare(
    what: str,
    commands: Sequence[bytes],
    first: tuple[list[CommandOutcome], list[str]],
    second: tuple[list[CommandOutcome], list[str]],
) -> None:
    if first[1][0] != second[1][0]:
        raise NotDeterministic(f"{what}, the machine's first state is different")
    for position, data in enumerate(commands):
        ours, theirs = first[0][position], second[0][position]
        if ours != theirs:
            raise NotDeterministic(
                f"{what}, command {position}, {data[:200]!r}, gives {_words(theirs)}, not {_words(ours)}"
            )
        if first[1][position + 1] != second[1][position + 1]:
            raise NotDeterministic(f"{what}, command {position}, {data[:200]!r}, leaves another state")


def _words(outcome: CommandOutcome) -> str:
    what = repr(outcome.result[:200])
    return what if outcome.error is None else f"{outcome.error}({what})"


# --- another process ------------------------------------------------------------------------------


def _walk_in_child(
    factory: Factory, commands: Sequence[bytes], hash_seed: int
) -> tuple[list[CommandOutcome], list[str]]:
    module, name = getattr(factory, "__module__", ""), getattr(factory, "__qualname__", "")
    if module == "__main__" or not _DOTTED.match(module) or not _DOTTED.match(name):
        raise InvalidArgument(
            f"{factory!r} cannot be imported by another process: give a class or function of a module, "
            "or hash_seeds=()"
        )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", _CHILD.format(module, name)],
        input=json.dumps([data.hex() for data in commands]).encode(),
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        timeout=_CHILD_S,
        check=False,
    )
    if ran.returncode:
        raise NotDeterministic(
            f"with hash seed {hash_seed} the machine fails: {ran.stderr.decode(errors='replace')[-2000:]}"
        )
    said = json.loads(ran.stdout)
    outcomes = [
        CommandOutcome(offset, bytes.fromhex(result), error) for offset, result, error in said["outcomes"]
    ]
    return outcomes, said["digests"]


def serve_child(factory: Factory) -> None:
    """The main function of the other process: read commands from standard input, and write their outcomes."""
    commands = [bytes.fromhex(text) for text in json.loads(sys.stdin.read())]
    outcomes, digests = _walk(factory, commands)
    rows = [(outcome.offset, outcome.result.hex(), outcome.error) for outcome in outcomes]
    sys.stdout.write(json.dumps({"outcomes": rows, "digests": digests}))
