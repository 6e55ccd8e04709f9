"""What state machines, streams into logs and archives keep, as targets for fuzzing.

A snapshot ends in a digest over all of it, and each of its frames has one, so its target takes any bytes for
the payloads of frames, cut where a first byte says, and makes the stream around them, besides reading them as
they come.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import attrs

from ledgerlog.errors import IncompatibleVersion, WireError
from ledgerlog.machine.core.replica import RequestTable
from ledgerlog.model.archive import (
    DIGEST_BYTES,
    MARKER_BYTES,
    ArchiveDestination,
    ArchivedFile,
    ArchivedLedger,
)
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.command import CommandOutcome, Envelope
from ledgerlog.model.gathered import ReplacedLedgers
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.snapshots import ListedSnapshot, decode_snapshot_list_untrusted, encode_snapshot_list
from ledgerlog.model.splice_request import SpliceRequest
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.commands import decode_envelope_untrusted, encode_envelope
from ledgerlog.wire.snapshots import SnapshotHead, decode_snapshot_untrusted, encode_snapshot
from tests.fuzz.targets import Target, expect, metadata_target

_LOG = 7
_HEAD = SnapshotHead(log="orders", incarnation=_LOG, next_offset=40, timestamp_ms=5, requests=1)


def _exact(name: str, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes]) -> Any:
    """What is accepted is written as the same bytes."""

    def run(data: bytes) -> bool:
        try:
            value = decode(data)
        except (WireError, IncompatibleVersion):
            return False
        expect(encode(value) == data, f"a {name} that is written as other bytes")
        return True

    return run


def _requests() -> bytes:
    table = RequestTable()
    table.add("a", CommandOutcome(3, b"result", None))
    table.add("b", CommandOutcome(4, b"", "no such seat"))
    return table.encode()


# --- snapshots ------------------------------------------------------------------------------------


def _frames(data: bytes) -> list[bytes]:
    """Any bytes, cut into payloads: a byte says how long the next one is."""
    payloads, at = [], 0
    while at < len(data):
        size = data[at]
        payloads.append(data[at + 1 : at + 1 + size])
        at += 1 + size
    return payloads


def _sealed(payloads: list[bytes]) -> bytes:
    """The stream of these frames, with digests that are right."""
    whole = b"".join(encode_snapshot(_HEAD, [], []))
    body = whole[: whole.index(struct.pack("<I", len(_HEAD.encode())))]
    for payload in payloads:
        body += struct.pack("<II", len(payload), checksum(payload)) + payload
    body += struct.pack("<II", 0xFFFFFFFF, len(payloads))
    return body + struct.pack("<I", checksum(body))


def _run_snapshot(data: bytes) -> bool:
    accepted = False
    for stream in (data, _sealed(_frames(data))):
        try:
            found = decode_snapshot_untrusted(stream)
        except (WireError, IncompatibleVersion):
            continue
        accepted = True
        expect(
            len(found.requests) + sum(map(len, found.chunks)) <= len(stream),
            "a snapshot that has more than its bytes",
        )
        if found.head.requests == 1:
            again = decode_snapshot_untrusted(
                b"".join(encode_snapshot(found.head, [found.requests], found.chunks))
            )
            expect(again == found, "a snapshot that reads back as another one")
    return accepted


def _snapshots() -> list[bytes]:
    pieces = [_HEAD.encode(), _requests(), b"chunk", b"chunk " * 20]
    return [
        b"".join(encode_snapshot(_HEAD, [_requests()], [b"one", b"", b"three" * 50])),
        b"".join(bytes([len(piece)]) + piece for piece in pieces),
    ]


# --- metadata -------------------------------------------------------------------------------------


def _run_snapshot_list(data: bytes) -> bool:
    try:
        listed = decode_snapshot_list_untrusted(data, _LOG)
    except MetadataCorrupt:
        return False
    again = decode_snapshot_list_untrusted(encode_snapshot_list(listed), _LOG)
    expect(again == listed, "a list of snapshots that reads back as another one")
    return True


def _archives() -> list[ArchivedFile]:
    ledgers = (
        ArchivedLedger(ledger_id=4, first_offset=0, end_offset=10, last_entry=2),
        ArchivedLedger(ledger_id=6, first_offset=10, end_offset=11, last_entry=0),
    )
    whole = [
        ArchivedFile(
            log="orders",
            incarnation=_LOG,
            file="file:///archive/orders-4.arrow",
            file_bytes=4000,
            ledgers=ledgers,
            record_count=9,
            compacted=True,
            digest=bytes(DIGEST_BYTES),
            footer=bytes(DIGEST_BYTES),
            archived_ms=1_700_000_000_000,
            token=bytes(16),
        )
    ]
    return [
        *whole,
        *(
            attrs.evolve(each, file="destination://" + 16 * "0" + "/a/b", destination=bytes(8))
            for each in whole
        ),
    ]


def _splices() -> list[SpliceMark]:
    mark = SpliceMark(
        producer="copier", source="clicks", batch=3, run="r2", former=("r1",), epoch=2, token=bytes(16)
    )
    return [mark]


def _requested_splices() -> list[SpliceRequest]:
    request = SpliceRequest(
        producer="copier",
        source="clicks",
        run="r2",
        batch=3,
        gaps=False,
        staged=((7, 20, 900, 1), (9, 1, 5, 0)),
    )
    return [request, attrs.evolve(request, producer=None, refused="too large", is_full=True)]


MACHINE_TARGETS = (
    Target(
        "command",
        _exact("command", decode_envelope_untrusted, encode_envelope),
        lambda: [
            encode_envelope(Envelope(timestamp_ms=1_700_000_000_000, seed=5, request_id="a", data=b"+1")),
            encode_envelope(Envelope(timestamp_ms=0, seed=1)),
        ],
    ),
    Target(
        "requests",
        _exact("table of requests", RequestTable.decode_untrusted, RequestTable.encode),
        lambda: [_requests(), RequestTable().encode()],
    ),
    Target("snapshot", _run_snapshot, _snapshots),
    Target(
        "snapshot-list",
        _run_snapshot_list,
        lambda: [encode_snapshot_list([ListedSnapshot(5, 40, 900), ListedSnapshot(9, 80)])],
    ),
    metadata_target("archive", lambda data: ArchivedFile.decode_untrusted(data, _LOG), _archives),
    metadata_target(
        "archive-place",
        lambda data: ArchiveDestination.decode_untrusted(data, "destinations/0"),
        lambda: [ArchiveDestination(where="s3://bucket/archive", marker=bytes(MARKER_BYTES), made_ms=5)],
    ),
    metadata_target(
        "replaced-ledgers",
        ReplacedLedgers.decode_untrusted,
        lambda: [ReplacedLedgers(ledger_id=9, ledgers=(1, 2, 5), at_ms=1_700_000_000_000)],
    ),
    metadata_target("splice", lambda data: SpliceMark.decode_untrusted(data, "copier"), _splices),
    metadata_target("splice-request", SpliceRequest.decode_untrusted, _requested_splices),
)
