"""Known bugs of repair, and of the clients beside it, put back; see ``tests.scenarios.mutants``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import attrs

from ledgerlog.ledger.core.recovery import LedgerRecovery
from ledgerlog.ledger.core.writer import MetadataIntent, WriterCore
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.repair.core.copy_queue import CopyQueue
from ledgerlog.repair.core.repair import Finding, FragmentRepair, Work
from tests.model import repair_node

Mutant = Callable[[], AbstractContextManager[Any]]


@contextmanager
def the_last_fragment_of_an_open_ledger_is_repaired() -> Iterator[None]:
    """Rule 20. What is copied is all that its owner has acknowledged, as it were."""
    original = repair_node.survey
    end = LedgerMetadata.fragment_end

    def survey(metadata: LedgerMetadata, lost: Collection[str]) -> list[Finding]:
        return [attrs.evolve(one, work=Work.COPY) for one in original(metadata, lost)]

    def fragment_end(self: LedgerMetadata, index: int) -> int | None:
        found = end(self, index)
        return self.fragments[index].first_entry - 1 if found is None else found

    def with_replacement(
        self: LedgerMetadata, index: int, old: str, new: str, token: bytes
    ) -> LedgerMetadata:
        fragments = list(self.fragments)
        ensemble = tuple(new if bookie == old else bookie for bookie in fragments[index].ensemble)
        fragments[index] = attrs.evolve(fragments[index], ensemble=ensemble)
        return attrs.evolve(self, fragments=tuple(fragments), token=token)

    with (
        patch.object(repair_node, "survey", survey),
        patch.object(LedgerMetadata, "fragment_end", fragment_end),
        patch.object(LedgerMetadata, "with_replacement", with_replacement),
    ):
        yield


def new_bookies_are_named_before_they_have_their_copies() -> AbstractContextManager[Any]:
    original = CopyQueue.add

    def add(self: CopyQueue, bookie: str, found: Mapping[int, bytes]) -> None:
        original(self, bookie, found)
        self._unconfirmed.clear()

    return patch.object(CopyQueue, "add", add)


def a_fragment_is_repaired_by_its_first_entry_alone() -> AbstractContextManager[Any]:
    """Rule 24."""
    original = FragmentRepair._look

    def look(self: FragmentRepair) -> None:
        assert self._read is not None
        found, first = self._read.found, self.fragment.first_entry
        for entry_id in [entry_id for entry_id in found if entry_id != first]:
            del found[entry_id]
        original(self)

    return patch.object(FragmentRepair, "_look", look)


def repair_writes_what_it_read_at_first() -> AbstractContextManager[Any]:
    """Rule 13, for repair: the version is read again, but not the metadata at that version."""
    original = FragmentRepair._form_intent

    def form_intent(self: FragmentRepair) -> None:
        self.metadata = self._base
        original(self)

    return patch.object(FragmentRepair, "_form_intent", form_intent)


def the_owner_writes_his_own_older_fragments() -> AbstractContextManager[Any]:
    """Rule 13, for the owner: its next change undoes the change that repair made to an older fragment."""
    original = WriterCore._form_intent

    def form_intent(self: WriterCore) -> None:
        kept = self.metadata
        self.metadata = attrs.evolve(kept, fragments=self.pending.fragments)
        original(self)
        self.metadata = kept

    return patch.object(WriterCore, "_form_intent", form_intent)


def a_recoverer_closes_with_the_older_fragments_that_he_read() -> AbstractContextManager[Any]:
    def form_closing_intent(self: LedgerRecovery) -> None:
        assert self.last_recoverable is not None
        closed = self.metadata.closed(self.last_recoverable, self._new_token(), self.pending.fragments)
        self.intent = MetadataIntent(closed, self.version)

    return patch.object(LedgerRecovery, "_form_closing_intent", form_closing_intent)
