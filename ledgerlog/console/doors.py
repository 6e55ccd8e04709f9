"""Decide who may look at the console, who may change something, and which requests a browser may make.

**Rights** are the same as at the administration port, and the same gate decides (``admin.gate``). While reads
are open, every browser may look. Otherwise a browser needs a token whose principal may read. A change needs a
token of the scope "change" whose principal has the role admin. Each request asks the gate again, so a revoked
role or an expired token counts at once.

**A session** is a token that this process keeps for a browser. The browser has only a random name of the
session, in a cookie. No script can read this cookie, and no page of another site can make the browser send it
(HttpOnly, SameSite=Strict).

**Foreign pages.** A foreign page may make a browser send a request to us. Three checks stop that:

    Host      must name us. If a foreign name is pointed at our address (DNS rebinding), that name is refused.
              An IP address is allowed as Host, because an IP address cannot be pointed elsewhere
    Origin    of every POST must be ours: the name in Host, by HTTPS if we serve HTTPS. If we serve HTTP, a
              proxy may serve HTTPS for us, so the origins with HTTP and HTTPS are both ours
    the mark  of the session must be in a header of every change. Only our own pages can read the mark
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable, Mapping

import attrs

from ledgerlog.admin.gate import AdminGate, Needs, RequestRefused
from ledgerlog.admin.http import Asked
from ledgerlog.limits import CONSOLE_SESSIONS
from ledgerlog.model.principal import Principal
from ledgerlog.model.token import Token, TokenScope

__all__ = ["Doors", "PersonSession"]


@attrs.frozen
class PersonSession:
    """The session of a person who is logged in."""

    name: str
    """The secret name of the session. It is in the cookie."""
    mark: str
    """The secret that each change must have in a header."""
    token: str = attrs.field(repr=False)
    principal: Principal
    may_change: bool
    expires_s: int


class Doors:
    """Decides about the requests of browsers."""

    def __init__(
        self,
        gate: AdminGate,
        *,
        hosts: frozenset[str],
        new_secret: Callable[[], bytes],
        now_s: Callable[[], float],
        is_https: bool = False,
    ) -> None:
        """Create it.

        Args:
            gate: Decides who may read and who may change.
            hosts: The names, in lower case, under which browsers may reach us. IP addresses are always
                allowed.
            new_secret: Returns fresh random bytes.
            now_s: The wall clock, in seconds since 1970.
            is_https: Whether we serve HTTPS ourselves.
        """
        self._gate = gate
        self._hosts = hosts
        self._new_secret = new_secret
        self._now_s = now_s
        self._schemes = ("https",) if is_https else ("http", "https")
        self._sessions: dict[str, PersonSession] = {}

    # --- foreign pages ----------------------------------------------------------------------------

    def check_host(self, host: str) -> None:
        """Check the header Host.

        Raises:
            RequestRefused: The header names another host.
        """
        name = _name_of(host)
        if name is None or not (name in self._hosts or _is_address(name)):
            raise RequestRefused(
                421,
                "this console does not serve that host name: if it is yours, start the console with "
                "--host NAME",
            )

    def check_origin(self, headers: Mapping[str, str]) -> bool:
        """Check that a page of ours sends a POST.

        Returns:
            Whether the browser reached that page by HTTPS.

        Raises:
            RequestRefused: Another page sends it, or the headers do not say which page.
        """
        scheme, _, host = headers.get("origin", "").lower().partition("://")
        if scheme not in self._schemes or host != headers.get("host", "").lower():
            raise RequestRefused(
                403, "another web page sent this request, or a program without the Origin header"
            )
        return scheme == "https"

    # --- people -----------------------------------------------------------------------------------

    def session(self, name: str | None) -> PersonSession | None:
        """Return the session with this name. None: there is no session with this name, or its token has
        expired."""
        found = self._sessions.get(name or "")
        if found is not None and found.expires_s <= self._now_s():
            del self._sessions[found.name]
            return None
        return found

    async def log_in(self, token: str, peer: str) -> PersonSession:
        """Begin a session.

        Args:
            token: The token that the person shows.
            peer: The address that the request came from.

        Raises:
            RequestRefused: The token proves no principal that may read here.
        """
        asked = _asked(token, peer)
        principal = await self._gate.prove(asked)
        shown, _ = Token.decode_untrusted(token)
        may_change = shown.scope is TokenScope.CHANGE
        if may_change:
            try:
                await self._gate.check(asked, Needs.CHANGE)
            except RequestRefused as refused:
                if refused.status != 403:
                    raise
                may_change = False  # The principal may still read.
        session = PersonSession(
            self._new_secret().hex(), self._new_secret().hex(), token, principal, may_change, shown.expires_s
        )
        while len(self._sessions) >= CONSOLE_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[session.name] = session
        return session

    def log_out(self, session: PersonSession) -> None:
        """End a session."""
        self._sessions.pop(session.name, None)

    async def check_read(self, session: PersonSession | None, peer: str) -> None:
        """Check that a browser may look. ``session`` is None if no user has logged in there.

        Raises:
            RequestRefused: The browser may not look.
        """
        await self._gate.check(_asked(None if session is None else session.token, peer), Needs.READ)

    async def check_change(
        self, session: PersonSession | None, headers: Mapping[str, str], peer: str
    ) -> Principal:
        """Check that a browser may change something.

        Returns:
            The principal that makes the change.

        Raises:
            RequestRefused: The browser may not change anything.
        """
        self.check_origin(headers)
        if session is None:
            raise RequestRefused(401, "log in first, with a token of 'ledgerlog access token --change'")
        if not hmac.compare_digest(headers.get("x-console-mark", "").encode(), session.mark.encode()):
            raise RequestRefused(403, "the session's token is missing: load the page again")
        principal = await self._gate.check(_asked(session.token, peer), Needs.CHANGE)
        assert principal is not None, "a change always needs a proof"
        return principal


def _asked(token: str | None, peer: str) -> Asked:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    return Asked("GET", "/", {}, headers, peer, None)


def _name_of(host: str) -> str | None:
    """Return the name in a header Host, without the port and in lower case. None: the header is malformed."""
    name, port = host, ""
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            return None
        port = rest[1:]
    elif ":" in host:
        name, _, port = host.rpartition(":")
    return name.lower() if name and (not port or port.isdigit()) else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
