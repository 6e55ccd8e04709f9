"""A ledger's metadata: the value that compare-and-set protects (protocol A.1).

``LedgerMetadata`` is immutable. Each legal change of state is a method that returns the next value. The
methods assert the rules that must hold before the metadata is written:

    OPEN -> OPEN           ensemble change by the owner: the last fragment is replaced or one is appended
    OPEN -> IN_RECOVERY    a recoverer announces itself; the writer changes no fragment after this (T12)
    OPEN -> CLOSED         by the owner, at its LAC
    IN_RECOVERY -> CLOSED  by a recoverer, which publishes its private fragments together with the end
    CLOSED -> CLOSED       its labels are replaced when it becomes part of a log (``log.attach``)
    any -> same state      repair replaces a bookie in a fragment, but not in the last one of an open ledger

``first_entry`` grows strictly from fragment to fragment (R-B4). An entry belongs to the last fragment that
starts at or before it. ``last_entry`` is set exactly if the ledger is CLOSED, and never changes. Every entry
before the last fragment is committed, so a ledger never ends before its last fragment.

``token`` is a random value of the process that wrote this version. If the reply to a write is lost, the
writer reads the metadata again and recognizes its own write by the token (rule 14). ``key`` is the ledger's
secret, which the bookies also know.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Mapping, Sequence

import attrs

from ledgerlog.errors import InvalidArgument
from ledgerlog.errors import MetadataCorrupt as MetadataCorrupt  # Decoders import it from here.
from ledgerlog.limits import ENTRY_ID_MAX, LEDGER_KEY_BYTES
from ledgerlog.model.checks import require, utf8_size
from ledgerlog.model.codec import Fields, decode_record_untrusted, encode_record, kept_unknown
from ledgerlog.model.ids import NO_ENTRY, BookieId, check_bookie_id, check_ledger_id
from ledgerlog.model.quorum import Replication, has_duplicates, read_replication, replication_fields

_FORMAT = 1


class LedgerState(enum.Enum):
    """The state of a ledger."""

    OPEN = "OPEN"
    """The ledger has a writer, or its writer died and the ledger was not recovered yet."""
    IN_RECOVERY = "IN_RECOVERY"
    """A recoverer is finding its end."""
    CLOSED = "CLOSED"
    """The ledger's last entry is known, and never changes again."""


@attrs.frozen
class Fragment:
    """A range of a ledger's entries with one ensemble: from ``first_entry`` to the next fragment's start."""

    first_entry: int
    """The first entry of the range."""
    ensemble: tuple[BookieId, ...]
    """The bookies over which the range is striped, by slot."""


@attrs.frozen
class LedgerMetadata:
    """The metadata of a ledger. See ``ledgerlog.model.ledger`` for the rules."""

    ledger_id: int
    """The id of the ledger, 0 to 2**63 - 1."""
    replication: Replication
    """Its ensemble size and quorums."""
    state: LedgerState
    """Whether the ledger is OPEN, IN_RECOVERY or CLOSED."""
    fragments: tuple[Fragment, ...]
    """The ranges of entries and their ensembles, in order."""
    last_entry: int | None
    """The last entry of a CLOSED ledger, -1 if it is empty; None in the other states."""
    key: bytes
    """The secret that bookies ask for before they take an add or a fence."""
    token: bytes
    """A random value of the process that wrote this version."""
    created_ms: int
    """Wall-clock time of creation, in milliseconds since 1970. It is only shown to people; no decision
    depends on it."""
    custom: dict[str, bytes] = attrs.field(factory=dict)
    """The ledger's labels, from text to bytes. The user or the log that owns the ledger sets them."""
    unknown: bytes = kept_unknown()
    """The keys of a later version, as bytes; see ``model.codec.kept_unknown``."""

    def __attrs_post_init__(self) -> None:
        require(bool(self.fragments), "a ledger has at least one fragment")
        require(self.fragments[0].first_entry == 0, "the first fragment starts at entry 0")
        previous = NO_ENTRY
        for fragment in self.fragments:
            first, ensemble = fragment.first_entry, fragment.ensemble
            if first <= previous:
                require(False, f"fragment starts strictly grow (R-B4), but {first} follows {previous}")
            if len(ensemble) != self.replication.ensemble:
                words = f"an ensemble has E bookies, {self.replication.ensemble}"
                require(
                    False, f"{words}, but the ensemble of the fragment at entry {first} has {len(ensemble)}"
                )
            if has_duplicates(ensemble):
                twice = next(bookie for bookie in ensemble if ensemble.count(bookie) > 1)
                require(
                    False, f"an ensemble names each bookie once, but names {twice} twice at entry {first}"
                )
            previous = first
        closed = self.state is LedgerState.CLOSED
        end = self.last_entry
        if (end is not None) != closed:
            words = f"last_entry is set exactly when CLOSED, but the state is {self.state.value}"
            require(False, f"{words} and last_entry is {end}")
        if end is not None and end < previous - 1:
            words = "a ledger never ends before its last fragment: the entries before it are committed (R-B3)"
            require(False, f"{words}, but last_entry is {end}, and the fragment starts at entry {previous}")
        if len(self.key) != LEDGER_KEY_BYTES:
            require(False, f"the key has {LEDGER_KEY_BYTES} bytes, not {len(self.key)}")

    @classmethod
    def create(
        cls,
        *,
        ledger_id: int,
        replication: Replication,
        ensemble: Sequence[BookieId],
        key: bytes,
        token: bytes,
        created_ms: int,
        custom: dict[str, bytes] | None = None,
    ) -> LedgerMetadata:
        """Return the metadata of a new, OPEN, empty ledger.

        Args:
            ledger_id: The new id.
            replication: The ensemble size and quorums.
            ensemble: The bookies of the first fragment, ``replication.ensemble`` of them.
            key: The ledger's secret, ``limits.LEDGER_KEY_BYTES`` (16) random bytes.
            token: A random value of the caller.
            created_ms: Wall clock, in milliseconds since 1970.
            custom: The ledger's labels.

        Returns:
            The metadata.
        """
        return cls(
            ledger_id=ledger_id,
            replication=replication,
            state=LedgerState.OPEN,
            fragments=(Fragment(0, tuple(ensemble)),),
            last_entry=None,
            key=key,
            token=token,
            created_ms=created_ms,
            custom=dict(custom or {}),
        )

    # --- questions ----------------------------------------------------------------------------

    @property
    def last_fragment(self) -> Fragment:
        """The fragment that new entries go to."""
        return self.fragments[-1]

    @property
    def surely_committed(self) -> int:
        """The last entry that is certainly committed: the end of a closed ledger, otherwise the entry before
        the last fragment."""
        return self.last_fragment.first_entry - 1 if self.last_entry is None else self.last_entry

    @property
    def is_closed(self) -> bool:
        """Whether the ledger is CLOSED."""
        return self.state is LedgerState.CLOSED

    def fragment_of(self, entry_id: int) -> Fragment:
        """Return the fragment that an entry belongs to.

        Args:
            entry_id: The entry, at least 0.
        """
        return self.fragments[self.fragment_index(entry_id)]

    def fragment_index(self, entry_id: int) -> int:
        """Return the index of the fragment that an entry belongs to.

        Args:
            entry_id: The entry, at least 0.
        """
        assert entry_id >= 0
        low, high = 0, len(self.fragments) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.fragments[middle].first_entry <= entry_id:
                low = middle
            else:
                high = middle - 1
        return low

    def fragment_end(self, index: int) -> int | None:
        """Return the last entry of a fragment, or None if the fragment is still open.

        If the fragment is empty, this is ``first_entry - 1``.

        Args:
            index: The index of the fragment in ``fragments``.
        """
        if index + 1 < len(self.fragments):
            return self.fragments[index + 1].first_entry - 1
        return self.last_entry

    def bookies_of(self, entry_id: int) -> tuple[BookieId, ...]:
        """Return the bookies of an entry's write set, in the order of the write set.

        Args:
            entry_id: The entry, at least 0.
        """
        ensemble = self.fragment_of(entry_id).ensemble
        return tuple(ensemble[slot] for slot in self.replication.write_set(entry_id))

    # --- edges --------------------------------------------------------------------------------

    def with_ensemble(self, first_entry: int, ensemble: Sequence[BookieId], token: bytes) -> LedgerMetadata:
        """Return the metadata after an ensemble change of the owner.

        Args:
            first_entry: The first entry that goes to the new ensemble.
            ensemble: The new ensemble.
            token: A random value of the caller.

        Returns:
            The metadata, in state OPEN.
        """
        assert self.state is LedgerState.OPEN, "only the owner of an OPEN ledger changes fragments (T22)"
        return attrs.evolve(
            self, fragments=change_fragments(self.fragments, first_entry, ensemble), token=token
        )

    def in_recovery(self, token: bytes) -> LedgerMetadata:
        """Return the metadata with which a recoverer announces itself.

        Args:
            token: A random value of the caller.

        Returns:
            The metadata, in state IN_RECOVERY.
        """
        assert self.state is LedgerState.OPEN, "a recoverer that joins writes nothing (D9)"
        return attrs.evolve(self, state=LedgerState.IN_RECOVERY, token=token)

    def closed(
        self, last_entry: int, token: bytes, fragments: tuple[Fragment, ...] | None = None
    ) -> LedgerMetadata:
        """Return the metadata of the closed ledger.

        Args:
            last_entry: The last entry, -1 if the ledger is empty.
            token: A random value of the caller.
            fragments: The fragments that a recoverer kept private until now; None leaves them unchanged.

        Returns:
            The metadata, in state CLOSED.
        """
        assert self.state is not LedgerState.CLOSED, "the end of a ledger never changes"
        fragments = self.fragments if fragments is None else fragments
        assert last_entry >= fragments[-1].first_entry - 1, "entries before a fragment are committed (R-B3)"
        return attrs.evolve(
            self, state=LedgerState.CLOSED, last_entry=last_entry, fragments=fragments, token=token
        )

    def with_replacement(
        self, fragment_index: int, old: BookieId, new: BookieId, token: bytes
    ) -> LedgerMetadata:
        """Return the metadata after a repair: ``new`` takes the slot of ``old`` in one fragment.

        Args:
            fragment_index: The fragment. Repair has already copied its entries to ``new``.
            old: The bookie that leaves.
            new: The bookie that takes its slot.
            token: A random value of the caller.

        Returns:
            The metadata, in the same state.
        """
        assert self.is_closed or fragment_index < len(self.fragments) - 1, (
            "the last fragment of an open ledger belongs to its writer (rule 20)"
        )
        fragment = self.fragments[fragment_index]
        assert old in fragment.ensemble, f"{old} cannot be replaced, because it is not in the fragment"
        ensemble = tuple(new if bookie == old else bookie for bookie in fragment.ensemble)
        fragments = list(self.fragments)
        fragments[fragment_index] = attrs.evolve(fragment, ensemble=ensemble)
        return attrs.evolve(self, fragments=tuple(fragments), token=token)

    def with_labels(self, labels: dict[str, bytes], token: bytes) -> LedgerMetadata:
        """Return the metadata with other labels. The ledger must be CLOSED.

        Args:
            labels: All labels of the ledger, a mapping from text to bytes.
            token: A random value of the caller.

        Returns:
            The metadata, in state CLOSED.
        """
        assert self.is_closed, "only its writer changes the metadata of an open ledger"
        return attrs.evolve(self, custom=dict(labels), token=token)

    # --- bytes --------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Encode the metadata as canonical CBOR; see docs/FORMATS.md."""
        return encode_record(
            {
                "v": _FORMAT,
                "id": self.ledger_id,
                **replication_fields(self.replication),
                "state": self.state.value,
                "last_entry": self.last_entry,
                "first_entries": [fragment.first_entry for fragment in self.fragments],
                "ensembles": [list(fragment.ensemble) for fragment in self.fragments],
                "key": self.key,
                "token": self.token,
                "created_ms": self.created_ms,
                "custom": self.custom,
            },
            lambda data: LedgerMetadata.decode_untrusted(data, self.ledger_id),
            unknown=self.unknown,
        )

    @classmethod
    def decode_untrusted(cls, data: bytes, ledger_id: int) -> LedgerMetadata:
        """Decode the bytes that ``encode`` gave.

        Args:
            data: The bytes.
            ledger_id: The ledger whose metadata they should be.

        Returns:
            The metadata.

        Raises:
            MetadataCorrupt: The bytes are damaged or describe another ledger. The message names the ledger
                and the field.
        """
        what = f"metadata of ledger {ledger_id}"
        fields = decode_record_untrusted(data, what, MetadataCorrupt)
        fields.format(_FORMAT)
        if fields.integer("id") != ledger_id:
            fields.fail("it describes another ledger")
        try:
            return cls(
                ledger_id=check_ledger_id(ledger_id),
                replication=read_replication(fields),
                state=_decode_state(fields),
                fragments=_decode_fragments(fields),
                last_entry=(
                    None
                    if fields.optional("last_entry", int) is None
                    else fields.integer("last_entry", low=NO_ENTRY, high=ENTRY_ID_MAX)
                ),
                key=fields.get("key", bytes),
                token=fields.get("token", bytes),
                created_ms=fields.integer("created_ms"),
                custom=fields.blobs("custom"),
                unknown=fields.unknown(),
            )
        except (ValueError, AssertionError) as cause:
            raise MetadataCorrupt(f"{what}: {cause}") from cause


def change_fragments(
    fragments: tuple[Fragment, ...], first_entry: int, ensemble: Sequence[BookieId]
) -> tuple[Fragment, ...]:
    """Return the fragments after an ensemble change at ``first_entry``.

    If the last fragment would be left without entries, it is replaced. Otherwise a new one is appended.
    """
    last = fragments[-1]
    assert first_entry >= last.first_entry, "a fragment never starts before the one it follows (R-B4)"
    changed = Fragment(first_entry, tuple(ensemble))
    if last.first_entry == first_entry:
        return (*fragments[:-1], changed)
    return (*fragments, changed)


def check_custom(custom: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a copy of a caller's labels. Raise InvalidArgument if they do not map text to bytes.

    With other types, the ledger's metadata would be unreadable. Then no entry of the ledger could be read.
    """
    for key, value in custom.items():
        if not isinstance(key, str) or not isinstance(value, bytes):
            raise InvalidArgument(f"the labels of a ledger map text to bytes, not {key!r}: {value!r:.80}")
        utf8_size(key)
    return dict(custom)


def _decode_state(fields: Fields) -> LedgerState:
    text = fields.get("state", str)
    try:
        return LedgerState(text)
    except ValueError:
        fields.fail(f"the field 'state' is {text[:32]!r}")


def _decode_fragments(fields: Fields) -> tuple[Fragment, ...]:
    starts = fields.sequence("first_entries", int)
    ensembles = fields.sequence("ensembles", list)
    if len(starts) != len(ensembles) or not starts:
        fields.fail("it needs one ensemble for each fragment start, and at least one")
    for before, start in itertools.pairwise([NO_ENTRY, *starts]):
        if not before < start <= ENTRY_ID_MAX or (before == NO_ENTRY and start):
            fields.fail(
                f"the field 'first_entries' has {start} after {before}: the fragment starts must grow "
                f"from 0, up to {ENTRY_ID_MAX}"
            )
    try:
        return tuple(
            Fragment(start, tuple(check_bookie_id(bookie) for bookie in ensemble))
            for start, ensemble in zip(starts, ensembles, strict=True)
        )
    except InvalidArgument as cause:
        fields.fail(f"the field 'ensembles': {cause}")
