"""How this process proves to its peers who it is, and how it verifies them, with a shared secret.

A ``Prover`` joins three things: the secrets of this process (a file, read again if it changes), who the
process says that it is, and how the cluster is closed (``model.admission``), which may change at any moment.
``wire.proof`` is the exchange. It knows no metadata store: whoever opens the prover tells it the admission.

A process with a certificate claims nothing here: TLS has proved more before the first frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from ledgerlog.errors import InvalidArgument, Unauthenticated
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.credentials import SECRET_FILE_VARIABLE, TLS_VARIABLES, Credentials
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets, SecretSource
from ledgerlog.net.secret_file import SecretFile
from ledgerlog.wire.hello import NONCE_BYTES, Claim
from ledgerlog.wire.proof import BookieProof, ClientProof

__all__ = ["Prover"]


class Prover:
    """The identity of this process. Without arguments it is nobody, in an open cluster."""

    def __init__(
        self,
        source: SecretSource | None = None,
        *,
        has_certificate: bool = False,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        """Begin, in an open cluster.

        Args:
            source: Where the secrets are. None: this process has none.
            has_certificate: Whether TLS proves who both ends are.
            random_bytes: Makes nonces.
        """
        self._source = source
        self._has_certificate = has_certificate
        self._random_bytes = random_bytes
        self._name: Principal | None = None
        self._admission = OPEN
        self._watchers: list[Callable[[], None]] = []

    @classmethod
    def of(cls, credentials: Credentials) -> Prover:
        """Read the secret file among the credentials, if there is one.

        Raises:
            InvalidArgument: The file cannot be used.
        """
        path = credentials.secret_file
        source = None if path is None else SecretFile(path)
        return cls(source, has_certificate=credentials.tls is not None)

    # --- how the cluster is closed ----------------------------------------------------------------

    @property
    def admission(self) -> Admission:
        """How the cluster is closed, as far as this process knows."""
        return self._admission

    def admit(self, admission: Admission) -> None:
        """Learn how the cluster is closed from now on."""
        if admission != self._admission:
            self._admission = admission
            for watcher in self._watchers:
                watcher()

    def on_admission(self, watcher: Callable[[], None]) -> None:
        """Have a function called at each change of ``admission``."""
        self._watchers.append(watcher)

    def reload(self) -> bool:
        """Read the secret file now. Return whether this process has one."""
        if self._source is None:
            return False
        self._source.reload()
        return True

    def check_own(self) -> None:
        """Check that this process can prove who it is, if the cluster wants that.

        Raises:
            Unauthenticated: It cannot. The message says what to give.
        """
        if not self._admission.is_required or self._has_certificate:
            return
        if self._admission.by is ProvenBy.TLS:
            raise Unauthenticated(
                f"this cluster is {self._admission}, and this process has none: give --tls-cert, --tls-key "
                f"and --tls-ca (or {', '.join(TLS_VARIABLES.values())})"
            )
        if self._source is None:
            raise Unauthenticated(
                f"this cluster is {self._admission}, and this process has none: give --secret-file FILE "
                f"(or {SECRET_FILE_VARIABLE})"
            )

    # --- as a client ------------------------------------------------------------------------------

    def act_as(self, principal: Principal) -> None:
        """Be this principal from now on, if the secrets are the cluster's. Otherwise nothing changes."""
        self._name = principal

    def begin(self) -> ClientProof | None:
        """Begin the client's side of a connection. None: there is nothing to prove with."""
        if self._source is None or self._has_certificate:
            return None
        secrets = self._source.current()
        principal = self._principal_with(secrets)
        return ClientProof(principal, secrets.of(principal), self._random_bytes(NONCE_BYTES))

    def _principal_with(self, secrets: Secrets) -> Principal:
        if secrets.holder is None and self._name is not None:
            return self._name
        return secrets.principal

    def accept_unproven(self, peer: Principal | None) -> None:
        """Decide about a peer that did not prove itself with a secret.

        Args:
            peer: Who it proved to be by its certificate.

        Raises:
            Unauthenticated: The cluster is closed, and the peer proved nothing.
        """
        if peer is None and self._admission.is_required:
            raise Unauthenticated(
                f"it does not prove that it belongs to the cluster, which is {self._admission}"
            )

    def why_refused(self) -> str:
        """Say why a peer may have refused this process, as far as it can know."""
        if self._source is None:
            return (
                "it serves only processes that prove who they are: give --secret-file FILE "
                f"(or {SECRET_FILE_VARIABLE})"
            )
        secrets = self._source.current()
        return (
            f"it does not accept the secret of {self._principal_with(secrets)} in {self._source.where} "
            f"({secrets!r}): is the file of another cluster, or was the secret exchanged?"
        )

    # --- as a server ------------------------------------------------------------------------------

    def check_verifies(self) -> None:
        """Check that this process can verify everybody.

        Raises:
            InvalidArgument: It has the secret of one principal only.
        """
        if self._source is not None and (holder := self._source.current().holder) is not None:
            raise InvalidArgument(
                f"{self._source.where} holds the secret of {holder}; a bookie needs the cluster's, to verify "
                "its clients"
            )

    def secrets_of(self, principal: Principal) -> tuple[bytes, ...]:
        """Return the secrets of a principal that this process knows, the newest first."""
        return () if self._source is None else self._source.current().of(principal)

    def verify(self, claim: Claim) -> BookieProof | None:
        """Begin the server's side of a connection. None: this process has no secret in common with who
        claims to be that."""
        if self._source is None:
            return None
        secrets = self._source.current().of(claim.principal)
        proof = BookieProof(claim, secrets, self._random_bytes(NONCE_BYTES))
        return None if proof.challenge is None else proof
