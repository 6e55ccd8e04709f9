"""No encoder writes bytes that its decoder refuses: it refuses with its own error, or is read back equal.

This covers every codec of records and of messages: with numbers at and past each bound, and with texts and
bytes of every kind and size. Some of these compress to almost nothing, others do not compress at all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import cbor2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bookie.core.loss_marks import LossMarks
from ledgerlog.errors import InvalidArgument, LedgerLogError, RecordTooLarge
from ledgerlog.limits import (
    ENTRY_BYTES_MAX,
    FRAME_BYTES_MAX,
    LOG_PRODUCERS_MAX,
    METADATA_BYTES_MAX,
    RECORD_BYTES_MAX,
    SCRUB_RANGES_MAX,
    SCRUB_SUMS_MAX,
)
from ledgerlog.log import registry
from ledgerlog.machine.core.replica import RequestTable
from ledgerlog.model.access import Grant, Grants, Role
from ledgerlog.model.admission import Admission, ProvenBy
from ledgerlog.model.archive import ArchiveDestination, ArchivedFile, ArchivedLedger
from ledgerlog.model.attach import SpliceMark
from ledgerlog.model.attributes import Attributes, decode_headers, encode_headers
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.command import CommandOutcome, Envelope
from ledgerlog.model.cursor import CursorState
from ledgerlog.model.election import ElectionState
from ledgerlog.model.gathered import ReplacedLedgers
from ledgerlog.model.ledger import Fragment, LedgerMetadata, LedgerState
from ledgerlog.model.log import LogListFull, LogMetadata
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.model.policies import RetentionPolicy, RollPolicy
from ledgerlog.model.principal import Principal, PrincipalKind
from ledgerlog.model.producer import NumberedRecords, ProducerState, SequenceRange
from ledgerlog.model.quorum import Replication
from ledgerlog.model.reach import OutOfReach
from ledgerlog.model.record import RecordBatch
from ledgerlog.model.repair import (
    AuditState,
    Draining,
    LedgerWork,
    RepairSettings,
    RepairTask,
    WorkerProgress,
)
from ledgerlog.model.restoration import Restoration
from ledgerlog.model.segments import LogSegment
from ledgerlog.model.snapshots import ListedSnapshot, decode_snapshot_list_untrusted, encode_snapshot_list
from ledgerlog.model.splice_request import SpliceRequest
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.wire.beats import Beat, BeatKind
from ledgerlog.wire.commands import decode_envelope_untrusted, encode_envelope
from ledgerlog.wire.frame import (
    Status,
    decode_frame_untrusted,
    decode_pairs_untrusted,
    encode_pairs,
)
from ledgerlog.wire.hello import Hello, decode_hello_untrusted, encode_hello, encode_hello_reply
from ledgerlog.wire.ledgers import LedgerOnBookie, decode_ledgers_untrusted, encode_ledgers
from ledgerlog.wire.producers import decode_numbered, decode_table, encode_numbered, encode_table
from ledgerlog.wire.proof import PROOF_BYTES, decode_proof_untrusted, encode_proof
from ledgerlog.wire.records import (
    Numbering,
    decode_checkpoint,
    decode_entry,
    decode_numbering,
    encode_checkpoint,
    encode_entry,
)
from ledgerlog.wire.scrub import ScrubReport, decode_scrub_untrusted, encode_scrub
from ledgerlog.wire.snapshots import SnapshotHead, decode_snapshot_untrusted, encode_snapshot

REFUSALS = (InvalidArgument, RecordTooLarge, LogListFull, AssertionError)
"""The named errors, and the rules that ``model.checks.require`` asserts where a record is made."""

EDGES = (-1, 0, 1, 2, 255, 2**31 - 1, 2**32 - 1, 2**32, 2**53, 2**63 - 2, 2**63 - 1, 2**63, 2**64 - 1, 2**64)

numbers = st.sampled_from(EDGES) | st.integers(0, 100)
times = st.sampled_from((0, 1, 253_402_300_799_000, 253_402_300_799_001, -1, 2**63))
names = st.sampled_from(("b1", "orders", "", "a b", "x" * 128, "x" * 129, "ä" * 128, "\ud800", "/", "a//b"))
texts = names | st.text(max_size=20)
blobs = st.sampled_from((b"", b"\0", bytes(8), bytes(16), bytes(32), bytes(33))) | st.binary(max_size=40)
bookies = st.lists(names, max_size=4).map(tuple)


@attrs.frozen
class Codec:
    """One kind of record or message, with functions that make, encode and decode its values."""

    values: st.SearchStrategy[Callable[[], Any]]
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes, Any], Any]
    sized: Callable[[bytes], Any] | None = None
    """Return a value that holds these bytes, or a text of as many characters; used to test size bounds."""


def election_state(offer: OutOfReach | None, **fields: Any) -> ElectionState:
    return ElectionState(**fields).offered(offer)


def fields_of(make: Callable[..., Any], **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return functions that make values. They are not called yet, because making a value may refuse too."""
    return st.fixed_dictionaries(fields).map(lambda drawn: lambda: make(**drawn))


def text_of(data: bytes) -> str:
    return data.decode("latin-1")


LEDGER = LedgerMetadata.create(
    ledger_id=7,
    replication=Replication(3, 3, 2),
    ensemble=["b1", "b2", "b3"],
    key=bytes(16),
    token=b"t",
    created_ms=1,
)
LOG = LogMetadata.create(
    name="orders", incarnation=5, created_ms=1, token=b"t", replication=Replication(3, 3, 2)
)
COOKIE = Cookie("b1", "i", "c")
MARK = SpliceMark(producer="p", source="s", batch=1, run="r", former=(), epoch=1, token=b"t")
ARCHIVE = ArchivedFile(
    log="orders",
    incarnation=5,
    file="file:///a",
    file_bytes=1,
    footer=bytes(32),
    ledgers=(ArchivedLedger(ledger_id=7, first_offset=0, end_offset=10, last_entry=2),),
    record_count=10,
    compacted=False,
    digest=bytes(32),
    archived_ms=1,
    token=b"t",
)
ledger_spans = st.lists(
    st.tuples(numbers, numbers, numbers, numbers).map(
        lambda n: ArchivedLedger(ledger_id=n[0], first_offset=n[1], end_offset=n[2], last_entry=n[3])
    ),
    max_size=2,
).map(tuple)
segments = st.lists(
    st.builds(
        LogSegment,
        numbers,
        st.sampled_from((0, 1, 2, 2**63)),
        numbers,
        numbers,
        numbers,
        st.sampled_from((0, 5, 4, 2**63 - 1)),
        st.sampled_from((5, 2**63 - 1, 2**63)),
    ),
    max_size=3,
).map(tuple)
runs = st.lists(st.builds(SequenceRange, numbers, numbers, numbers), max_size=17).map(tuple)
states = st.lists(st.builds(ProducerState, texts, numbers, runs), max_size=3)
numbered = st.lists(st.builds(NumberedRecords, texts, numbers, numbers, numbers), max_size=3)
headers_bytes = st.sampled_from((b"", encode_headers([("a", b"1"), ("a", b"")])))
pairs = st.lists(st.tuples(numbers, numbers), max_size=3)
sums = st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3)


def fail(why: str) -> Any:
    raise ValueError(why)


def raw(value: Any) -> bytes:
    return bytes(value.encode())


def frame_of(data: bytes) -> Any:
    return decode_hello_untrusted(decode_frame_untrusted(memoryview(data)))


def request_table(outcomes: list[tuple[str, int, bytes, str | None]]) -> RequestTable:
    table = RequestTable()
    for request, offset, result, error in outcomes:
        table.add(request, CommandOutcome(offset, result, error))
    return table


def snapshot_of(chunks: list[bytes]) -> bytes:
    head = SnapshotHead(log="l", incarnation=1, next_offset=1, timestamp_ms=1, requests=0)
    return b"".join(encode_snapshot(head, [], chunks))


place = {"epoch": numbers, "first_offset": numbers, "timestamp_ms": numbers, "bytes_before": numbers}
small_place = {"epoch": 1, "first_offset": 2, "timestamp_ms": 3, "bytes_before": 4}


def entry(value: dict[str, Any]) -> bytes:
    return encode_entry(**value)


def attributes_in(batch: RecordBatch) -> dict[int, Attributes]:
    found = [(record.key, encode_headers(record.headers)) for record in batch]
    return {slot: Attributes(*each) for slot, each in enumerate(found) if each != (None, b"")}


def read_entry(data: bytes, value: dict[str, Any]) -> dict[str, Any]:
    header, batch = decode_entry(data, ledger_id=7, entry_id=5)
    numbering = decode_numbering(data, ledger_id=7, entry_id=5)[1] if header.has_numbering else None
    return {
        **value,
        "records": batch.payloads,
        "epoch": header.epoch,
        "first_offset": header.first_offset,
        "timestamp_ms": header.timestamp_ms,
        "bytes_before": header.bytes_before,
        **({} if "numbering" not in value else {"numbering": numbering}),
        **({} if "attributes" not in value else {"attributes": attributes_in(batch)}),
    }


CODECS: dict[str, Codec] = {
    "registration": Codec(
        fields_of(
            BookieInfo,
            bookie_id=names,
            address=texts,
            instance=texts,
            labels=st.dictionaries(texts, texts, max_size=2),
            place=texts,
        ),
        raw,
        lambda data, value: BookieInfo.decode_untrusted(data, value.bookie_id),
        lambda data: BookieInfo("b1", "a", "i", {"rack": text_of(data)}),
    ),
    "cookie": Codec(
        fields_of(Cookie, bookie_id=names, instance=texts, cluster=texts, directories=bookies),
        raw,
        lambda data, value: Cookie.decode_untrusted(data, value.bookie_id),
        lambda data: attrs.evolve(COOKIE, cluster=text_of(data)),
    ),
    "ledger": Codec(
        fields_of(
            lambda **f: attrs.evolve(LEDGER, **f),
            ledger_id=numbers,
            fragments=st.lists(
                st.builds(Fragment, numbers, st.lists(names, min_size=3, max_size=3).map(tuple)), max_size=3
            ).map(tuple),
            state=st.sampled_from(list(LedgerState)),
            last_entry=st.none() | numbers,
            key=blobs,
            created_ms=numbers,
            custom=st.dictionaries(texts, blobs, max_size=2),
        ),
        raw,
        lambda data, value: LedgerMetadata.decode_untrusted(data, value.ledger_id),
        lambda data: attrs.evolve(LEDGER, custom={"a": data}),
    ),
    "log": Codec(
        fields_of(
            lambda **f: attrs.evolve(LOG, **f),
            name=names,
            incarnation=numbers,
            created_ms=numbers,
            epoch=numbers,
            segments=segments,
            first_offset=numbers,
            before=st.tuples(numbers, numbers, numbers),
            dedupe_epoch=st.none() | numbers,
            properties=st.dictionaries(texts, texts, max_size=2),
        ),
        raw,
        lambda data, value: LogMetadata.decode_untrusted(data, value.incarnation),
        lambda data: attrs.evolve(LOG, properties={"a": text_of(data)}),
    ),
    "policies": Codec(
        fields_of(
            lambda roll, age, kept: attrs.evolve(
                LOG, roll=RollPolicy(max_bytes=roll, max_age_s=age), retention=RetentionPolicy(max_bytes=kept)
            ),
            roll=st.none() | numbers,
            age=st.none() | st.sampled_from((0, 1, 2**53, 2**62, float("inf"), float("nan"))),
            kept=st.none() | numbers,
        ),
        raw,
        lambda data, value: LogMetadata.decode_untrusted(data, value.incarnation),
    ),
    "name of a log": Codec(
        fields_of(lambda name, incarnation: (name, incarnation), name=names, incarnation=numbers),
        lambda value: registry._encode_name(*value),
        lambda data, value: (value[0], registry.decode_name_untrusted(data, value[0])),
    ),
    "election": Codec(
        fields_of(
            election_state,
            term=numbers,
            holder=st.none() | texts,
            candidate=st.none() | texts,
            address=st.none() | texts,
            tenure_ms=numbers,
            offer=st.none()
            | st.builds(OutOfReach, st.lists(st.sampled_from(["b1", "b2"])).map(tuple), numbers),
        ),
        raw,
        lambda data, value: ElectionState.decode_untrusted(data, "e"),
        lambda data: ElectionState(candidate=text_of(data)),
    ),
    "restoration": Codec(
        fields_of(
            Restoration,
            floor=numbers,
            counter=st.just(-1) | numbers,
            backup_ms=numbers,
            restored_ms=numbers,
        ),
        raw,
        lambda data, value: Restoration.decode_untrusted(data),
    ),
    "cursor": Codec(
        fields_of(
            CursorState,
            name=names,
            offset=numbers,
            pins=st.booleans(),
            properties=st.dictionaries(texts, texts, max_size=2),
            updated_ms=numbers,
            token=blobs,
        ),
        raw,
        lambda data, value: CursorState.decode_untrusted(data, value.name, value.version),
        lambda data: CursorState(name="c", offset=1, properties={"a": text_of(data)}),
    ),
    "mark": Codec(
        fields_of(
            SpliceMark,
            producer=names,
            source=texts,
            batch=numbers,
            run=texts,
            former=bookies,
            epoch=numbers,
            token=blobs,
            records=st.none() | numbers,
            end_offset=st.none() | numbers,
        ),
        raw,
        lambda data, value: SpliceMark.decode_untrusted(data, value.producer),
        lambda data: attrs.evolve(MARK, source=text_of(data)),
    ),
    "replaced ledgers": Codec(
        fields_of(
            ReplacedLedgers,
            ledger_id=numbers,
            ledgers=st.lists(numbers, max_size=3).map(tuple),
            at_ms=numbers,
        ),
        raw,
        lambda data, value: ReplacedLedgers.decode_untrusted(data),
        lambda data: ReplacedLedgers(ledger_id=1, ledgers=tuple(data), at_ms=1),
    ),
    "request": Codec(
        fields_of(
            SpliceRequest,
            producer=st.none() | names,
            source=texts,
            run=texts,
            batch=numbers,
            gaps=st.booleans(),
            staged=st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3).map(tuple),
            refused=st.none() | texts,
        ),
        raw,
        lambda data, value: SpliceRequest.decode_untrusted(data),
        lambda data: SpliceRequest(
            producer="p", source=text_of(data), run="r", batch=1, gaps=True, staged=((1, 2, 3, 4),)
        ),
    ),
    "list of snapshots": Codec(
        st.lists(st.tuples(numbers, numbers, numbers), max_size=3).map(
            lambda rows: lambda: [ListedSnapshot(*row) for row in rows]
        ),
        encode_snapshot_list,
        lambda data, value: decode_snapshot_list_untrusted(data, 5),
        lambda data: [ListedSnapshot(2**60 + at, 2**60, byte) for at, byte in enumerate(data[: 10**5])],
    ),
    "archive": Codec(
        fields_of(
            lambda **f: attrs.evolve(ARCHIVE, **f),
            log=names,
            incarnation=numbers,
            file=texts,
            file_bytes=numbers,
            footer=blobs,
            digest=blobs,
            ledgers=ledger_spans,
            record_count=numbers,
            compacted=st.booleans(),
            archived_ms=numbers,
        ),
        raw,
        lambda data, value: ArchivedFile.decode_untrusted(data, value.incarnation),
        lambda data: attrs.evolve(ARCHIVE, file=text_of(data)),
    ),
    "last entry of an archive": Codec(
        fields_of(
            lambda last: attrs.evolve(ARCHIVE, ledgers=(attrs.evolve(ARCHIVE.ledgers[0], last_entry=last),)),
            last=numbers,
        ),
        raw,
        lambda data, value: ArchivedFile.decode_untrusted(data, value.incarnation),
    ),
    "destination": Codec(
        fields_of(ArchiveDestination, where=texts, marker=blobs, made_ms=numbers),
        raw,
        lambda data, value: ArchiveDestination.decode_untrusted(data, "d"),
        lambda data: ArchiveDestination(where=text_of(data), marker=bytes(8), made_ms=1),
    ),
    "settings of repair": Codec(
        fields_of(
            RepairSettings,
            paused=st.booleans(),
            lost_after_ms=numbers,
            bytes_per_s=numbers,
            cluster_bytes_per_s=numbers,
            checks_per_s=numbers,
        ),
        raw,
        lambda data, value: RepairSettings.decode_untrusted(data),
    ),
    "grants": Codec(
        fields_of(
            Grants,
            principal=st.sampled_from(["client/billing", "admin/alice", "bookie/b1"]),
            grants=st.sets(
                st.sampled_from([Grant(Role.ADMIN), Grant(Role.READER), Grant(Role.WRITER, "a/b-")])
            ).map(lambda grants: tuple(sorted(grants, key=lambda grant: grant.sort_key))),
            is_revoked=st.booleans(),
        ),
        raw,
        lambda data, value: Grants.decode_untrusted(data, getattr(value, "principal", "client/billing")),
    ),
    "placement": Codec(
        fields_of(PlacementPolicy, min_racks=numbers, strict=st.booleans()),
        raw,
        lambda data, value: PlacementPolicy.decode_untrusted(data),
    ),
    "repair task": Codec(
        fields_of(
            RepairTask,
            ledger_id=numbers,
            lost=bookies,
            damaged=bookies,
            misplaced=bookies,
            asks_all=st.booleans(),
            made_at_ms=times,
            trouble=st.none() | texts,
        ),
        raw,
        lambda data, value: RepairTask.decode_untrusted(data, value.ledger_id),
        lambda data: RepairTask(ledger_id=7, trouble=text_of(data)),
    ),
    "admission": Codec(
        fields_of(Admission, by=st.sampled_from(list(ProvenBy)), is_required=st.booleans()),
        raw,
        lambda data, _: Admission.decode_untrusted(data),
    ),
    "draining": Codec(
        fields_of(Draining, bookie_id=names, instance=texts, asked_at_ms=times),
        raw,
        lambda data, value: Draining.decode_untrusted(data, value.bookie_id),
        lambda data: Draining(bookie_id="b1", instance=text_of(data)),
    ),
    "audit": Codec(
        fields_of(
            AuditState,
            auditor=texts,
            metadata_at_ms=times,
            ledgers=numbers,
            absent=st.dictionaries(texts, times, max_size=2),
            settings=st.none() | st.just(RepairSettings()),
        ),
        raw,
        lambda data, value: AuditState.decode_untrusted(data),
        lambda data: AuditState(auditor=text_of(data)),
    ),
    "progress of repair": Codec(
        fields_of(
            WorkerProgress,
            name=texts,
            repaired=numbers,
            entries=numbers,
            work=st.lists(st.builds(LedgerWork, ledger_id=st.integers(0, 9), doing=texts), max_size=3).map(
                tuple
            ),
        ),
        raw,
        lambda data, value: WorkerProgress.decode_untrusted(data),
        lambda data: WorkerProgress(name=text_of(data)),
    ),
    "hello": Codec(
        fields_of(
            Hello, bookie_id=names, instance=st.none() | texts, cluster=st.none() | texts, protocol=numbers
        ),
        encode_hello,
        lambda data, value: frame_of(data),
        lambda data: Hello("b1", text_of(data)),
    ),
    "token": Codec(
        fields_of(
            lambda kind, name, scope, expires_s: Token(Principal(kind, name), scope, expires_s),
            kind=st.sampled_from(PrincipalKind),
            name=names,
            scope=st.sampled_from(TokenScope),
            expires_s=numbers,
        ),
        lambda token: token.encode(bytes(32)).encode(),
        lambda data, _: Token.decode_untrusted(data.decode())[0],
    ),
    "proof": Codec(
        st.binary(min_size=PROOF_BYTES, max_size=PROOF_BYTES).map(lambda proof: lambda: proof),
        encode_proof,
        lambda data, _: decode_proof_untrusted(decode_frame_untrusted(memoryview(data))),
    ),
    "reply to hello": Codec(
        fields_of(Hello, bookie_id=names, instance=texts, cluster=st.none() | texts, protocol=numbers),
        lambda value: encode_hello_reply(Status.OK, value),
        lambda data, value: frame_of(data),
    ),
    "heartbeat": Codec(
        fields_of(Beat, kind=st.sampled_from(list(BeatKind)), term=numbers, candidacy=blobs),
        raw,
        lambda data, value: Beat.decode_untrusted(data),
    ),
    "ranges": Codec(
        pairs.map(lambda value: lambda: value),
        encode_pairs,
        lambda data, value: decode_pairs_untrusted(memoryview(data)),
    ),
    "scrub": Codec(
        fields_of(ScrubReport, sound=pairs, unsound=pairs, sums=sums),
        encode_scrub,
        lambda data, value: decode_scrub_untrusted(memoryview(data)),
    ),
    "ledgers of a bookie": Codec(
        fields_of(
            lambda **row: [LedgerOnBookie(**row)],
            ledger_id=numbers,
            last_entry=numbers,
            key=st.binary(max_size=17),
        ),
        encode_ledgers,
        lambda data, value: decode_ledgers_untrusted(memoryview(data)),
    ),
    "command": Codec(
        fields_of(Envelope, timestamp_ms=numbers, seed=numbers, request_id=texts, data=blobs),
        encode_envelope,
        lambda data, value: decode_envelope_untrusted(data),
        lambda data: Envelope(timestamp_ms=1, seed=1, request_id=text_of(data)),
    ),
    "head of a snapshot": Codec(
        fields_of(
            SnapshotHead,
            log=texts,
            incarnation=numbers,
            next_offset=numbers,
            timestamp_ms=numbers,
            requests=numbers,
            epoch=st.none() | numbers,
        ),
        raw,
        lambda data, value: SnapshotHead.decode_untrusted(data),
        lambda data: SnapshotHead(
            log=text_of(data), incarnation=1, next_offset=1, timestamp_ms=1, requests=0
        ),
    ),
    "snapshot": Codec(
        st.lists(blobs, max_size=3).map(lambda value: lambda: value),
        snapshot_of,
        lambda data, value: decode_snapshot_untrusted(data).chunks,
        lambda data: [data],
    ),
    "numbering": Codec(
        numbered.map(lambda value: lambda: value),
        encode_numbered,
        lambda data, value: decode_numbered(data, 2**32, fail),
    ),
    "table of producers": Codec(
        states.map(lambda value: lambda: value),
        encode_table,
        lambda data, value: decode_table(data, fail),
    ),
    "checkpoint": Codec(
        fields_of(lambda **f: f, states=states, **place),
        lambda value: encode_checkpoint(entry_id=5, **value),
        lambda data, value: {**value, "states": decode_checkpoint(data, ledger_id=7, entry_id=5)},
    ),
    "entry": Codec(
        fields_of(
            lambda **f: f,
            records=st.lists(blobs, min_size=1, max_size=3),
            compress=st.booleans(),
            **place,
        ),
        entry,
        read_entry,
        lambda data: {"records": [data], "compress": False, **small_place},
    ),
    "entry with keys and headers": Codec(
        fields_of(
            lambda attributes, **f: {**f, "attributes": {0: Attributes(*attributes)}},
            records=st.lists(blobs, min_size=1, max_size=3),
            compress=st.booleans(),
            attributes=st.tuples(blobs, headers_bytes),
            **place,
        ),
        entry,
        read_entry,
        lambda data: {
            "records": [b"", data[: RECORD_BYTES_MAX // 2]],
            "compress": True,
            "attributes": {0: Attributes(data[:-1], b""), 1: Attributes(None, encode_headers({"a": data}))},
            **small_place,
        },
    ),
    "headers": Codec(
        st.lists(st.tuples(texts, blobs), max_size=3).map(lambda value: lambda: tuple(value)),
        encode_headers,
        lambda data, value: decode_headers(data, fail),
        lambda data: ((text_of(data), b""), ("a", data)),
    ),
    "packed entry": Codec(
        fields_of(lambda **f: f, records=st.lists(blobs, min_size=1), compress=st.just(True), **place),
        entry,
        read_entry,
        lambda data: {"records": [data, data], "compress": True, **small_place},
    ),
    "many empty records": Codec(
        st.just(lambda: {"records": [b""], "compress": True, **small_place}),
        entry,
        read_entry,
        lambda data: {"records": [b""] * (len(data) // 4), "compress": True, **small_place},
    ),
    "numbered entry": Codec(
        fields_of(
            lambda numbered, **f: {**f, "numbering": Numbering(1, numbered)},
            records=st.just([b"a", b"b"]),
            numbered=st.just([NumberedRecords("p", 0, 2, 5)]),
            **place,
        ),
        entry,
        read_entry,
    ),
}

SIZES = (
    1024,
    METADATA_BYTES_MAX - 2048,
    METADATA_BYTES_MAX,
    METADATA_BYTES_MAX + 1,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MAX + 1,
    ENTRY_BYTES_MAX - 4,
    ENTRY_BYTES_MAX + 1,
    FRAME_BYTES_MAX,
    2 * FRAME_BYTES_MAX,
)


def check(codec: Codec, make: Callable[[], Any]) -> bool:
    """Return whether the codec accepted the value. Then check that it is read back equal."""
    try:
        value = make()
        data = codec.encode(value)
    except REFUSALS:
        return False
    assert codec.decode(data, value) == value
    return True


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_written_is_read_back_equal_or_is_refused(name: str, data: st.DataObject) -> None:
    check(CODECS[name], data.draw(CODECS[name].values))


HOSTILE: tuple[Any, ...] = (
    *("x" * 100_000, b"x" * 100_000, "", b"", None, True, 1.5, float("nan"), float("inf")),
    *(-(2**63), -1, 2**62, 2**63 - 1, 2**64 - 1),
    *([], {}, [[]], [-1], [2**62] * 5000, [2**64 - 1], ["x" * 50_000] * 2, [["b"] * 3000], [["x" * 50_000]]),
    *({"x" * 100_000: "y"}, {"x": b"x" * 100_000}, {5: 5}, {f"k{number}": "v" for number in range(3000)}),
)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_a_field_of_a_record_holds_it_is_read_or_refused_in_a_few_words(
    name: str, data: st.DataObject
) -> None:
    try:
        value = data.draw(CODECS[name].values)()
        fields = cbor2.loads(CODECS[name].encode(value))
    except (*REFUSALS, cbor2.CBORDecodeError):
        return
    if not isinstance(fields, dict):
        return  # It is no map, but bytes that happen to decode.
    for field in fields:
        for other in HOSTILE:
            refused = ""
            try:
                CODECS[name].decode(cbor2.dumps({**fields, field: other}, canonical=True), value)
            except LedgerLogError as cause:
                refused = str(cause)
            assert len(refused) < 1000, field


@pytest.mark.long
@pytest.mark.parametrize("kind", ["alike", "random"])
@pytest.mark.parametrize("name", [name for name, codec in CODECS.items() if codec.sized is not None])
def test_of_any_size_it_is_read_back_equal_or_is_refused(name: str, kind: str) -> None:
    codec, dice = CODECS[name], random.Random(name)
    sized = codec.sized
    assert sized is not None
    taken = set()
    for size in (0, 1, 128, 129, *SIZES):
        content = b"a" * size if kind == "alike" else dice.randbytes(size)
        if check(codec, partial(sized, content)):
            taken.add(size)
    assert taken, "some size is taken"


def always(value: Any) -> Callable[[], Any]:
    return lambda: value


def test_tables_and_reports_are_bounded_in_both_directions() -> None:
    dice = random.Random(1)
    alike = list(range(LOG_PRODUCERS_MAX + 1))
    mixed = [dice.randrange(2**62) for _ in alike]
    for sequences in (alike, mixed):
        table = [
            ProducerState(f"p{at}", at, (SequenceRange(sequence, 1, at),))
            for at, sequence in enumerate(sequences)
        ]
        assert check(CODECS["table of producers"], always(table[:-1]))
        assert not check(CODECS["table of producers"], always(table))
    scrub = CODECS["scrub"]
    for count, is_taken in ((SCRUB_RANGES_MAX, True), (SCRUB_RANGES_MAX + 1, False)):
        ranges = [(2 * at, 2 * at) for at in range(count)]
        assert check(scrub, always(ScrubReport(ranges, [], []))) is is_taken
        assert check(scrub, always(ScrubReport([], ranges, []))) is is_taken
    for count, is_taken in ((SCRUB_SUMS_MAX, True), (SCRUB_SUMS_MAX + 1, False)):
        rows = [(at, 0, 1, 5) for at in range(count)]
        assert check(scrub, always(ScrubReport([], [], rows))) is is_taken


def test_a_table_of_requests_is_read_back() -> None:
    table = request_table([("a", 3, bytes(10**6), None), ("b", 4, b"", "ValueError")])
    again = RequestTable.decode_untrusted(table.encode())
    assert again.encode() == table.encode()


def test_the_marks_of_a_bookie_are_read_back() -> None:
    for ranges in ((), ((0, 2**63 - 1),), tuple((3 * at, 3 * at + 1) for at in range(10_000))):
        marks = LossMarks(is_unclean=True, fenced_through=2**63 - 1, limbo=ranges)
        assert LossMarks.decode_untrusted(marks.encode(), "marks") == marks


def test_every_codec_of_records_and_messages_is_asked() -> None:
    """The check is by name, so it tells you to add a codec here if you add a decoder."""
    asked = Path(__file__).read_text()
    others = {
        "decode_record_untrusted",  # The decoders of records call it.
        "decode_entries_untrusted",  # Frames of entries: see tests/unit/test_entries.py.
        "decode_header",
        "decode_packed",
    }
    left = []
    for room in ("model", "wire"):
        for file in sorted((Path(__file__).parents[2] / "ledgerlog" / room).glob("*.py")):
            owner = ""
            for line in file.read_text().splitlines():
                if found := re.match(r"class (\w+)", line):
                    owner = found[1]
                elif found := re.match(r"( *)def (decode\w*)\(", line):
                    named = f"{owner}.{found[2]}" if found[1] else found[2]
                    if named not in asked and named not in others:
                        left.append(f"{file.name}: {named}")
    assert not left
