"""What auto-recovery keeps in the metadata store: settings, tasks, drained bookies, and what its processes
say.

    repair/settings           what an operator set; absent: ``RepairSettings()``
    repair/tasks/...          one for each ledger that somebody has to look at, laid out as the ledgers are
    repair/draining/ID        the bookie is to hold nothing any more
    repair/audit              what the auditor saw last
    repair/workers/TOKEN      a worker lives (ephemeral). The path is never used twice
    repair/progress/TOKEN     what it has done and does (ephemeral)
    repair/locks/H...         the ledger is in a worker's hands (ephemeral); the value is his token

All are canonical CBOR maps (``model.codec``) but the last, which is text. Times are milliseconds: since 1970
where somebody reads them (``..._at_ms``), else durations.

**A task is a hint and no order.** It names bookies that somebody believes lost, damaged or incomplete;
whoever works on it looks at the ledger's metadata and at the bookies himself. So a task too many costs a
look, tasks may be merged, and what a task says need not be true any more.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import MIB
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = ["AuditRecord", "Draining", "LedgerWork", "RepairSettings", "RepairTask", "WorkerProgress"]

_FORMAT = 1
_TEXT_MAX = 2000
_LISTED_MAX = 1000
_TIME_MS_MAX = 253_402_300_799_000
"""The end of the year 9999: times are shown to people."""
_SETTING_MAX = 2**53
"""More than anybody could mean, and less than a record can hold."""


@attrs.frozen(kw_only=True)
class RepairSettings:
    """What an operator may change while everything runs."""

    paused: bool = False
    """Workers copy and recover nothing. Tasks are still made."""
    lost_after_ms: int = 60_000
    """A bookie that was not registered for so long is lost: its ledgers are repaired."""
    grace_ms: int = 30_000
    """The writer of an open ledger whose last fragment names a lost bookie has so long to replace it; then
    the ledger is recovered, which fences the writer (rule 20)."""
    bytes_per_s: int = 2 * MIB
    """What one worker process copies in a second, at most."""
    cluster_bytes_per_s: int = 0
    """What all worker processes that live copy in a second, at most: each has an equal part of it. 0: each
    has ``bytes_per_s``, however many there are."""
    bookie_check_ms: int = 3_600_000
    """How often all metadata is compared with the bookies that are registered."""
    entry_check_ms: int = 86_400_000
    """How often bookies are asked for the entries that metadata says they have; 0 is never."""
    check_all: bool = False
    """Whether that check compares all entries of each fragment by the bookies' lists; else it reads the
    first and the last one, which misses holes (rule 24)."""
    checks_per_s: int = 50
    """Requests that the check of entries makes in a second."""

    def __attrs_post_init__(self) -> None:
        for name in ("lost_after_ms", "grace_ms", "entry_check_ms", "cluster_bytes_per_s"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, below 0")
        for name in ("bytes_per_s", "bookie_check_ms", "checks_per_s"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, below 1")
        for name, value in attrs.asdict(self).items():
            if value > _SETTING_MAX:
                raise InvalidArgument(f"{name} is {value}, above {_SETTING_MAX}")

    def worker_bytes_per_s(self, workers: int) -> int:
        """What one of so many worker processes copies in a second, at most."""
        if not self.cluster_bytes_per_s:
            return self.bytes_per_s
        return max(1, min(self.bytes_per_s, self.cluster_bytes_per_s // max(1, workers)))

    def encode(self) -> bytes:
        return encode_record({"v": _FORMAT, **attrs.asdict(self)}, RepairSettings.decode_untrusted)

    @classmethod
    def decode_untrusted(cls, data: bytes) -> RepairSettings:
        """The inverse of ``encode``; MetadataCorrupt names the field."""
        fields = _fields(data, "the settings of repair")
        try:
            return cls(
                paused=fields.get("paused", bool),
                lost_after_ms=fields.integer("lost_after_ms"),
                grace_ms=fields.integer("grace_ms"),
                bytes_per_s=fields.integer("bytes_per_s"),
                # Settings of before it was there have none.
                cluster_bytes_per_s=fields.optional("cluster_bytes_per_s", int) or 0,
                bookie_check_ms=fields.integer("bookie_check_ms"),
                entry_check_ms=fields.integer("entry_check_ms"),
                check_all=fields.get("check_all", bool),
                checks_per_s=fields.integer("checks_per_s"),
            )
        except InvalidArgument as cause:
            fields.fail(str(cause))


@attrs.frozen(kw_only=True)
class RepairTask:
    """Somebody has to look at a ledger."""

    ledger_id: int
    lost: tuple[BookieId, ...] = ()
    """Bookies that are gone, or are being drained."""
    damaged: tuple[BookieId, ...] = ()
    """Bookies that live and have a copy of it that fails its digest: they are replaced like lost ones."""
    incomplete: tuple[BookieId, ...] = ()
    """Bookies that live and lack entries that they should have: they are given them."""
    made_at_ms: int = 0
    trouble: str | None = None
    """What kept the worker that tried last from finishing it."""

    def merged(
        self,
        *,
        lost: Collection[BookieId] = (),
        damaged: Collection[BookieId] = (),
        incomplete: Collection[BookieId] = (),
    ) -> RepairTask:
        """The task with these added."""
        return attrs.evolve(
            self,
            lost=tuple(sorted({*self.lost, *lost})),
            damaged=tuple(sorted({*self.damaged, *damaged})),
            incomplete=tuple(sorted({*self.incomplete, *incomplete})),
        )

    def troubled(self, why: str | None) -> RepairTask:
        """The task with another reason why it is not done."""
        return attrs.evolve(self, trouble=None if why is None else why[:_TEXT_MAX])

    def encode(self) -> bytes:
        return encode_record(
            {
                "v": _FORMAT,
                "ledger": self.ledger_id,
                "lost": list(self.lost),
                "damaged": list(self.damaged),
                "incomplete": list(self.incomplete),
                "made_at_ms": self.made_at_ms,
                "trouble": self.trouble,
            },
            lambda data: RepairTask.decode_untrusted(data, self.ledger_id),
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, ledger_id: int) -> RepairTask:
        """The inverse of ``encode``; MetadataCorrupt names the ledger and the field."""
        fields = _fields(data, f"the repair task of ledger {ledger_id}")
        if fields.integer("ledger") != ledger_id:
            fields.fail("it is about another ledger")
        return cls(
            ledger_id=ledger_id,
            lost=_bookies(fields, "lost"),
            damaged=_bookies(fields, "damaged"),
            incomplete=_bookies(fields, "incomplete"),
            made_at_ms=fields.integer("made_at_ms", high=_TIME_MS_MAX),
            trouble=fields.optional("trouble", str),
        )


@attrs.frozen(kw_only=True)
class Draining:
    """A bookie is to hold nothing any more. It is about the data that it has now: one that is formatted anew
    under the same id is another bookie."""

    bookie_id: BookieId
    instance: str
    """The cookie's, when it was asked for."""
    asked_at_ms: int = 0

    def encode(self) -> bytes:
        return encode_record(
            {"v": _FORMAT, "id": self.bookie_id, "instance": self.instance, "asked_at_ms": self.asked_at_ms},
            lambda data: Draining.decode_untrusted(data, self.bookie_id),
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, bookie_id: BookieId) -> Draining:
        """The inverse of ``encode``; MetadataCorrupt names the bookie and the field."""
        fields = _fields(data, f"the draining of bookie {bookie_id}")
        if fields.get("id", str) != bookie_id:
            fields.fail("it names another bookie")
        return cls(
            bookie_id=bookie_id,
            instance=fields.get("instance", str),
            asked_at_ms=fields.integer("asked_at_ms", high=_TIME_MS_MAX),
        )


@attrs.frozen(kw_only=True)
class AuditRecord:
    """What the auditor saw last."""

    auditor: str = ""
    metadata_at_ms: int = 0
    """When all metadata was compared with the bookies; 0 is never."""
    ledgers: int = 0
    """Ledgers that were there then."""
    affected: int = 0
    """Those of them that named a lost or drained bookie."""
    entries_at_ms: int = 0
    """When the last check of entries ended; 0 is never."""
    absent: dict[BookieId, int] = attrs.field(factory=dict)
    """Bookies that are not registered, and since when they were missed (milliseconds since 1970)."""
    settings: RepairSettings | None = None
    """The settings that it could read last, for whoever cannot."""

    def encode(self) -> bytes:
        settings = None if self.settings is None else self.settings.encode()
        return encode_record(
            {"v": _FORMAT, **attrs.asdict(self, recurse=False), "settings": settings},
            AuditRecord.decode_untrusted,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes) -> AuditRecord:
        """The inverse of ``encode``; MetadataCorrupt names the field."""
        fields = _fields(data, "the auditor's record")
        absent = fields.get("absent", dict)
        if not all(type(k) is str and type(v) is int and 0 <= v <= _TIME_MS_MAX for k, v in absent.items()):
            fields.fail("the field 'absent' is not a map of text to times")
        settings = fields.optional("settings", bytes)
        return cls(
            auditor=fields.get("auditor", str),
            metadata_at_ms=fields.integer("metadata_at_ms", high=_TIME_MS_MAX),
            ledgers=fields.integer("ledgers"),
            affected=fields.integer("affected"),
            entries_at_ms=fields.integer("entries_at_ms", high=_TIME_MS_MAX),
            absent=absent,
            settings=None if settings is None else RepairSettings.decode_untrusted(settings),
        )


@attrs.frozen(kw_only=True)
class LedgerWork:
    """One ledger that a worker has in its hands."""

    ledger_id: int
    doing: str


@attrs.frozen(kw_only=True)
class WorkerProgress:
    """What one worker says of itself."""

    name: str
    repaired: int = 0
    """Tasks that it has finished."""
    entries: int = 0
    copied_bytes: int = 0
    bytes_per_s: int = 0
    """Over the last few seconds."""
    work: tuple[LedgerWork, ...] = ()

    def encode(self) -> bytes:
        listed = self.work[:_LISTED_MAX]
        return encode_record(
            {
                "v": _FORMAT,
                "name": self.name,
                "repaired": self.repaired,
                "entries": self.entries,
                "copied_bytes": self.copied_bytes,
                "bytes_per_s": self.bytes_per_s,
                "ledgers": [item.ledger_id for item in listed],
                "doing": [item.doing[:_TEXT_MAX] for item in listed],
            },
            WorkerProgress.decode_untrusted,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes) -> WorkerProgress:
        """The inverse of ``encode``; MetadataCorrupt names the field."""
        fields = _fields(data, "a repair worker's progress")
        ledgers, doing = fields.sequence("ledgers", int), fields.sequence("doing", str)
        if len(ledgers) != len(doing) or len(ledgers) > _LISTED_MAX:
            fields.fail("its ledgers and what is done about them are not equally many")
        return cls(
            name=fields.get("name", str),
            repaired=fields.integer("repaired"),
            entries=fields.integer("entries"),
            copied_bytes=fields.integer("copied_bytes"),
            bytes_per_s=fields.integer("bytes_per_s"),
            work=tuple(
                LedgerWork(ledger_id=ledger_id, doing=what)
                for ledger_id, what in zip(ledgers, doing, strict=True)
            ),
        )


def _fields(data: bytes, what: str) -> Fields:
    fields = decode_record_untrusted(data, what, MetadataCorrupt)
    version: Any = fields.integer("v")
    if version != _FORMAT:
        fields.fail(f"this version reads format {_FORMAT}")
    return fields


def _bookies(fields: Fields, name: str) -> tuple[BookieId, ...]:
    try:
        return tuple(check_bookie_id(bookie) for bookie in fields.sequence(name, str))
    except InvalidArgument as cause:
        fields.fail(f"the field {name!r}: {cause}")
