"""What is fuzzed: each decoder of bytes that somebody else wrote, with what has to hold of it.

A target takes any bytes and returns, or raises ``Finding`` or something that is a bug. Two things are
asked of each decoder: that it raises its one documented exception and nothing else, and that what it
accepts is whole, which mostly means that it can be written again and reads back as the same.

Most formats end in checksums, which no fuzzer guesses. So those targets *seal* their input: they put right
the checksum and the length that it should have had, and hand over both forms, the bytes as they came and
the sealed ones.

``seeds`` gives small valid inputs, made by the encoders themselves. They are where a fuzzer starts, and they
follow by themselves when a format gets a new version. The files of a bookie are in ``file_targets``.
"""

from __future__ import annotations

import resource
import struct
import sys
import tomllib
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol
from urllib.parse import parse_qsl

import attrs

from bookie.server.options import parse_config
from ledgerlog.cli.lines import LineCutter, LineJoiner
from ledgerlog.console.observer import Subject
from ledgerlog.errors import EntryCorrupt, InvalidArgument, WireError
from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.log.registry import _encode_name, decode_name_untrusted
from ledgerlog.meta.uri import parse_uri
from ledgerlog.model.access import Grant, Grants, Role
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.attributes import Attributes, decode_headers, encode_headers, headers_size
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.election import ElectionState
from ledgerlog.model.ids import BookieId, Position, check_bookie_id
from ledgerlog.model.ledger import LedgerMetadata, MetadataCorrupt
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.packing import pack, unpack
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.principal import Principal
from ledgerlog.model.producer import NumberedRecords, ProducerState, SequenceRange
from ledgerlog.model.quorum import Replication
from ledgerlog.model.reach import OutOfReach
from ledgerlog.model.repair import (
    AuditState,
    Draining,
    LedgerWork,
    RepairSettings,
    RepairTask,
    WorkerProgress,
)
from ledgerlog.model.restoration import Restoration
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.wire.beats import Beat, BeatKind
from ledgerlog.wire.checksum import checksum
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import (
    HEADER,
    HEADER_BYTES,
    REPLY,
    FrameBuffer,
    Kind,
    Status,
    decode_frame_untrusted,
    decode_pairs_untrusted,
    encode_head,
    encode_pairs,
    index_bytes,
)
from ledgerlog.wire.hello import (
    Challenge,
    Claim,
    Hello,
    decode_hello_untrusted,
    encode_hello,
    encode_hello_reply,
)
from ledgerlog.wire.ledgers import LedgerOnBookie, decode_ledgers_untrusted, encode_ledgers
from ledgerlog.wire.proof import (
    PROOF_BYTES,
    decode_proof_untrusted,
    encode_proof,
    encode_proof_reply,
)
from ledgerlog.wire.records import (
    Numbering,
    decode_checkpoint,
    decode_entry,
    decode_header,
    decode_numbering,
    encode_checkpoint,
    encode_entry,
)
from ledgerlog.wire.scrub import ScrubReport, decode_scrub_untrusted, encode_scrub

_BOOKIE = BookieId("bookie-1")
_LEDGER = 7
_ENTRY = 5


class Finding(Exception):
    """A decoder accepted what it should not have, or lost a part of it."""


@attrs.frozen
class Target:
    name: str
    run: Callable[[bytes], bool]
    """Whether a decoder accepted the bytes, or what was made of them."""
    seeds: Callable[[], list[bytes]]


def expect(holds: object, what: str) -> None:
    """Finding where ``holds`` is not true."""
    if not holds:
        raise Finding(what)


# --- the wire -------------------------------------------------------------------------------------


def _seal_frame(data: bytes) -> bytes:
    """The same frame with its length and checksum put right."""
    if len(data) < HEADER_BYTES:
        return data
    fields = HEADER.unpack_from(data)
    covered = HEADER_BYTES + index_bytes(fields[2], fields[3], fields[5], len(data) - HEADER_BYTES)
    return struct.pack("<II", len(data) - 4, checksum(data[8:covered])) + data[8:]


def _run_frame(data: bytes) -> bool:
    accepted = False
    for raw in (data, _seal_frame(data)):
        try:
            frame = decode_frame_untrusted(memoryview(raw))
            expect(frame.header.length + 4 == len(raw), "a frame of another length than its bytes")
            kind = frame.header.kind
            if kind in (Kind.ADD, Kind.READ | REPLY):
                _check_entries(decode_entries_untrusted(frame))
            elif kind & ~REPLY == Kind.HELLO:
                decode_hello_untrusted(frame)
            elif kind & ~REPLY == Kind.PROOF:
                proof = decode_proof_untrusted(frame)
                expect(len(proof) == PROOF_BYTES, "a proof of another length")
            elif kind == Kind.LIST | REPLY:
                pairs = decode_pairs_untrusted(frame.body)
                expect(encode_pairs(pairs) == bytes(frame.body), "pairs that are written differently")
            elif kind == Kind.SCRUB | REPLY:
                report = decode_scrub_untrusted(frame.body)
                expect(encode_scrub(report) == bytes(frame.body), "a report that is written differently")
            elif kind == Kind.LEDGERS | REPLY:
                ledgers = decode_ledgers_untrusted(frame.body)
                expect(encode_ledgers(ledgers) == bytes(frame.body), "ledgers that are written differently")
            accepted = True
        except WireError:
            continue
    return accepted


def _check_entries(entries: Entries) -> None:
    if not len(entries):
        return
    expect(len(entries.ids) == len(entries) == len(entries.digests), "arrays of different lengths")
    payloads = entries.payloads()
    expect([len(payload) for payload in payloads] == list(entries.lengths), "payloads of other lengths")
    damaged = entries.first_damaged()
    expect(damaged is None or damaged in entries.ids, "damage in an entry that is not there")
    whole = entries.select(range(len(entries)))
    expect(list(whole.ids) == list(entries.ids), "a selection of all has other ids")
    expect(whole.payloads() == payloads, "a selection of all has other payloads")


def _run_stream(data: bytes) -> bool:
    """A byte stream that comes in pieces; the first byte says how long they are."""
    step = 1 + (data[0] if data else 0)
    buffer = FrameBuffer(HEADER_BYTES, roomy_bytes=4096)
    at, taken = 1, 0
    while at < len(data):
        room = buffer.writable()
        expect(len(room), "no room to receive into")
        piece = data[at : at + min(step, len(room))]
        room[: len(piece)] = piece
        buffer.received(len(piece))
        at += len(piece)
        try:
            taken += sum(len(frame.raw) for frame in buffer.take_frames())
        except WireError:
            return False
        expect(buffer.capacity <= 2 * len(data) + 4096, "a buffer larger than what came")
    expect(taken <= len(data), "more bytes of frames than bytes")
    return taken > 0


def _frame_seeds() -> list[bytes]:
    entries = Entries.build(_LEDGER, 3, [b"one", b"", b"three"])
    sparse = Entries(_LEDGER, [3, 5, 9], entries.lengths, array("I", [1, 2, 3]), entries.payload)
    hello = Hello(bookie_id=_BOOKIE, instance="instance", cluster="cluster")
    claim = Claim(Principal.parse("client/billing"), (b"f" * 8, b"g" * 8), b"n" * 32)
    return [
        b"".join(encode_add(entries, lac=2, lafr=1, key=bytes(16), recovery=False)),
        b"".join(encode_add(sparse, lac=2, lafr=-1, key=bytes(16), recovery=True)),
        encode_hello(hello),
        encode_hello_reply(Status.OK, hello),
        encode_hello(attrs.evolve(hello, claim=claim)),
        encode_hello_reply(Status.OK, attrs.evolve(hello, challenge=Challenge(b"f" * 8, b"n" * 32))),
        encode_proof(b"p" * 32),
        encode_proof_reply(b"p" * 32),
        encode_head(Kind.READ, count=1, ledger_id=_LEDGER, first=0, last=9, argument=1 << 20, wait_ms=10),
        encode_head(Kind.LIST | REPLY, ledger_id=_LEDGER, index=encode_pairs([(0, 4), (6, 6)])),
        encode_head(
            Kind.SCRUB | REPLY,
            ledger_id=_LEDGER,
            index=encode_scrub(ScrubReport([(0, 4), (6, 6)], [(9, 9)], [(0, 0, 3, 9), (0, 1, 3, 1 << 33)])),
        ),
        encode_head(
            Kind.LEDGERS | REPLY,
            index=encode_ledgers([LedgerOnBookie(3, 0, bytes(16)), LedgerOnBookie(7, 9, b"k" * 16)]),
        ),
        encode_head(Kind.ADD | REPLY, request=12),
    ]


def _stream_seeds() -> list[bytes]:
    frames = _frame_seeds()
    return [bytes([200]) + b"".join(frames), bytes([10]) + frames[0] + frames[1][:100]]


def _run_beat(data: bytes) -> bool:
    try:
        beat = Beat.decode_untrusted(data)
    except WireError:
        return False
    expect(beat.encode() == data, "a heartbeat that is written differently")
    return True


def _beat_seeds() -> list[bytes]:
    return [Beat(kind, 3, bytes(range(16))).encode() for kind in BeatKind]


def _run_token(data: bytes) -> bool:
    try:
        token, proof = Token.decode_untrusted(data.decode("latin-1"))
    except WireError:
        return False
    said = token.encode(b"").rpartition("/")[0]
    expect(f"{said}/{proof}".encode("latin-1") == data, "a token that is written differently")
    expect(not token.is_proven(proof, [b"a secret"]), "a token that nobody made is proven")
    return True


def _run_subject(data: bytes) -> bool:
    try:
        subject = Subject.parse_untrusted(dict(parse_qsl(data.decode("latin-1"))))
    except InvalidArgument:
        return False
    expect(subject.number is None or 0 <= subject.number <= LEDGER_ID_MAX, "a number out of its range")
    expect(max(len(subject.name), len(subject.after)) <= 255, "a name without a bound")
    return True


def _subject_seeds() -> list[bytes]:
    return [
        b"kind=log&name=a/b&number=50",
        b"kind=logs&name=a&after=b",
        b"kind=ledger&number=7",
        b"kind=repair",
    ]


def _token_seeds() -> list[bytes]:
    who = Principal("client", "a:b.c")
    return [Token(who, scope, 1_767_225_600).encode(b"key").encode() for scope in TokenScope]


# --- what is packed -------------------------------------------------------------------------------

_PACKED_BYTES_MAX = 1024 * 1024
_GROWTH_BYTES_MAX = 64 * 1024 * 1024


class _NotPacked(Exception):
    pass


def _refuse(why: str) -> NoReturn:
    raise _NotPacked(why)


def _peak_bytes() -> int:
    """The most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _run_packed(data: bytes) -> bool:
    """Four bytes of the size that is expected, up to a mebibyte, and a frame: what is taken has that size,
    and neither it nor what is refused takes much more memory."""
    if len(data) < 4:
        return False
    size = struct.unpack_from("<I", data)[0] % (_PACKED_BYTES_MAX + 1)
    before = _peak_bytes()
    try:
        content: bytes | None = unpack(data[4:], size, _refuse)
    except _NotPacked:
        content = None
    expect(_peak_bytes() - before < _GROWTH_BYTES_MAX, f"memory far over the {size} bytes that were expected")
    if content is None:
        return False
    expect(len(content) == size, "another size than was expected")
    expect(unpack(pack(content), size, _refuse) == content, "content that packs to another one")
    return True


def _packed_seeds() -> list[bytes]:
    contents = [b"a", bytes(1000), bytes(range(256)) * 3, bytes(_PACKED_BYTES_MAX)]
    return [struct.pack("<I", len(content)) + pack(content) for content in contents]


# --- entries of logs ------------------------------------------------------------------------------


def _run_log_entry(data: bytes) -> bool:
    accepted = False
    for decode in (_decode_batch, _decode_numbering, _decode_checkpoint):
        try:
            decode(data)
            accepted = True
        except EntryCorrupt:
            continue
    return accepted


def _run_headers(data: bytes) -> bool:
    def refuse(why: str) -> NoReturn:
        raise EntryCorrupt(_LEDGER, _ENTRY, why)

    try:
        found = decode_headers(data, refuse)
    except EntryCorrupt:
        return False
    expect(encode_headers(found) == data, "headers that are not the bytes they came from")
    expect(headers_size(found) == len(data), "headers of another size than their bytes")
    return True


def _headers_seeds() -> list[bytes]:
    given: list[list[tuple[str, bytes]]] = [[], [("a", b"xy")], [("a", b""), ("a", b"1"), ("\u00e9", b"z")]]
    return [encode_headers(pairs) for pairs in given]


def _decode_batch(data: bytes) -> None:
    header, batch = decode_entry(data, ledger_id=_LEDGER, entry_id=_ENTRY)
    expect(header == decode_header(data, ledger_id=_LEDGER, entry_id=_ENTRY), "two different headers")
    expect(len(batch.payloads) == header.record_count, "another number of records than the header says")
    expect(batch.byte_length == header.byte_length, "other bytes than the header says")


def _decode_numbering(data: bytes) -> None:
    header, numbering = decode_numbering(data, ledger_id=_LEDGER, entry_id=_ENTRY)
    ends = [0]
    for numbered in numbering.numbered:
        expect(ends[-1] <= numbered.slot, "producers in the wrong order")
        ends.append(numbered.slot + numbered.length)
    expect(ends[-1] <= header.record_count, "more numbered records than records")


def _decode_checkpoint(data: bytes) -> None:
    states = decode_checkpoint(data, ledger_id=_LEDGER, entry_id=_ENTRY)
    header = decode_header(data, ledger_id=_LEDGER, entry_id=_ENTRY)
    again = encode_checkpoint(
        states,
        entry_id=_ENTRY,
        epoch=header.epoch,
        first_offset=header.first_offset,
        timestamp_ms=header.timestamp_ms,
        bytes_before=header.bytes_before,
    )
    expect(decode_checkpoint(again, ledger_id=_LEDGER, entry_id=_ENTRY) == states, "another table")


def _log_entry_seeds() -> list[bytes]:
    place = {"epoch": 2, "first_offset": 100, "timestamp_ms": 1_700_000_000_000, "bytes_before": 5000}
    numbering = Numbering(1, [NumberedRecords("orders", 0, 2, 40)])
    states = [
        ProducerState("orders", 1_700_000_000_000, (SequenceRange(0, 40, 10),)),
        ProducerState("other", 1, (SequenceRange(0, 1, 9),)),
    ]
    return [
        encode_entry([b"a", b"", b"ccc"], **place),
        encode_entry([b"a", b"b"], numbering=numbering, **place),
        encode_entry([b"x" * 300, b"x" * 300], compress=True, **place),
        encode_entry([b"a", b"bc"], attributes={1: Attributes(b"k", encode_headers({"h": b"v"}))}, **place),
        encode_entry([b"x" * 300] * 2, attributes={0: Attributes(b"", b"")}, compress=True, **place),
        encode_checkpoint(states, entry_id=_ENTRY, **place),
    ]


# --- metadata -------------------------------------------------------------------------------------


class _Encodes(Protocol):
    def encode(self) -> bytes: ...


def metadata_target(
    name: str, decode: Callable[[bytes], _Encodes], seeds: Callable[[], Sequence[_Encodes]]
) -> Target:
    """A record of the metadata store: what decodes is written and read back as the same value."""

    def run(data: bytes) -> bool:
        try:
            value = decode(data)
        except MetadataCorrupt:
            return False
        expect(decode(value.encode()) == value, f"a {name} that reads back as another one")
        return True

    return Target(name, run, lambda: [value.encode() for value in seeds()])


def _ledgers() -> list[LedgerMetadata]:
    made = LedgerMetadata.create(
        ledger_id=_LEDGER,
        replication=Replication(ensemble=3, write_quorum=2, ack_quorum=2, guaranteed=True),
        ensemble=[check_bookie_id(f"bookie-{n}") for n in range(3)],
        key=bytes(16),
        token=bytes(range(16)),
        created_ms=1_700_000_000_000,
        custom={"log": b"orders"},
    )
    return [made]


def _logs() -> list[LogMetadata]:
    log = LogMetadata.create(
        name="orders",
        incarnation=_LEDGER,
        created_ms=1_700_000_000_000,
        replication=Replication(),
        roll=RollPolicy(max_records=1000),
        retention=RetentionPolicy(max_age_s=3600),
        properties={"owner": "billing"},
        token=bytes(16),
    )
    return [log]


# --- what people write ----------------------------------------------------------------------------


def _run_text(data: bytes) -> bool:
    """Cluster URIs, positions, names: whatever a person types."""
    accepted = False
    text = data.decode(errors="replace")
    for parse in (_parse_uri, _parse_position, check_bookie_id):
        try:
            parse(text)
            accepted = True
        except InvalidArgument:
            continue
    return accepted


def _parse_uri(text: str) -> None:
    uri = parse_uri(text)
    expect(parse_uri(str(uri)) == uri, f"{text!r} is written as {uri}, which is another one")


def _parse_position(text: str) -> None:
    position = Position.parse(text)
    expect(Position.parse(str(position)) == position, f"{text!r} is another position than {position}")


def _text_seeds() -> list[bytes]:
    return [
        b"memory:?bookies=4",
        b"file:/tmp/a%20b?bookies=3",
        b"sqlite:./x",
        b"zk://h1:2181,[::1]:2182/chroot/a",
        b"12:34:5",
        b"bookie-1",
    ]


def _run_config(data: bytes) -> bool:
    """A bookie's configuration file."""
    try:
        values: dict[str, Any] = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError):
        return False
    try:
        parse_config(values, "fuzzed")
    except InvalidArgument:
        return False
    return True


def _run_lines(data: bytes) -> bool:
    """Any bytes, cut into lines in any pieces, are joined to the same bytes."""
    step = 1 + (data[0] if data else 0)
    cutter = LineCutter()
    lines: list[bytes] = []
    for at in range(0, len(data), step):
        lines += cutter.cut(data[at : at + step])
    unterminated = len(lines) if cutter.holds_a_line else None
    lines += cutter.finish()
    if lines:
        expect(LineJoiner(unterminated).join(0, lines) == data, "lines that join to other bytes")
    return True


def _run_log_name(data: bytes) -> bool:
    try:
        incarnation = decode_name_untrusted(data, "orders/eu")
    except MetadataCorrupt:
        return False
    expect(
        decode_name_untrusted(_encode_name("orders/eu", incarnation), "orders/eu") == incarnation,
        "a name that reads back as that of another log",
    )
    return True


TARGETS = (
    Target("frame", _run_frame, _frame_seeds),
    Target("stream", _run_stream, _stream_seeds),
    Target("beat", _run_beat, _beat_seeds),
    Target("token", _run_token, _token_seeds),
    Target("console_subject", _run_subject, _subject_seeds),
    Target("packed", _run_packed, _packed_seeds),
    Target("log-entry", _run_log_entry, _log_entry_seeds),
    Target("headers", _run_headers, _headers_seeds),
    metadata_target("ledger", lambda data: LedgerMetadata.decode_untrusted(data, _LEDGER), _ledgers),
    metadata_target("log", lambda data: LogMetadata.decode_untrusted(data, _LEDGER), _logs),
    Target("log-name", _run_log_name, lambda: [_encode_name("orders/eu", 7)]),
    metadata_target(
        "registration",
        lambda data: BookieInfo.decode_untrusted(data, _BOOKIE),
        lambda: [BookieInfo(_BOOKIE, "127.0.0.1:3181", "instance", {"rack": "a"})],
    ),
    metadata_target(
        "cookie",
        lambda data: Cookie.decode_untrusted(data, _BOOKIE),
        lambda: [Cookie(_BOOKIE, "instance", "cluster", ("journal", "data"))],
    ),
    metadata_target(
        "restoration",
        Restoration.decode_untrusted,
        lambda: [Restoration(floor=9, counter=-1, backup_ms=1, restored_ms=2)],
    ),
    metadata_target(
        "election",
        lambda data: ElectionState.decode_untrusted(data, "leader"),
        lambda: [
            ElectionState(term=3, holder="h", candidate="c", address="127.0.0.1:1", tenure_ms=9),
            ElectionState(term=3, holder="h").offered(OutOfReach(("b1", "b2"), 1)),
        ],
    ),
    metadata_target(
        "cursor",
        lambda data: CursorState.decode_untrusted(data, "billing", 1),
        lambda: [CursorState(name="billing", offset=3, pins=True, properties={"a": "b"}, updated_ms=5)],
    ),
    metadata_target(
        "repair-settings", RepairSettings.decode_untrusted, lambda: [RepairSettings(paused=True, grace_ms=0)]
    ),
    metadata_target(
        "grants",
        lambda data: Grants.decode_untrusted(data, "client/billing"),
        lambda: [Grants("client/billing", (Grant(Role.READER, "a/"), Grant(Role.WRITER)), is_revoked=True)],
    ),
    metadata_target(
        "placement", PlacementPolicy.decode_untrusted, lambda: [PlacementPolicy(min_racks=3, strict=True)]
    ),
    metadata_target(
        "repair-task",
        lambda data: RepairTask.decode_untrusted(data, _LEDGER),
        lambda: [
            RepairTask(ledger_id=_LEDGER, lost=("b1", "b2"), damaged=("b3",), trouble="too few"),
            RepairTask(ledger_id=_LEDGER, misplaced=("b1",), asks_all=True),
        ],
    ),
    metadata_target(
        "admission",
        Admission.decode_untrusted,
        lambda: [
            OPEN,
            Admission(ProvenBy.SECRET, file="/c/cluster.secret"),
            Admission(ProvenBy.TLS, False),
        ],
    ),
    metadata_target(
        "draining",
        lambda data: Draining.decode_untrusted(data, _BOOKIE),
        lambda: [Draining(bookie_id=_BOOKIE, instance="instance", asked_at_ms=7)],
    ),
    metadata_target(
        "audit",
        AuditState.decode_untrusted,
        lambda: [AuditState(auditor="a", metadata_at_ms=1, ledgers=2, absent={"b1": 5})],
    ),
    metadata_target(
        "repair-progress",
        WorkerProgress.decode_untrusted,
        lambda: [WorkerProgress(name="w", entries=3, work=(LedgerWork(ledger_id=1, doing="recovery"),))],
    ),
    Target("text", _run_text, _text_seeds),
    Target(
        "config",
        _run_config,
        lambda: [b"compact_soon_ratio = 0.3\n", b"segment_bytes = 33554432\narenas = 4\n"],
    ),
    Target("lines", _run_lines, lambda: [b"one\n\ntwo\nrest", b"\n", b"\x02a\nb\n"]),
)
