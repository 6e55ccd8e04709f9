"""How this process proves its identity to its peers with a shared secret, and verifies the peers' identity.

A ``Prover`` joins three things:

- the secrets of this process: a file, which is read again if it changes,
- the principal that the process claims to be,
- the *admission*: whether the cluster is closed, which means that it admits only processes that prove who
  they are, and which kind of proof it asks for (``model.admission``). It may change at any moment.

``wire.proof`` describes the messages of the exchange. The prover does not read the metadata store: its owner
passes each new admission to ``admit``.

If a process has a certificate, it claims nothing here, because TLS proves its identity before the first
frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ledgerlog.errors import InvalidArgument, Unauthenticated
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.credentials import HOW_TO_GIVE_CERTIFICATE, HOW_TO_GIVE_SECRET, Credentials
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets, SecretSource
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.net.secret_file import SecretFile
from ledgerlog.wire.hello import NONCE_BYTES, Claim
from ledgerlog.wire.proof import BookieProof, ClientProof

__all__ = ["Prover"]


class Prover:
    """The identity of this process. Without arguments, the process has none, and the cluster is open."""

    def __init__(
        self,
        source: SecretSource | None = None,
        *,
        has_certificate: bool = False,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Create a prover. Until you call ``admit``, the prover assumes that the cluster is open.

        Args:
            source: The secrets. None: this process has none.
            has_certificate: Whether TLS proves the identity of both ends.
            random_bytes: Makes nonces.
        """
        self._source = source
        self._has_certificate = has_certificate
        self._random_bytes = random_bytes
        self._name: Principal | None = None
        self._certified: Principal | None = None
        self._admission = OPEN
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def of(cls, credentials: Credentials) -> Prover:
        """Create a prover from credentials. If they name a secret file, read it.

        Raises:
            InvalidArgument: The secret file cannot be used.
        """
        path = credentials.secret_file
        source = None if path is None else SecretFile(path)
        return cls(source, has_certificate=credentials.tls is not None)

    # --- how the cluster is closed ----------------------------------------------------------------

    @property
    def admission(self) -> Admission:
        """The admission of the cluster that ``admit`` set last."""
        return self._admission

    def admit(self, admission: Admission) -> None:
        """Set the admission of the cluster. If it is new, call the watchers."""
        if admission != self._admission:
            self._admission = admission
            for watcher in self._watchers:
                watcher()

    def on_admission(self, watcher: Callable[[], None]) -> None:
        """Call ``watcher`` at each change of ``admission``, until ``remove_on_admission``."""
        self._watchers.append(watcher)

    def remove_on_admission(self, watcher: Callable[[], None]) -> None:
        """Stop calling ``watcher``. A prover lives as long as its process, so whoever ends before that must
        call this."""
        self._watchers.remove(watcher)

    def reload(self) -> bool:
        """Read the secret file again now. Return False if this process has none."""
        if self._source is None:
            return False
        self._source.reload()
        return True

    def check_own(self) -> None:
        """Check that this process can prove its identity, if the cluster is closed.

        Raises:
            Unauthenticated: This process cannot prove its identity. The message names the options to give.
        """
        if not self._admission.is_required or self._has_certificate:
            return
        if self._admission.by is ProvenBy.TLS:
            raise Unauthenticated(
                f"this cluster is {self._admission}, but this process has none: {HOW_TO_GIVE_CERTIFICATE}"
            )
        if self._source is None:
            raise Unauthenticated(
                f"this cluster is {self._admission}, but this process has none: {HOW_TO_GIVE_SECRET}"
            )

    # --- as a client ------------------------------------------------------------------------------

    def act_as(self, principal: Principal) -> None:
        """Claim to be this principal from now on. If the secret file holds the secret of only one principal,
        this changes nothing."""
        self._name = principal

    def be_certified(self, principal: Principal) -> None:
        """Note the principal that the certificate of this process proves."""
        self._certified = principal

    @property
    def principal(self) -> Principal | None:
        """Who this process is to the bookies that it connects to; None if it proves nothing."""
        if self._has_certificate or self._source is None:
            return self._certified
        return self._principal_with(self._source.current())

    def begin(self) -> ClientProof | None:
        """Begin the client's side of a connection. Return None if this process has no secret to prove, or
        proves its identity with a certificate."""
        if self._source is None or self._has_certificate:
            return None
        secrets = self._source.current()
        principal = self._principal_with(secrets)
        return ClientProof(principal, secrets.of(principal), self._random_bytes(NONCE_BYTES))

    def token(self, scope: TokenScope, *, expires_s: float) -> str | None:
        """Make a token for an administration port.

        Args:
            scope: The requests that the token allows.
            expires_s: When the token expires, in seconds since 1970.

        Returns:
            The token; None if this process has no secret.
        """
        if self._source is None:
            return None
        secrets = self._source.current()
        principal = self._principal_with(secrets)
        return Token(principal, scope, int(expires_s)).encode(secrets.of(principal)[0])

    def _principal_with(self, secrets: Secrets) -> Principal:
        if secrets.holder is None and self._name is not None:
            return self._name
        return secrets.principal

    def accept_unproven(self, peer: Principal | None) -> None:
        """Check whether to accept a peer that did not prove itself with a secret.

        Args:
            peer: The principal that the peer's certificate proves; None if the peer has no certificate.

        Raises:
            Unauthenticated: The cluster is closed, and the peer proved nothing.
        """
        if peer is None and self._admission.is_required:
            raise Unauthenticated(
                f"it does not prove that it belongs to the cluster, which is {self._admission}"
            )

    def why_refused(self) -> str:
        """Return why a peer may have refused this process, as far as this process can know."""
        if self._source is None:
            return f"it serves only processes that prove who they are: {HOW_TO_GIVE_SECRET}"
        secrets = self._source.current()
        return (
            f"it does not accept the secret of {self._principal_with(secrets)} in {self._source.where} "
            f"({secrets!r}): is this the file of another cluster, or was the secret changed?"
        )

    # --- as a server ------------------------------------------------------------------------------

    def check_verifies(self) -> None:
        """Check that this process can verify every principal.

        Raises:
            InvalidArgument: This process has the secret of only one principal.
        """
        if self._source is not None and (holder := self._source.current().holder) is not None:
            raise InvalidArgument(
                f"{self._source.where} holds the secret of {holder}; a bookie needs the cluster's secret, "
                "to verify its clients"
            )

    def secrets_of(self, principal: Principal) -> tuple[bytes, ...]:
        """Return the secrets of a principal that this process knows, the newest first."""
        return () if self._source is None else self._source.current().of(principal)

    def verify(self, claim: Claim) -> BookieProof | None:
        """Begin the server's side of a connection. Return None if this process and the client have no secret
        of the claimed principal in common."""
        if self._source is None:
            return None
        secrets = self._source.current().of(claim.principal)
        proof = BookieProof(claim, secrets, self._random_bytes(NONCE_BYTES))
        return None if proof.challenge is None else proof
