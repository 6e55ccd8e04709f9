"""The records of auto-recovery in the metadata store: settings, tasks, drained bookies, and progress.

    repair/settings           the operator's settings; absent: ``RepairSettings()``
    repair/tasks/...          one for each ledger that a worker must look at, laid out like the ledgers
    repair/draining/ID        the bookie must give up everything that it holds
    repair/audit              the auditor's last results
    repair/workers/TOKEN      exists while the worker lives (ephemeral). The path is never used twice
    repair/progress/TOKEN     the worker's past and present work (ephemeral)
    repair/locks/H...         exists while a worker works on the ledger (ephemeral); the value is its token

All are canonical CBOR maps (``model.codec``), except the last, which is text. Times are in milliseconds. The
fields ``..._at_ms`` count from 1970 and are for people; all other times are durations.

**A task is a hint, not an order.** It names bookies that may be lost, damaged or incomplete. The worker that
takes it looks at the ledger's metadata and at the bookies itself. So an unnecessary task only costs a look,
tasks may be merged, and a task may be out of date.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypedDict, Unpack

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.limits import MIB
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record, kept_unknown, known_fields
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.ledger import MetadataCorrupt

__all__ = [
    "AuditState",
    "Draining",
    "FoundBookies",
    "LedgerWork",
    "RepairSettings",
    "RepairTask",
    "WorkerProgress",
]

_FORMAT = 1
_TEXT_MAX = 2000
_LISTED_MAX = 1000
_TIME_MS_MAX = 253_402_300_799_000
"""The end of the year 9999: later times cannot be shown to people."""
_SETTING_MAX = 2**53
"""A bound above any sensible setting, and below the largest number that a record can hold."""


@attrs.frozen(kw_only=True)
class RepairSettings:
    """The settings that an operator may change while everything runs."""

    paused: bool = False
    """Workers copy and recover nothing. The auditor still makes tasks."""
    lost_after_ms: int = 60_000
    """A bookie that was not registered for this long is lost, and its ledgers are repaired."""
    grace_ms: int = 30_000
    """If the last fragment of an open ledger names a lost bookie, its writer has this long to replace the
    bookie. Then the ledger is recovered, which fences the writer (rule 20)."""
    bytes_per_s: int = 2 * MIB
    """The most bytes that one worker process copies in a second."""
    cluster_bytes_per_s: int = 0
    """The most bytes that all live worker processes together copy in a second. Each gets at most an equal
    share. 0: no common bound, each process has ``bytes_per_s``."""
    bookie_check_ms: int = 3_600_000
    """How often the auditor compares all metadata with the registered bookies."""
    entry_check_ms: int = 86_400_000
    """How often the auditor checks that bookies have the entries that the metadata names; 0 is never."""
    check_all: bool = True
    """If true, the check of entries compares all entries of each fragment with the bookies' lists. If false,
    the check reads only the first and the last entry of each fragment, so it misses holes between them (rule
    24). In version 0.1 the default was false."""
    checks_per_s: int = 50
    """The most requests that the check of entries makes in a second."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __attrs_post_init__(self) -> None:
        for name in ("lost_after_ms", "grace_ms", "entry_check_ms", "cluster_bytes_per_s"):
            if getattr(self, name) < 0:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, below 0")
        for name in ("bytes_per_s", "bookie_check_ms", "checks_per_s"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} is {getattr(self, name)}, below 1")
        for name, value in known_fields(self).items():
            if value > _SETTING_MAX:
                raise InvalidArgument(f"{name} is {value}, above {_SETTING_MAX}")

    def worker_bytes_per_s(self, workers: int) -> int:
        """Return how many bytes one of ``workers`` worker processes may copy in a second."""
        if not self.cluster_bytes_per_s:
            return self.bytes_per_s
        return max(1, min(self.bytes_per_s, self.cluster_bytes_per_s // max(1, workers)))

    def encode(self) -> bytes:
        fields = {"v": _FORMAT, **known_fields(self)}
        return encode_record(fields, RepairSettings.decode_untrusted, unknown=self.unknown)

    @classmethod
    def decode_untrusted(cls, data: bytes) -> RepairSettings:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the field."""
        fields = _fields(data, "the settings of repair")
        try:
            return cls(
                paused=fields.get("paused", bool),
                lost_after_ms=fields.integer("lost_after_ms"),
                grace_ms=fields.integer("grace_ms"),
                bytes_per_s=fields.integer("bytes_per_s"),
                # Older settings do not have this field.
                cluster_bytes_per_s=fields.optional("cluster_bytes_per_s", int) or 0,
                bookie_check_ms=fields.integer("bookie_check_ms"),
                entry_check_ms=fields.integer("entry_check_ms"),
                check_all=fields.get("check_all", bool),
                checks_per_s=fields.integer("checks_per_s"),
                unknown=fields.unknown(),
            )
        except InvalidArgument as cause:
            fields.fail(str(cause))


class FoundBookies(TypedDict, total=False):
    """Findings about bookies of a ledger: the fields of a ``RepairTask`` about bookies."""

    lost: Collection[BookieId]
    damaged: Collection[BookieId]
    incomplete: Collection[BookieId]
    misplaced: Collection[BookieId]
    asks_all: bool


@attrs.frozen(kw_only=True)
class RepairTask:
    """A ledger that a worker must look at."""

    ledger_id: int
    lost: tuple[BookieId, ...] = ()
    """Bookies that are gone, or are being drained."""
    damaged: tuple[BookieId, ...] = ()
    """Bookies that live and have a copy of an entry that fails its digest. They are replaced like lost
    ones."""
    incomplete: tuple[BookieId, ...] = ()
    """Bookies that live and lack entries. A worker copies these entries to them."""
    misplaced: tuple[BookieId, ...] = ()
    """Bookies of write sets that lie in too few racks. A worker moves copies to other racks."""
    asks_all: bool = False
    """Whether any bookie of the ledger may lack entries, and not only the ``incomplete`` ones. Use
    ``is_about_all`` to read it."""
    made_at_ms: int = 0
    trouble: str | None = None
    """Why the last worker could not finish the task; None if no worker has failed."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    @property
    def is_about_all(self) -> bool:
        """Whether any bookie of the ledger may lack entries. A task that names no bookie says so, too: older
        versions do not know ``asks_all``."""
        return self.asks_all or not (self.lost or self.damaged or self.incomplete or self.misplaced)

    def merged(self, **found: Unpack[FoundBookies]) -> RepairTask:
        """Return the task with these findings added."""
        return attrs.evolve(
            self,
            lost=tuple(sorted({*self.lost, *found.get("lost", ())})),
            damaged=tuple(sorted({*self.damaged, *found.get("damaged", ())})),
            incomplete=tuple(sorted({*self.incomplete, *found.get("incomplete", ())})),
            misplaced=tuple(sorted({*self.misplaced, *found.get("misplaced", ())})),
            asks_all=self.asks_all or found.get("asks_all", False),
        )

    def troubled(self, why: str | None) -> RepairTask:
        """Return the task with ``why`` as its trouble."""
        return attrs.evolve(self, trouble=None if why is None else why[:_TEXT_MAX])

    def encode(self) -> bytes:
        misplaced = {"misplaced": list(self.misplaced)} if self.misplaced else {}
        asks_all = {"asks_all": True} if self.asks_all else {}
        return encode_record(
            {
                "v": _FORMAT,
                **misplaced,
                **asks_all,
                "ledger": self.ledger_id,
                "lost": list(self.lost),
                "damaged": list(self.damaged),
                "incomplete": list(self.incomplete),
                "made_at_ms": self.made_at_ms,
                "trouble": self.trouble,
            },
            lambda data: RepairTask.decode_untrusted(data, self.ledger_id),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, ledger_id: int) -> RepairTask:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the ledger and the field."""
        fields = _fields(data, f"the repair task of ledger {ledger_id}")
        if fields.integer("ledger") != ledger_id:
            fields.fail("it is about another ledger")
        return cls(
            ledger_id=ledger_id,
            lost=_bookies(fields, "lost"),
            damaged=_bookies(fields, "damaged"),
            incomplete=_bookies(fields, "incomplete"),
            # Tasks of version 0.1 do not have these two fields.
            misplaced=_bookies(fields, "misplaced") if fields.optional("misplaced", list) else (),
            asks_all=fields.optional("asks_all", bool) or False,
            made_at_ms=fields.integer("made_at_ms", high=_TIME_MS_MAX),
            trouble=fields.optional("trouble", str),
            unknown=fields.unknown(),
        )


@attrs.frozen(kw_only=True)
class Draining:
    """An operator's request that a bookie give up everything that it holds.

    The request covers only the bookie's present data. If the bookie is formatted again under the same id, the
    request does not cover it.
    """

    bookie_id: BookieId
    instance: str
    """The instance in the bookie's cookie at the time of the request."""
    asked_at_ms: int = 0
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def encode(self) -> bytes:
        return encode_record(
            {"v": _FORMAT, "id": self.bookie_id, "instance": self.instance, "asked_at_ms": self.asked_at_ms},
            lambda data: Draining.decode_untrusted(data, self.bookie_id),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, bookie_id: BookieId) -> Draining:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the bookie and the field."""
        fields = _fields(data, f"the draining of bookie {bookie_id}")
        if fields.get("id", str) != bookie_id:
            fields.fail("it names another bookie")
        return cls(
            bookie_id=bookie_id,
            instance=fields.get("instance", str),
            asked_at_ms=fields.integer("asked_at_ms", high=_TIME_MS_MAX),
            unknown=fields.unknown(),
        )


@attrs.frozen(kw_only=True)
class AuditState:
    """The auditor's last results."""

    auditor: str = ""
    metadata_at_ms: int = 0
    """When all metadata was last compared with the bookies; 0 is never."""
    ledgers: int = 0
    """How many ledgers existed then."""
    affected: int = 0
    """How many of them named a lost or drained bookie."""
    entries_at_ms: int = 0
    """When the last check of entries ended; 0 is never."""
    absent: dict[BookieId, int] = attrs.field(factory=dict)
    """Bookies that are not registered, and since when (milliseconds since 1970)."""
    settings: RepairSettings | None = None
    """The last settings that the auditor could read. Processes that cannot read the settings use these."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def encode(self) -> bytes:
        settings = None if self.settings is None else self.settings.encode()
        return encode_record(
            {"v": _FORMAT, **known_fields(self), "settings": settings},
            AuditState.decode_untrusted,
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes) -> AuditState:
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the field."""
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
            unknown=fields.unknown(),
        )


@attrs.frozen(kw_only=True)
class LedgerWork:
    """One ledger that a worker works on."""

    ledger_id: int
    doing: str


@attrs.frozen(kw_only=True)
class WorkerProgress:
    """A worker's report on its work."""

    name: str
    repaired: int = 0
    """Tasks that it has finished."""
    entries: int = 0
    copied_bytes: int = 0
    bytes_per_s: int = 0
    """The rate over the last few seconds."""
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
        """Decode the bytes that ``encode`` gave. Raise MetadataCorrupt with the field."""
        fields = _fields(data, "a repair worker's progress")
        ledgers, doing = fields.sequence("ledgers", int), fields.sequence("doing", str)
        if len(ledgers) != len(doing) or len(ledgers) > _LISTED_MAX:
            fields.fail("its lists of ledgers and of actions differ in length")
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
    fields.format(_FORMAT)
    return fields


def _bookies(fields: Fields, name: str) -> tuple[BookieId, ...]:
    try:
        return tuple(check_bookie_id(bookie) for bookie in fields.sequence(name, str))
    except InvalidArgument as cause:
        fields.fail(f"the field {name!r}: {cause}")
