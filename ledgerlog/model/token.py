"""Tokens for the administration port: they prove a principal over HTTP, for a time and for a purpose.

    1/SCOPE/EXPIRES/KIND/NAME/MAC        1/read/1767225600/admin/cluster/6b1f...

SCOPE is "read" or "change". EXPIRES is a time in seconds since 1970. MAC is an HMAC-SHA256 under the secret
of the principal (``model.secret``), in hexadecimal digits. It covers a label and the text before it.

So a process with a secret makes tokens by itself. A process with the cluster's secret verifies tokens without
asking another process. No list of tokens exists. You cannot connect to a bookie with a token. A token with
the scope "read" allows no change, even if its principal is an admin.

Without TLS, an attacker who sees the request can use the token until it expires. So tokens for changes are
short-lived.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from collections.abc import Sequence

import attrs

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.model.principal import Principal

__all__ = ["TOKEN_CHARS_MAX", "Token", "TokenScope"]

TOKEN_CHARS_MAX = 512

_LABEL = "ledgerlog token 1\0"
_VERSION = "1"
_EXPIRES_MAX = 10**12


class TokenScope(enum.Enum):
    """The requests that a token allows."""

    READ = "read"
    CHANGE = "change"
    """Everything that the principal may do."""


@attrs.frozen
class Token:
    """The content of a token, without its proof."""

    principal: Principal
    scope: TokenScope
    expires_s: int = attrs.field()
    """When the token expires, in seconds since 1970."""

    @expires_s.validator
    def _check_expiry(self, attribute: object, value: int) -> None:
        if not 0 <= value <= _EXPIRES_MAX:
            raise InvalidArgument(f"a token cannot expire {value} s after 1970")

    @property
    def _said(self) -> str:
        return f"{_VERSION}/{self.scope.value}/{self.expires_s}/{self.principal}"

    def _mac(self, secret: bytes) -> str:
        return hmac.digest(secret, (_LABEL + self._said).encode(), hashlib.sha256).hex()

    def encode(self, secret: bytes) -> str:
        """Return the token as text, proven with a secret of the principal."""
        return f"{self._said}/{self._mac(secret)}"

    @classmethod
    def decode_untrusted(cls, text: str) -> tuple[Token, str]:
        """Read a token.

        Returns:
            The content of the token, and its proof for ``is_proven``.

        Raises:
            WireError: The text is not a token.
        """
        parts = text.split("/") if len(text) <= TOKEN_CHARS_MAX and text.isascii() else []
        if len(parts) != 6 or parts[0] != _VERSION:
            raise WireError("this is not a token of 'ledgerlog access token'")
        _, scope, expires, kind, name, proof = parts
        if not expires.isdigit() or int(expires) > _EXPIRES_MAX or str(int(expires)) != expires:
            raise WireError("a token says in seconds when it expires")
        try:
            return cls(Principal(kind, name), TokenScope(scope), int(expires)), proof
        except ValueError as wrong:
            raise WireError(f"this is not a token: {wrong}") from None

    def is_proven(self, proof: str, secrets: Sequence[bytes]) -> bool:
        """Whether the proof was made with one of the secrets of the principal."""
        return any(hmac.compare_digest(proof, self._mac(secret)) for secret in secrets)
