"""What a salvage keeps of runs that it cannot keep all, and how much it reads to find them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from bookie.core import salvage
from bookie.core.block import PAGE_BYTES
from bookie.core.entry_log import (
    FOOTER,
    HEAD_BYTES,
    LEDGER,
    LOG_HEADER_BYTES,
    REPLACES,
    LoggedLedger,
    LogHeader,
    RecordHead,
    encode_footer,
    encode_head,
    encode_ledger,
    encode_replaces,
    is_whole,
)
from bookie.core.facts import Add, Fact, Replaces
from bookie.core.file_set import FileSet
from bookie.core.journal_items import ADD, EntryRun
from bookie.core.salvage import fullest, log_facts
from ledgerlog.limits import KIB, MIB
from ledgerlog.wire.entries import Entries, encode_add

KEY = bytes(16)
NONCE = bytes(range(16))


def run(first: int, last: int, count: int, *, ledger_id: int = 7, offset: int = 0) -> EntryRun:
    return EntryRun(ledger_id, first, last, count, 1, offset, 100, sequence=1)


def test_of_runs_that_begin_with_one_entry_the_one_with_most_entries_is_kept() -> None:
    long, short = run(0, 9, 10), run(0, 4, 5, offset=4096)
    assert fullest([long, short]) == fullest([short, long]) == [long]
    sparse = run(0, 90, 4, offset=8192)
    assert fullest([long, sparse]) == [long], "entries count, not the range"


def test_of_runs_with_as_many_entries_the_later_is_kept() -> None:
    first, second = run(0, 9, 10), run(0, 9, 10, offset=4096)
    assert fullest([first, second]) == [second]


def test_runs_that_begin_elsewhere_or_belong_to_other_ledgers_all_stay_and_are_sorted() -> None:
    runs = [run(5, 9, 5), run(0, 4, 5, ledger_id=8), run(0, 9, 10)]
    assert fullest(runs) == [run(0, 9, 10), run(5, 9, 5), run(0, 4, 5, ledger_id=8)]


class Log:
    """An entry log in memory, with one ledger."""

    def __init__(self, payloads: Iterable[bytes]) -> None:
        content = bytearray(LOG_HEADER_BYTES)
        self.offsets: list[int] = []
        """Where the records of the entries begin."""

        def put(kind: int, body: bytes) -> None:
            content.extend(encode_head(NONCE, len(content), kind, body) + body)

        put(REPLACES, encode_replaces(FileSet.of([1, 2])))
        put(LEDGER, encode_ledger(LoggedLedger(7, KEY, False, False, -1, -1)))
        for entry_id, payload in enumerate(payloads):
            self.offsets.append(len(content))
            entries = Entries.build(7, entry_id, [payload])
            put(ADD, b"".join(encode_add(entries, lac=-1, lafr=-1, key=KEY, recovery=False)))
        put(FOOTER, encode_footer(len(self.offsets), {7: len(content)}))
        content.extend(bytes(-len(content) % PAGE_BYTES))
        self.content = content

    def facts(self) -> list[Fact | None]:
        header = LogHeader(3, len(self.content), NONCE, "instance", 0)
        return list(log_facts(memoryview(bytes(self.content)), header, "log"))

    def entries(self) -> list[int]:
        return [fact.run.first for fact in self.facts() if isinstance(fact, Add)]


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes each checksum covered."""
    found: list[int] = []

    def noted(nonce: bytes, offset: int, head: RecordHead, body: bytes) -> bool:
        found.append(len(body))
        return is_whole(nonce, offset, head, body)

    monkeypatch.setattr(salvage, "is_whole", noted)
    return found


def heads(length: int) -> bytes:
    """What a client may write: bytes that look like the heads of records."""
    return b"".join(
        kind.to_bytes(4, "little") + length.to_bytes(4, "little") for kind in (ADD, LEDGER, REPLACES, FOOTER)
    )


def test_a_sound_log_gives_all_its_facts_and_nothing_else() -> None:
    replaces, ledger, *adds = Log([b"x" * 100] * 3).facts()
    assert replaces == Replaces(FileSet.of([1, 2]))
    assert isinstance(ledger, LoggedLedger)
    assert [fact.run.first for fact in adds if isinstance(fact, Add)] == [0, 1, 2]
    assert len(adds) == 3


@pytest.mark.parametrize("filling", ["numbers", "random bytes"])
def test_a_search_for_the_next_record_verifies_each_byte_at_most_once(
    filling: str, verified: list[int]
) -> None:
    big = heads(8 * KIB) * (2 * KIB) if filling == "numbers" else random.Random(1).randbytes(64 * KIB)
    log = Log([b"x", big, *[b"x" * (8 * KIB)] * 32])
    log.content[log.offsets[1] + HEAD_BYTES] ^= 1
    assert log.entries() == [0, *range(2, 34)]
    assert sum(verified) <= len(log.content)


def test_a_record_is_found_at_each_place_after_damage() -> None:
    for size in range(1, 40):
        log = Log([b"x", bytes(size), b"y"])
        log.content[log.offsets[1]] ^= 0xFF
        assert log.entries() == [0, 2]


@pytest.mark.parametrize("pad", [1, 2, 3])
def test_a_record_whose_head_has_a_byte_that_should_be_zero_is_found_after_a_whole_record(pad: int) -> None:
    """No checksum covers these bytes, so the record is sound."""
    log = Log([b"x", b"y", b"z"])
    for offset in (LOG_HEADER_BYTES, *log.offsets):
        log.content[offset + pad] = 0x40
    assert Replaces(FileSet.of([1, 2])) in log.facts()
    assert log.entries() == [0, 1, 2]


def test_a_search_that_finds_nothing_pauses_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (bytes(4 * MIB), heads(64) * (128 * KIB)):
        log = Log([b"x"])
        del log.content[log.offsets[0] :]
        log.content.extend(content)
        pauses = log.facts().count(None)
        assert len(content) // salvage._STEP_BYTES - 1 <= pauses <= len(content) // 256
