"""The leader's side of requests for splices: it finds the requests, decides which ones can be done, and
answers them.

The leader watches the parent of the requests (``log.splice_requests``), which costs one open watch. If there
are no requests, it does nothing else. ``log.core.chain`` says when the leader can look at a request, and
which record it writes. This module reads a request, decides with ``log.core.attach`` whether the batch may be
spliced, and makes the transaction:

    the log's record      counts the ledger that was closed, lists the staged ledgers and the next ledger
    the producer's mark   moves to the batch
    the staged ledgers    get the labels of a ledger of the log
    the request           is removed

So the batch is spliced once, and only while its request is there. A batch that is in the log already, or that
may not be spliced, is answered by removing the request: the asking process reads the same and draws the same
conclusion. If the transaction is too large, the leader writes the reason into the request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

import attrs

from ledgerlog.errors import InvalidArgument, LogListFull, MetadataCorrupt
from ledgerlog.ledger.client import LedgerClient
from ledgerlog.log.attach import read_mark, read_staged, splice_operations, too_large_for
from ledgerlog.log.core.attach import Commit, Splice, SpliceNeed
from ledgerlog.log.core.chain import ChainSplice
from ledgerlog.log.splice_requests import commit_of
from ledgerlog.meta.settle import CONFLICTS, follow
from ledgerlog.meta.store import Delete, Operation
from ledgerlog.model.codec import RecordTooLong
from ledgerlog.model.layout import request_path, requests_path
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.splice_request import SpliceRequest

__all__ = ["SpliceDesk"]

logger = logging.getLogger(__name__)


@attrs.frozen
class _Admitted:
    """A request whose batch may be spliced."""

    token: str
    request: SpliceRequest
    version: int
    commit: Commit
    core: Splice


class SpliceDesk:
    """The requests to one leader.

    Args:
        client: The client of the cluster.
        name: The name of the log.
        incarnation: The incarnation of the log.
        on_request: Called if requests are there. It must not wait.
    """

    def __init__(
        self, client: LedgerClient, name: str, incarnation: int, *, on_request: Callable[[], None]
    ) -> None:
        self._client = client
        self._name = name
        self._incarnation = incarnation
        self._on_request = on_request
        self._tokens: dict[str, None] = {}
        """The requests that wait, in the order in which they were seen."""
        self._done: set[str] = set()
        """Requests that are answered or cannot be read, as long as their nodes are there."""
        self._admitted: _Admitted | None = None

    @property
    def has_requests(self) -> bool:
        """Whether requests wait."""
        return bool(self._tokens)

    async def watch(self) -> NoReturn:
        """Watch for requests, forever."""
        path = requests_path(self._incarnation)

        async def look() -> None:
            tokens = await self._client.store.children(path)
            self._done.intersection_update(tokens)
            known = [token for token in self._tokens if token in tokens]
            fresh = [token for token in tokens if token not in self._tokens and token not in self._done]
            self._tokens = dict.fromkeys(known + fresh)
            if self._tokens:
                self._on_request()

        await follow(self._client.store, path, look, what=f"{path} is not watched", log=logger)

    async def admit(self, base: LogMetadata, now_ms: int) -> ChainSplice | None:
        """Return the splice that the oldest request wants; None if nothing is to be spliced.

        Requests that need nothing are answered.

        Args:
            base: The log's record.
            now_ms: The leader's wall clock.

        Raises:
            MetadataUnavailable, MetadataOutcomeUnknown, SessionExpired: The store did not answer. Ask again.
        """
        self._admitted = None
        await self._client.store.sync()
        while self._tokens:
            token = next(iter(self._tokens))
            try:
                admitted = await self._read(token, base, now_ms)
            except MetadataCorrupt as cause:  # The request, the producer's mark, or a staged ledger.
                logger.warning("log=%s: a request for a splice is not answered: %s", self._name, cause)
                admitted = None
            if admitted is not None:
                self._admitted = admitted
                return ChainSplice(staged=admitted.commit.placed, now_ms=now_ms)
            self._forget(token)
        return None

    async def _read(self, token: str, base: LogMetadata, now_ms: int) -> _Admitted | None:
        store, path = self._client.store, request_path(self._incarnation, token)
        node = await store.get(path)
        if node is None:
            return None
        request = SpliceRequest.decode_untrusted(node.value)
        if request.refused is not None:
            return None
        commit = commit_of(request)
        if not commit.staged:
            return None  # A batch without rows needs no leader.
        core = Splice(self._name, commit, new_token=self._client.environment.new_token, by_leader=True)
        mark, mark_version = await read_mark(self._client, self._incarnation, commit)
        ledgers = await read_staged(self._client, commit)
        core.on_read(base, -1, mark, mark_version, ledgers, now_ms)
        admitted = _Admitted(token, request, node.version, commit, core)
        if core.need is not SpliceNeed.WRITE:
            logger.info("log=%s: batch %d needs no splice: %s", self._name, commit.batch, core.failure)
            await self._answer(admitted, None)
            return None
        try:
            base.check_room(len(commit.staged) + 1)
        except LogListFull as full:
            await self._answer(admitted, full)
            return None
        return admitted

    async def write(self, record: LogMetadata, version: int) -> int:
        """Write the record that the chain made for the admitted splice, and all that belongs to it.

        Args:
            record: The record to write.
            version: The version that it replaces.

        Returns:
            The record's new version.

        Raises:
            VersionConflict, NodeMissing, NodeExists: Something has changed. Nothing was written.
            MetadataUnavailable: Nothing was written.
            LogListFull, InvalidArgument: The transaction is too large. Nothing was written; ``refuse`` tells
                the asking process.
            MetadataOutcomeUnknown: The answer was lost.
        """
        admitted = self._admitted
        assert admitted is not None
        admitted.core.on_led(record)
        operations: Sequence[Operation] = [
            *splice_operations(admitted.core, admitted.commit, version),
            Delete(request_path(self._incarnation, admitted.token), admitted.version),
        ]
        try:
            version, *_ = await self._client.store.transaction(operations)
        except InvalidArgument as too_large:
            raise too_large_for(record, admitted.commit, operations) from too_large
        return version

    def on_written(self) -> None:
        """The chain continues in a new ledger: the admitted splice, if there is one, took effect."""
        if self._admitted is None:
            return
        logger.info(
            "log=%s: spliced batch %d, %d ledgers with %d records",
            self._name,
            self._admitted.commit.batch,
            len(self._admitted.commit.staged),
            self._admitted.commit.records,
        )
        self._forget(self._admitted.token)
        self._admitted = None

    async def refuse(self, why: InvalidArgument | LogListFull) -> None:
        """Tell the asking process that the admitted batch cannot be spliced. Errors as for ``admit``."""
        assert self._admitted is not None
        await self._answer(self._admitted, why)
        self._forget(self._admitted.token)
        self._admitted = None

    async def _answer(self, admitted: _Admitted, why: InvalidArgument | LogListFull | None) -> None:
        path = request_path(self._incarnation, admitted.token)
        answer: bytes | None = None
        if why is not None:
            refused = attrs.evolve(admitted.request, refused=str(why), is_full=isinstance(why, LogListFull))
            with suppress(RecordTooLong):  # The asking process finds out itself when nobody splices.
                answer = refused.encode()
        try:
            if answer is None:
                await self._client.store.delete(path, version=admitted.version)
            else:
                await self._client.store.set(path, answer, version=admitted.version)
        except CONFLICTS:
            pass  # The asking process has withdrawn the request.

    def _forget(self, token: str) -> None:
        self._tokens.pop(token, None)
        self._done.add(token)
