"""The network of a process that has credentials: TLS if it has a certificate, otherwise plain TCP."""

from __future__ import annotations

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.credentials import Credentials
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.transport import Network

__all__ = ["network_of"]


def network_of(credentials: Credentials, *, cluster: str | None) -> Network:
    """Return the network with which a process reaches its cluster and is reached.

    Args:
        credentials: What this process proves itself with.
        cluster: The id of the cluster, which certificates must be for.

    Raises:
        InvalidArgument: A file of the credentials cannot be used.
    """
    if credentials.tls is not None:
        raise InvalidArgument("this version of ledgerlog does not speak TLS to bookies yet")
    if credentials.secret_file is not None:
        raise InvalidArgument("this version of ledgerlog does not know shared secrets yet")
    return TcpNetwork()
