"""Unpacking never takes more memory than the claimed content, no matter who packed it."""

from __future__ import annotations

import struct
import subprocess
import sys
from typing import NoReturn

import pytest
import zstandard

from ledgerlog.errors import EntryCorrupt
from ledgerlog.limits import MIB, RECORD_BYTES_MAX
from ledgerlog.model.codec import encode_record
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.packing import pack, unpack
from ledgerlog.wire.records import decode_checkpoint, decode_entry, decode_header, decode_packed
from tests.waiting import PATIENCE_S

BLOCK = 128 * 1024
MAGIC = 0xFD2FB528


class Refused(Exception):
    pass


def fail(why: str) -> NoReturn:
    raise Refused(why)


def frame(blocks: int, claimed: int, *, window: int = 0x38) -> bytes:
    """Return a frame whose blocks repeat one byte 128 Ki times each, with a window of 128 KiB.

    The window is smaller than the claimed content.
    """
    block = (BLOCK << 3) | 2
    body = (block.to_bytes(3, "little") + b"a") * (blocks - 1) + (block | 1).to_bytes(3, "little") + b"a"
    return struct.pack("<IBBI", MAGIC, 0b10000000, window, claimed) + body


def skippable(content: bytes) -> bytes:
    return struct.pack("<II", 0x184D2A50, len(content)) + content


BOMB = frame(16_000, RECORD_BYTES_MAX)
"""64 KB that unpack to two gigabytes."""


def bomb_entry() -> bytes:
    head = struct.pack("<2sBBHHIQQQQ", b"LR", 2, 1, 0, 0, 1, 1, 0, 1, 0)
    return head + struct.pack("<I", RECORD_BYTES_MAX - 4) + BOMB


def bomb_checkpoint() -> bytes:
    head = struct.pack("<2sBBHHIQQQQ", b"LR", 2, 0, 6, 0, 0, 1, 0, 1, 0)
    return head + struct.pack("<QII", 5, 0, RECORD_BYTES_MAX) + BOMB


def bomb_log() -> bytes:
    segments = RECORD_BYTES_MAX // 48
    size = 48 * segments
    return encode_record(
        {
            "v": 2,
            "name": "orders",
            "incarnation": 5,
            "created_ms": 1,
            "token": b"",
            "ensemble": 3,
            "write_quorum": 3,
            "ack_quorum": 2,
            "guaranteed": False,
            "roll": {"bytes": None, "records": None, "age_ms": None},
            "retention": {"bytes": None, "age_ms": None},
            "properties": {},
            "epoch": 1,
            "first_offset": 0,
            "sealed": False,
            "before": [0, 0, 0],
            "dedupe_epoch": None,
            "segments": [segments, segments, segments, 1, frame(16_000, size)],
        }
    )


def test_a_bomb_is_damage_of_what_it_stands_for() -> None:
    place = {"ledger_id": 7, "entry_id": 5}
    assert len(BOMB) < 65_536
    assert decode_header(bomb_entry(), **place).record_count == 1, "its header is sound"
    for decode in (decode_entry, decode_packed):
        with pytest.raises(EntryCorrupt, match="entry 5"):
            decode(bomb_entry(), **place)
    with pytest.raises(EntryCorrupt, match="entry 5"):
        decode_checkpoint(bomb_checkpoint(), **place)
    with pytest.raises(MetadataCorrupt, match="packed part"):
        LogMetadata.decode_untrusted(bomb_log(), 5)


GROWTH = """
import contextlib, resource, sys
from ledgerlog.errors import EntryCorrupt
from ledgerlog.limits import MIB, RECORD_BYTES_MAX
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.wire.records import decode_checkpoint, decode_entry, decode_packed
data = sys.stdin.buffer.read()
decode = {
    "entry": lambda: decode_entry(data, ledger_id=7, entry_id=5),
    "packed": lambda: decode_packed(data, ledger_id=7, entry_id=5),
    "checkpoint": lambda: decode_checkpoint(data, ledger_id=7, entry_id=5),
    "log": lambda: LogMetadata.decode_untrusted(data, 5),
}[sys.argv[1]]
def peak():
    try:  # Where there is one: Linux hands the other figure down from the process that started this one.
        status = open("/proc/self/status").read()
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    return int(status.split("VmHWM:")[1].split()[0])
before = peak()
with contextlib.suppress(EntryCorrupt, MetadataCorrupt):
    decode()
    sys.exit("it was taken")
print(peak() - before)
"""


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("entry", bomb_entry()),
        ("packed", bomb_entry()),
        ("checkpoint", bomb_checkpoint()),
        ("log", bomb_log()),
    ],
    ids=["entry", "packed", "checkpoint", "log"],
)
def test_a_bomb_takes_no_more_memory_than_what_it_stands_for_may(what: str, data: bytes) -> None:
    """Each case runs in its own process: so it has its own peak, and the memory of libraries counts too."""
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, what], input=data, capture_output=True, check=True, timeout=PATIENCE_S
    )
    grown = int(done.stdout) * 1024
    assert grown < 32 * MIB, f"{what}: {grown / MIB:.0f} MiB"


GOOD = pack(b"a" * 1000)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:-1],
        GOOD[:5],
        GOOD + b"x",
        GOOD + GOOD,
        GOOD + skippable(b"more"),
        skippable(b"less") + GOOD,
        skippable(bytes(1000)),
        frame(1, 1000),
        frame(2, 3 * BLOCK),
        pack(b"a" * 999),
        pack(b"a" * 1001),
        zstandard.ZstdCompressor(write_content_size=False).compress(b"a" * 1000),
        zstandard.ZstdCompressor(
            dict_data=zstandard.train_dictionary(1024, [b"%d" % n for n in range(9999)])
        ).compress(b"123" * 333 + b"4"),
        bytes([GOOD[0] ^ 1]) + GOOD[1:],
    ],
    ids=[
        "empty",
        "cut off",
        "header only",
        "trailing byte",
        "two frames",
        "skippable frame behind",
        "skippable frame before",
        "skippable frame alone",
        "larger than it claims",
        "smaller than it claims",
        "claims less",
        "claims more",
        "claims nothing",
        "needs a dictionary",
        "another magic",
    ],
)
def test_what_is_not_one_whole_frame_of_that_size_is_refused(data: bytes) -> None:
    with pytest.raises(Refused):
        unpack(data, 1000, fail)


@pytest.mark.parametrize("data", [b"", pack(b""), skippable(b"x"), pack(b"") + b"x", pack(b"a")])
def test_nothing_is_never_packed(data: bytes) -> None:
    with pytest.raises(Refused):
        unpack(data, 0, fail)


def test_a_window_larger_than_the_content_costs_nothing() -> None:
    """The window is 128 MiB, the largest that is read at all. The content is 4 MiB."""
    assert unpack(frame(32, 32 * BLOCK, window=0x88), 32 * BLOCK, fail) == b"a" * 32 * BLOCK


@pytest.mark.parametrize("size", [1, 3, 1000, RECORD_BYTES_MAX])
def test_what_was_packed_is_unpacked(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    assert unpack(pack(data[:size]), size, fail) == data[:size]
