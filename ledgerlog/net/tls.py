"""The network capability (``net.transport``) over TLS, on top of another network's streams.

``TlsNetwork`` wraps the streams of an inner network, TCP in production. The ciphertext passes through two
memory buffers of ``ssl`` and not through a socket of ``ssl``: trio's own TLS streams cost six times as much
for a small frame. ``net.certificates`` makes the contexts of ``ssl`` and describes their rules.
``network_of`` returns the network of a process: TLS if it has a certificate, otherwise plain TCP.

**The handshake** begins with the first ``receive_into`` or ``send_all``, in the task that calls it. So
``connect`` and ``accept`` do no cryptography, and a slow peer does not keep a listener from accepting other
connections. Until the handshake is over, ``send_nowait`` takes nothing. The handshake must be over
``HANDSHAKE_TIMEOUT_S`` after the stream was made. If two tasks need the handshake, one does it and the other
waits. If the first task is cancelled, the other continues at the same point.

**Refusals** raise Unauthenticated: at the end that refuses and, if that end's alert arrives, at the other
end. In TLS 1.3, a client finishes the handshake before the bookie has seen the client's certificate. So a
client may learn only from its first ``receive_into`` that the bookie refused it. If a client's ``send_all``
fails before anything was received, the stream looks for an alert that explains the failure. Once both ends
have accepted each other, an alert raises ConnectionLost.

**Sending** joins the buffers and encrypts up to ``_BATCH_BYTES`` at once. OpenSSL makes records of up to 16
KiB from each batch, and one system call sends them. If the socket takes the whole batch, the send is done.
Otherwise the stream keeps the records that were not sent, at most one batch. Their bytes count as not sent,
so the caller passes the same bytes again, as ``Stream`` demands. The stream skips these bytes, because it has
encrypted them already. ``_ahead`` is the number of bytes to skip.

**Receiving** reads ciphertext into a buffer that all streams of the network share. No task switch happens
between the moment when the buffer is filled and the moment when its bytes are passed to ``ssl``. A stream
receives only about as many bytes as its caller has room for, so it keeps little more than one record of
received bytes for later.

**The end.** ``close`` sends a close_notify, the farewell of TLS, if nothing else waits to be sent. If a
peer's stream ends without a farewell, the result is ConnectionLost, not a normal end: an attacker between the
two ends may have cut the stream off.

**Key updates.** If the peer changes its keys, ``ssl`` has an answer to send. The receiving task sends the
answer at once, or, if something else is being sent or waits, the answer goes with the next bytes.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NoReturn

import attrs
import trio

from ledgerlog.errors import Unauthenticated
from ledgerlog.limits import HANDSHAKE_TIMEOUT_S, KIB
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.ids import BookieId
from ledgerlog.model.principal import Principal, PrincipalKind, named_in_certificate
from ledgerlog.net.certificates import Certificates, certificate_uris
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.net.transport import Buffer, ConnectionLost, Listener, Network, Stream, buffers_bytes, unsent
from ledgerlog.net.turns import Turns

__all__ = ["TlsNetwork", "bookie_of", "network_of"]

_BATCH_BYTES = 256 * KIB
"""How many plain bytes are encrypted at once, at most."""

_SCRATCH_BYTES = 256 * KIB
_ROOM_BYTES = 17 * KIB
"""A stream receives up to this many bytes of ciphertext more than its caller has room for: one whole
record."""

_RECORD_HEAD_BYTES = 5
_RECORD_EXTRA_BYTES = 17
"""The bytes of the authentication tag and of the type in a record of TLS 1.3. Tags have 16 bytes in all its
ciphers."""

_ANSWERS_BYTES_MAX = 64 * KIB
"""How many bytes of answers to key updates may wait to be sent. An honest peer does not cause more."""


def network_of(credentials: Credentials, *, cluster: str | None) -> Network:
    """Return the network that a process uses to connect to its cluster, and to be connected to.

    Args:
        credentials: The files with which this process proves who it is.
        cluster: The id of the cluster that certificates must be for.

    Raises:
        InvalidArgument: A file of the credentials cannot be used.
        Unauthenticated: This process's certificate would be refused: for example, it has expired.
    """
    if credentials.tls is None:
        return TcpNetwork()
    return TlsNetwork(TcpNetwork(), Certificates(credentials.tls, cluster))


def bookie_of(network: Network, *, expected: BookieId | None) -> BookieId | None:
    """Return the id that this process must have as a bookie: the id in its certificate, or the expected id.

    Clients refuse a bookie whose id differs from the id in its certificate.

    Args:
        network: The network of the bookie's process.
        expected: The id that the caller expects; None if any id will do.

    Returns:
        The id; None if any id will do.

    Raises:
        Unauthenticated: The process's certificate is not for a bookie, or is for another bookie than
            expected.
    """
    if not isinstance(network, TlsNetwork):
        return expected
    principal = network.certificates.principal
    if principal.kind is not PrincipalKind.BOOKIE or expected not in (None, principal.name):
        raise Unauthenticated(
            f"{network.certificates.tls.cert} names {principal}, but this bookie needs a certificate for "
            f"bookie/{expected or 'ID'}"
        )
    return principal.name


class TlsNetwork:
    """TLS over the streams of another network.

    The inner streams must not let another task run between filling the buffer of a ``receive_into`` and
    returning.
    """

    def __init__(self, inner: Network, certificates: Certificates) -> None:
        self._inner = inner
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self.certificates = certificates

    async def connect(self, address: str) -> Stream:
        """Open a stream to a listener, as the inner network's ``connect`` does. The handshake begins when the
        stream is first used."""
        context = self.certificates.client()
        return TlsStream(await self._inner.connect(address), context, self, is_server=False)

    async def listen(self, address: str) -> Listener:
        """Listen at an address, as the inner network's ``listen`` does."""
        return TlsListener(await self._inner.listen(address), self)


class TlsListener:
    """A listener. Its streams do the handshake when they are first used."""

    __slots__ = ("_inner", "_network")

    def __init__(self, inner: Listener, network: TlsNetwork) -> None:
        self._inner = inner
        self._network = network

    @property
    def address(self) -> str:
        return self._inner.address

    async def accept(self) -> Stream:
        stream = await self._inner.accept()
        return TlsStream(stream, self._network.certificates.server(), self._network, is_server=True)

    def close(self) -> None:
        self._inner.close()


@attrs.define
class _Record:
    """A record that the socket has not taken completely."""

    rest: memoryview
    """The ciphertext to send."""
    plain_bytes: int
    """How many of the caller's bytes are in the record."""


class TlsStream:
    """One TLS connection; see ``transport.Stream``."""

    __slots__ = (
        "_ahead",
        "_deadline",
        "_fault",
        "_has_heard",
        "_has_more",
        "_incoming",
        "_inner",
        "_is_closed",
        "_is_finished",
        "_is_open",
        "_is_sending",
        "_is_server",
        "_network",
        "_outgoing",
        "_principal",
        "_refusal",
        "_shaking",
        "_ssl",
        "_turns",
        "_waiting",
    )

    def __init__(
        self, inner: Stream, context: ssl.SSLContext, network: TlsNetwork, *, is_server: bool
    ) -> None:
        self._inner = inner
        self._network = network
        self._is_server = is_server
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._ssl = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._deadline = trio.current_time() + HANDSHAKE_TIMEOUT_S
        self._shaking = trio.Lock()  # held by the task that does the handshake
        self._is_open = False  # the handshake is over, and the peer proved who it is
        self._is_closed = False
        self._is_sending = False  # a task is inside send_all
        self._has_heard = False  # the peer has sent something after the handshake
        self._has_more = True  # decrypted bytes may be there, or whole records
        self._is_finished = False  # the peer sent its farewell
        self._fault: ssl.SSLError | None = None  # an error after bytes that were decrypted well
        self._principal: Principal | None = None
        self._refusal: str | None = None  # why one end refused the other
        self._waiting: deque[_Record] = deque()  # encrypted, and not taken by the socket
        self._ahead = 0  # bytes of the caller that were encrypted, and not reported as sent yet
        self._turns = Turns()

    @property
    def peer(self) -> str:
        return self._inner.peer

    @property
    def principal(self) -> Principal | None:
        """The principal that the peer has proved; None until the handshake is over."""
        return self._principal

    # --- receiving ------------------------------------------------------------------------------

    async def receive_into(self, buffer: memoryview) -> int:
        assert len(buffer), "there is no room to receive into"
        if not self._is_open:
            await self._shake_hands()
        self._check_open()
        if self._has_more:
            await self._turns.take()
            self._check_open()
            received = self._decrypt(buffer)
            if received is not None:
                self._turns.spend_copied(received)
                return received
        scratch = self._network._scratch
        room = scratch[: len(buffer) + _ROOM_BYTES]
        while True:
            count = await self._inner.receive_into(room)
            if not count:
                raise ConnectionLost(
                    f"the connection with {self.peer} broke: it ended without a TLS close message"
                )
            # No checkpoint may stand between the receive and this line: all streams share the buffer.
            self._incoming.write(scratch[:count])
            received = self._decrypt(buffer)
            if received is not None:
                return received

    def _decrypt(self, buffer: memoryview) -> int | None:
        """Decrypt received bytes into the front of ``buffer``.

        Returns:
            How many bytes were decrypted; 0 if the peer sent its farewell; None if more ciphertext is needed
            first.
        """
        read, incoming, size = self._ssl.read, self._incoming, len(buffer)
        filled = 0
        try:
            # A read gives the rest of one record at most.
            while not self._is_finished and self._fault is None:
                count = int(read(size - filled, buffer[filled:]))
                filled += count
                if not count:
                    self._is_finished = True
                elif filled == size or not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._is_finished = True  # This end has said its farewell, too.
        except ssl.SSLError as cause:
            self._fault = cause
        if self._outgoing.pending:
            self._answer()
        self._has_more = filled == size or self._is_finished or self._fault is not None
        if filled:
            self._has_heard = True
            return filled
        if self._fault is not None:
            self._fail(self._fault)
        return 0 if self._is_finished else None

    def _answer(self) -> None:
        """Send the data that ``ssl`` itself wants to send, unless other data is being sent or waits."""
        waiting = self._outgoing.pending
        if not waiting or self._is_sending or self._waiting:
            if waiting > _ANSWERS_BYTES_MAX:
                raise ConnectionLost(f"the connection with {self.peer} broke: it asks for new keys too often")
            return
        answer = memoryview(self._outgoing.read())
        sent = self._inner.send_nowait([answer])
        if sent < len(answer):
            self._waiting.append(_Record(answer[sent:], 0))

    # --- sending --------------------------------------------------------------------------------

    def send_nowait(self, buffers: Sequence[Buffer]) -> int:
        self._check_open()
        if not self._is_open:
            return 0
        sent = 0
        if self._waiting or self._ahead:
            self._send_waiting()
            sent = self._report(buffers)
            if self._waiting or self._ahead:
                return sent
            buffers = unsent(buffers, sent)
        for batch in _batches(buffers):
            size = self._encrypt(batch)
            cipher = self._outgoing.read()
            went = self._inner.send_nowait([cipher])
            if went == len(cipher):
                sent += size
                continue
            self._waiting.extend(_records(cipher, size))
            self._ahead = size
            self._drop_sent(went)
            done = size - sum(record.plain_bytes for record in self._waiting)
            self._ahead -= done
            return sent + done
        return sent

    async def send_all(self, buffers: Sequence[Buffer]) -> None:
        if not self._is_open:
            await self._shake_hands()
        self._check_open()
        self._is_sending = True
        try:
            if self._waiting:
                await self._inner.send_all([record.rest for record in self._waiting])
                self._waiting.clear()
            if self._ahead:
                buffers = unsent(buffers, self._report(buffers))
            is_first = True
            for batch in _batches(buffers):
                is_first = False
                self._encrypt(batch)
                await self._inner.send_all([self._outgoing.read()])
            if is_first:
                await self._inner.send_all([])
        except ConnectionLost as lost:
            if not self._is_server and not self._has_heard and not self._is_closed:
                await self._look_for_alert(lost)
            raise
        finally:
            self._is_sending = False

    def _encrypt(self, batch: Buffer) -> int:
        try:
            done = self._ssl.write(batch)
        except ssl.SSLError as cause:
            self._fail(cause)
        size = len(batch)
        while done < size:  # OpenSSL may take a record at a time.
            done += self._ssl.write(memoryview(batch)[done:])
        return size

    def _send_waiting(self) -> None:
        if self._waiting:
            self._drop_sent(self._inner.send_nowait([record.rest for record in self._waiting]))

    def _drop_sent(self, sent: int) -> None:
        """Forget the first ``sent`` bytes of the waiting records."""
        waiting = self._waiting
        while waiting and sent >= len(waiting[0].rest):
            sent -= len(waiting.popleft().rest)
        if sent:
            waiting[0].rest = waiting[0].rest[sent:]

    def _report(self, buffers: Sequence[Buffer]) -> int:
        """Return how many bytes of ``buffers`` are in records that the socket has taken completely, and count
        them as reported."""
        done = self._ahead - sum(record.plain_bytes for record in self._waiting)
        reported = min(done, buffers_bytes(buffers))
        self._ahead -= reported
        return reported

    # --- the beginning and the end --------------------------------------------------------------

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._is_open and not self._is_sending and not self._waiting:
            # This does not wait: if the socket is full, the peer sees only the end of the stream.
            with contextlib.suppress(ssl.SSLError, ConnectionLost):
                try:
                    self._ssl.unwrap()
                finally:
                    self._inner.send_nowait([self._outgoing.read()])
        self._inner.close()

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise Unauthenticated(self._refusal)
        if self._is_closed:
            raise ConnectionLost(f"the connection with {self.peer} is closed")

    async def _shake_hands(self) -> None:
        """Do the handshake, or wait until another task has done it."""
        with trio.move_on_at(self._deadline) as scope:
            async with self._shaking:
                if not self._is_open:
                    await self._shake_to_the_end()
        if scope.cancelled_caught:
            raise ConnectionLost(
                f"the connection with {self.peer} broke: its TLS handshake took longer than "
                f"{HANDSHAKE_TIMEOUT_S:g} s"
            )

    async def _shake_to_the_end(self) -> None:
        scratch = self._network._scratch[:_ROOM_BYTES]
        while True:
            self._check_open()
            try:
                self._ssl.do_handshake()
            except ssl.SSLWantReadError:
                is_over = False
            except ssl.SSLError as cause:
                self._fail(cause)
            else:
                is_over = True
            if self._outgoing.pending:
                await self._flush()
            if is_over:
                break
            count = await self._inner.receive_into(scratch)
            if not count:
                raise ConnectionLost(
                    f"{self.peer} closed the connection during the TLS handshake: it has too many "
                    f"connections, is stopping, or does not speak TLS"
                )
            self._incoming.write(scratch[:count])
        try:
            self._principal = named_in_certificate(
                certificate_uris(self._ssl), self._network.certificates.cluster
            )
        except Unauthenticated as wrong:
            self._refuse(f"it proved nothing: {wrong}")
        self._is_open = True

    async def _flush(self) -> None:
        """Send the handshake messages that ``ssl`` wants to send."""
        said = memoryview(self._outgoing.read())
        sent = self._inner.send_nowait([said])
        if sent < len(said):
            try:
                await self._inner.send_all([said[sent:]])
            except BaseException:
                self.close()  # It is unknown which part of it was sent.
                raise

    def _fail(self, cause: ssl.SSLError) -> NoReturn:
        """Send the alert of a failed ``ssl`` call to the peer, and raise the matching exception."""
        last_words = self._outgoing.read()
        if self._is_server and not self._is_open and _name_of(cause) in _NO_TLS:
            last_words = last_words or _NO_TLS_ALERT  # OpenSSL is silent then.
        with contextlib.suppress(ConnectionLost):
            if last_words and not self._is_sending and not self._waiting:
                self._inner.send_nowait([last_words])
        # A client finishes the handshake before the bookie has seen the client's certificate.
        if self._is_open and (self._is_server or self._has_heard):
            why = None
        else:
            why = _why_refused(cause, self._network.certificates.tls.ca, is_open=self._is_open)
        if why is None:
            raise ConnectionLost(f"the connection with {self.peer} broke: {_name_of(cause)}") from cause
        self._refuse(why, cause)

    def _refuse(self, why: str, cause: BaseException | None = None) -> NoReturn:
        self._refusal = why
        raise Unauthenticated(why) from cause

    async def _look_for_alert(self, lost: ConnectionLost) -> None:
        """After a send failed: if the peer sent an alert before it closed, raise the reason that the alert
        gives."""
        scratch = self._network._scratch[:_ROOM_BYTES]
        with contextlib.suppress(ConnectionLost):
            count = await self._inner.receive_into(scratch)
            self._incoming.write(scratch[:count])
            self._decrypt(memoryview(bytearray(1)))


def _batches(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    """Join small buffers and cut large ones: each batch has 1 to ``_BATCH_BYTES`` bytes."""
    group: list[Buffer] = []
    size = 0
    for buffer in buffers:
        length = len(buffer)
        if size + length > _BATCH_BYTES:
            if size:
                yield b"".join(group)
            group, size = [], 0
            view = memoryview(buffer)
            while length > _BATCH_BYTES:
                yield view[:_BATCH_BYTES]
                view = view[_BATCH_BYTES:]
                length -= _BATCH_BYTES
            buffer = view
        group.append(buffer)
        size += length
    if size:
        yield group[0] if len(group) == 1 else b"".join(group)


def _records(cipher: bytes, plain_bytes: int) -> Iterator[_Record]:
    """Cut ciphertext into its records. The last ``plain_bytes`` plain bytes in them belong to the caller."""
    view = memoryview(cipher)
    cut: list[_Record] = []
    while view:
        size = int.from_bytes(view[3:_RECORD_HEAD_BYTES], "big")
        cut.append(_Record(view[: _RECORD_HEAD_BYTES + size], size - _RECORD_EXTRA_BYTES))
        view = view[_RECORD_HEAD_BYTES + size :]
    # Records that ssl itself sends may come before the caller's records.
    own = sum(record.plain_bytes for record in cut) - plain_bytes
    for record in cut:
        if not own:
            break
        own -= record.plain_bytes
        record.plain_bytes = 0
    assert not own, "the records hold what was encrypted"
    yield from cut


# --- reasons ----------------------------------------------------------------------------------------

_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_NOT_YET_VALID, _EXPIRED, _REVOKED, _WRONG_PURPOSE = 9, 10, 23, 26
"""Codes of OpenSSL's verification."""

_NO_TLS = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "HTTPS_PROXY_REQUEST",
        "RECORD_LAYER_FAILURE",
        "UNKNOWN_PROTOCOL",
        "PACKET_LENGTH_TOO_LONG",
        "BAD_RECORD_TYPE",
    }
)

_NO_TLS_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"
"""A record with the fatal alert "protocol version". From this alert, our own clients without TLS learn what
is wrong."""

_ALERTS = {
    "UNKNOWN_CA": "it does not trust the authority of this process's certificate",
    "CERTIFICATE_EXPIRED": "to it, this process's certificate has expired; this machine's clock says {now}",
    "BAD_CERTIFICATE": (
        "it refuses this process's certificate, which may not be valid yet by its clock; this machine's "
        "clock says {now}"
    ),
    "CERTIFICATE_REVOKED": "this process's certificate was revoked",
    "CERTIFICATE_UNKNOWN": "it refuses this process's certificate",
    "UNSUPPORTED_CERTIFICATE": "this process's certificate must not be used for this: see its extended key "
    "usage",
    "CERTIFICATE_REQUIRED": "it asks for a certificate, but this process presented none",
    "PROTOCOL_VERSION": "it does not speak TLS 1.3",
}
"""The meanings of alerts of the peer. The key is the end of the alert's name in OpenSSL."""


def _why_refused(cause: ssl.SSLError, authorities: str, *, is_open: bool) -> str | None:
    """Return why one end refused the other; None if the connection broke for another reason."""
    now = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time.time()))
    if isinstance(cause, ssl.SSLCertVerificationError):
        match cause.verify_code:
            case code if code in _UNKNOWN_AUTHORITY:
                return f"its certificate is not from an authority in {authorities} ({cause.verify_message})"
            case code if code == _EXPIRED:
                return f"its certificate has expired; this machine's clock says {now}"
            case code if code == _NOT_YET_VALID:
                return f"its certificate is not valid yet; this machine's clock says {now}: is a clock wrong?"
            case code if code == _REVOKED:
                return f"its certificate was revoked: a list in {authorities} says so"
            case code if code == _WRONG_PURPOSE:
                return "its certificate must not be used for this: see its extended key usage"
        return f"its certificate is refused: {cause.verify_message}"
    name = _name_of(cause)
    alert = name.partition("_ALERT_")[2]
    if alert in _ALERTS:
        return _ALERTS[alert].format(now=now)
    if is_open:
        return None
    if name in _NO_TLS:
        return "it does not speak TLS, but this process does"
    if name == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it presents no certificate"
    if name == "UNSUPPORTED_PROTOCOL":
        return "it does not speak TLS 1.3"
    return f"the TLS handshake with it failed: {name}"


def _name_of(cause: ssl.SSLError) -> str:
    return cause.reason or str(cause)
