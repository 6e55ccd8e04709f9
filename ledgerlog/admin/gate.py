"""Decide who may send which requests to the administration port.

    health    every client. The answer says whether the process can be used, and nothing of its content
    read      every client, if the process was told so or the cluster is open. Otherwise a principal with the
              right OPERATE (a bookie or an admin), proven by a certificate or a token. The token's scope
              "read" is enough
    change    a principal with the role "admin", proven by a certificate or a token with the scope "change".
              This proof is needed in an open cluster, too

A proof is a token (``model.token``) in the header Authorization, or a certificate.

**Tokens.** A browser never sends a token by itself. A foreign page may make an operator's browser send a
request, but the page cannot add the header Authorization without a permission that this server never gives.
That also holds if a foreign name is pointed at this server (DNS rebinding). There are no cookies.

**Certificates.** If a browser has a certificate installed, it uses the certificate for any page. So the gate
refuses a change that is proven only by a certificate, if the request says that a page has caused it (Origin,
Sec-Fetch-Site).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from ledgerlog.admin.http import Asked
from ledgerlog.errors import LedgerLogError, WireError
from ledgerlog.event_log import ADMIN_CHANGE, tell
from ledgerlog.limits import ACCESS_LOOK_S
from ledgerlog.meta.grants import read_grants
from ledgerlog.meta.store import MetadataStore
from ledgerlog.model.access import Right, Rights, may_administer, rights_of
from ledgerlog.model.ledger import MetadataCorrupt
from ledgerlog.model.principal import Principal
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.net.prover import Prover

__all__ = ["AdminGate", "Needs", "RequestRefused", "telling_of_change"]

logger = logging.getLogger(__name__)

_HOW = "'ledgerlog access token' makes one; send it as 'Authorization: Bearer TOKEN'"


class Needs(enum.Enum):
    """The permission that a request needs."""

    NOTHING = enum.auto()
    READ = enum.auto()
    CHANGE = enum.auto()


@attrs.frozen
class RequestRefused(Exception):
    """The request is refused."""

    status: int
    why: str

    def __str__(self) -> str:
        return self.why


class AdminGate:
    """Decides about requests. Each decision reads the newest grants, so a revocation takes effect at once."""

    def __init__(
        self,
        store: MetadataStore,
        prover: Prover,
        *,
        now_s: Callable[[], float],
        reads_are_open: bool | None = None,
    ) -> None:
        """Create it.

        Args:
            store: The cluster's metadata store.
            prover: Proves the identity of this process, and verifies the identity of others.
            now_s: The wall clock, in seconds since 1970.
            reads_are_open: Whether every client may read. None: every client may, while the cluster is not
                closed.
        """
        self._store = store
        self._prover = prover
        self._now_s = now_s
        self._reads_are_open = reads_are_open

    async def prove(self, asked: Asked) -> Principal:
        """Return the principal that a token proves, even while every client may read.

        Raises:
            RequestRefused: The token proves no principal, or a principal that may not read.
        """
        principal = self._proven(asked, Needs.READ)
        self._check_operates(principal, await self._rights(principal))
        return principal

    async def check(self, asked: Asked, needs: Needs) -> Principal | None:
        """Let a request pass if it is allowed.

        Returns:
            The principal that asks. None: the request needs no proof, so none was looked at.

        Raises:
            RequestRefused: The request is not allowed.
        """
        if needs is Needs.NOTHING:
            return None
        if needs is Needs.READ and self._are_reads_open:
            return None
        principal = self._proven(asked, needs)
        rights = await self._rights(principal)
        if needs is Needs.READ:
            self._check_operates(principal, rights)
        if needs is Needs.CHANGE and not may_administer(rights):
            raise RequestRefused(403, f"{principal} does not have the role admin")
        return principal

    @staticmethod
    def _check_operates(principal: Principal, rights: Rights) -> None:
        if Right.OPERATE not in rights.everywhere:
            raise RequestRefused(403, f"{principal} has no role that may read this: a bookie or an admin may")

    @property
    def _are_reads_open(self) -> bool:
        if self._reads_are_open is None:
            return not self._prover.admission.is_required
        return self._reads_are_open

    def _proven(self, asked: Asked, needs: Needs) -> Principal:
        header = asked.headers.get("authorization")
        if header is not None:
            return self._proven_by_token(header, needs)
        if asked.principal is None:
            raise RequestRefused(401, f"this needs a token, or a certificate: {_HOW}")
        if needs is Needs.CHANGE and (
            "origin" in asked.headers or asked.headers.get("sec-fetch-site", "none") != "none"
        ):
            raise RequestRefused(403, "a web page sent this request: send a token as well")
        return asked.principal

    def _proven_by_token(self, header: str, needs: Needs) -> Principal:
        kind, _, text = header.partition(" ")
        if kind.lower() != "bearer":
            raise RequestRefused(401, f"the Authorization header is malformed: {_HOW}")
        try:
            token, proof = Token.decode_untrusted(text.strip())
        except WireError as wrong:
            raise RequestRefused(401, str(wrong)) from None
        if not token.is_proven(proof, self._prover.secrets_of(token.principal)):
            raise RequestRefused(401, "the token was not made with the secret that this process knows")
        if token.expires_s <= self._now_s():
            raise RequestRefused(401, "the token has expired, by the clock of this machine")
        if needs is Needs.CHANGE and token.scope is not TokenScope.CHANGE:
            raise RequestRefused(403, "the token only allows reading: make one with --change")
        return token.principal

    async def _rights(self, principal: Principal) -> Rights:
        try:
            with trio.fail_after(ACCESS_LOOK_S):
                await self._store.sync()
                return rights_of(principal, await read_grants(self._store, principal))
        except MetadataCorrupt as damage:
            raise RequestRefused(403, f"the rights of {principal} are not known: {damage}") from None
        except (LedgerLogError, trio.TooSlowError) as away:
            why = str(away) or "the metadata store does not answer"
            raise RequestRefused(503, f"the rights of {principal} are not known now: {why}") from None


@contextmanager
def telling_of_change(process: str, what: str, *, by: Principal | None, client: str) -> Iterator[None]:
    """Log the change that the body makes for a client. If it fails, log the reason: it may have been made.

    Args:
        process: The process that makes the change, for the log.
        what: The change, in words.
        by: Who asked for it.
        client: The address of the client.
    """
    try:
        yield
    except LedgerLogError as failure:
        _tell_of_change(process, f"{what} (failed: {failure})", by, client)
        raise
    _tell_of_change(process, what, by, client)


def _tell_of_change(process: str, what: str, by: Principal | None, client: str) -> None:
    tell(
        logger,
        ADMIN_CHANGE,
        "%(process)s: %(what)s by %(by)s at client=%(client)s",
        process=process,
        what=what,
        by=str(by),
        client=client,
    )
