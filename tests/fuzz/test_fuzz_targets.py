"""Every decoder, given its corpus and random changes of it, raises what it says or gives what is whole."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.fuzz.corpus import CORPUS, INPUT_BYTES_MAX, all_targets, inputs_of, mutations
from tests.fuzz.targets import Target

INPUTS = int(os.environ.get("LEDGERLOG_FUZZ_INPUTS", "1500"))

REACHED_BY_OTHERS = ("decode_record_untrusted", "SnapshotHead.decode_untrusted")
"""What the decoders of records, and of snapshots, call."""

TARGETS = pytest.mark.parametrize("target", all_targets(), ids=lambda target: target.name)


@TARGETS
def test_what_was_kept_is_taken_or_refused(target: Target) -> None:
    for data in inputs_of(target):
        target.run(data)


@TARGETS
def test_random_changes_of_it_are_taken_or_refused(target: Target) -> None:
    for data in mutations(target, INPUTS, seed=1):
        try:
            target.run(data)
        except Exception as cause:
            raise AssertionError(
                f"{target.name} of {len(data)} bytes {data[:256].hex()}: {cause!r}"
            ) from cause


@TARGETS
def test_the_seeds_of_a_target_are_accepted_by_it(target: Target) -> None:
    """What its own decoder refuses would leave everything behind the first check unvisited."""
    for data in target.seeds():
        assert len(data) <= INPUT_BYTES_MAX
        assert target.run(data), data[:256].hex()


def _targets_text() -> str:
    files = Path(__file__).parent.glob("*targets.py")
    return "".join(file.read_text() for file in files if not file.name.startswith("test_"))


def test_every_decoder_of_untrusted_bytes_is_a_target() -> None:
    """By name: whoever adds one is told to add a target."""
    called = _targets_text()
    left = []
    for room in ("ledgerlog", "bookie"):
        for file in sorted((Path(__file__).parents[2] / room).rglob("*.py")):
            owner = ""
            for line in file.read_text().splitlines():
                if found := re.match(r"class (\w+)", line):
                    owner = found[1]
                elif found := re.match(r"( *)def (decode\w*_untrusted)\(", line):
                    name = f"{owner}.{found[2]}" if found[1] else found[2]
                    if name not in called and name not in REACHED_BY_OTHERS:
                        left.append(f"{file.name}: {name}")
    assert not left


def test_a_bug_in_a_decoder_is_reached_by_random_changes() -> None:
    def run(data: bytes) -> bool:
        if data[:1] == b"\x80":
            raise KeyError("a bug")
        return True

    broken = Target("broken", run, lambda: [b"\x00"])
    with pytest.raises(KeyError):
        any(not broken.run(data) for data in mutations(broken, 5000, seed=1))


def test_every_folder_of_the_corpus_belongs_to_a_target() -> None:
    names = {target.name for target in all_targets()}
    assert {folder.name for folder in CORPUS.iterdir()} <= names if CORPUS.is_dir() else True
    assert len(names) == len(all_targets())


NOT_FUZZED = {
    "parse_key_rule": "an option of a command, from its own user",
    "parse_bytes": "an option of a command, from its own user",
    "parse_records": "an option of a command, from its own user",
    "parse_age": "an option of a command, from its own user",
    "parse_start": "an option of a command, from its own user",
    "parsed": "an option of a command, from its own user",
    "parse_seeds": "an option of a command, from its own user",
    "parse_numbers": "an option of a command, from its own user",
    "parse_time": "an option of a command, from its own user",
    "parse_moment": "an option of a command, from its own user",
    "parse_address": "an option of a command, from its own user",
    "parse_read_options": "options of a job, from its own user",
    "parse_write_options": "options of a job, from its own user",
    "parse_audit_options": "options of a job, from its own user",
    "decode_offsets": "what Spark kept of ours",
    "decode_numbered": "a part of an entry, which decode_entry reads",
    "decode_table": "a part of an entry, which decode_checkpoint reads",
    "decode_packed": "a part of an entry, which decode_entry reads",
}
"""What reads bytes or text and is no target, with the reason."""


def test_everything_else_that_reads_bytes_or_text_is_a_target_or_says_why_not() -> None:
    called = _targets_text()
    left = set()
    for room in ("ledgerlog", "bookie"):
        for file in sorted((Path(__file__).parents[2] / room).rglob("*.py")):
            for name in re.findall(
                r"^ *(?:async )?def ((?:decode|parse|unpack)\w*)\(", file.read_text(), re.M
            ):
                if not re.search(rf"\b{name}\b", called):
                    left.add(name)
    assert left - set(NOT_FUZZED) - {"decode_record_untrusted"} == set()
    assert set(NOT_FUZZED) <= left, "it is a target now, or gone"
