"""The harness for users' machines finds each kind of fault, and nothing if the machine is correct."""

from __future__ import annotations

import json

import pytest

from ledgerlog.errors import InvalidArgument
from ledgerlog.testing import NotDeterministic, check_machine
from tests.machine.machines import ByHash, ByIdentity, Forgets, Hidden, Keys, Live

COMMANDS = [
    json.dumps(command).encode()
    for command in (["set", "a", 1], ["add", "a", 2], ["cas", "a", 9, 1], ["set", "b", "x"], ["get", "a"])
]


def test_a_machine_that_keeps_to_the_rules_passes() -> None:
    check_machine(Keys, COMMANDS)
    check_machine(Keys, [], hash_seeds=())


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (ByIdentity, r"applied a second time, command 0, .* gives b'2', not b'1'"),
        (ByHash, r"with hash seed \d, command 0"),
        (Hidden, r"after a restore from the snapshot before command 1, command 1, .* gives b'1', not b'2'"),
        (Forgets, r"the state restored from the snapshot before command 1 differs from the state"),
        (Live, r"a snapshot taken before command 0 changed"),
    ],
)
def test_each_way_to_be_wrong_is_found_and_named(factory: type[Keys], words: str) -> None:
    with pytest.raises(NotDeterministic, match=words):
        check_machine(factory, COMMANDS, hash_seeds=(1, 2, 3))


def test_a_factory_that_no_other_process_can_import_is_refused() -> None:
    def factory() -> Keys:
        return Keys()

    with pytest.raises(InvalidArgument, match="cannot be imported"):
        check_machine(factory, COMMANDS)
    check_machine(factory, COMMANDS, hash_seeds=())
