"""A client that sends a bookie exactly the bytes that a test wants, and shows the answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from ledgerlog.errors import WireError
from ledgerlog.model.codec import decode_record_untrusted
from ledgerlog.net.transport import Buffer, Stream
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add, encode_lac
from ledgerlog.wire.frame import (
    RECOVERY,
    REPLY,
    Frame,
    FrameBuffer,
    Header,
    Kind,
    Status,
    decode_pairs_untrusted,
    encode_head,
)
from ledgerlog.wire.hello import Hello, decode_hello_untrusted, encode_hello
from tests.waiting import PATIENCE_S

KEY = b"k" * 16
DEADLINE_S = PATIENCE_S


class RawClient:
    """One connection. It finds the reply to a request by its number, even if other messages come first."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self._buffer = FrameBuffer()
        self._frames: deque[Frame] = deque()
        self._requests = 0

    # --- sending --------------------------------------------------------------------------------

    async def send(self, *buffers: Buffer) -> None:
        with trio.fail_after(DEADLINE_S):
            await self.stream.send_all(buffers)

    async def hello(
        self, bookie_id: str = "b1", instance: str | None = None, cluster: str | None = None
    ) -> tuple[Status, Hello]:
        await self.send(encode_hello(Hello(bookie_id, instance, cluster)))
        frame = await self.receive()
        assert frame.header.kind == Kind.HELLO | REPLY
        return Status(frame.header.status), decode_hello_untrusted(frame)

    async def add(
        self,
        ledger_id: int,
        first: int,
        payloads: Sequence[bytes],
        *,
        lac: int = -1,
        lafr: int = -1,
        key: bytes = KEY,
        recovery: bool = False,
    ) -> None:
        await self.send(*add(ledger_id, first, payloads, lac=lac, lafr=lafr, key=key, recovery=recovery))

    async def tell_lac(self, ledger_id: int, lac: int, *, key: bytes = KEY) -> None:
        await self.send(*encode_lac(ledger_id, lac=lac, lafr=-1, key=key))

    async def request(self, kind: Kind, **fields: object) -> int:
        """Send a request; its number."""
        self._requests += 1
        await self.send(encode_head(kind, request=self._requests, **fields))
        return self._requests

    async def ask(self, kind: Kind, **fields: object) -> Frame:
        """Send a request and wait for its reply."""
        return await self.reply_to(await self.request(kind, **fields))

    async def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        *,
        stride: int = 1,
        bytes_max: int = 1 << 20,
        recovery: bool = False,
        key: bytes = KEY,
        wait_ms: int = 0,
    ) -> tuple[Header, Entries]:
        frame = await self.ask(
            Kind.READ,
            flags=RECOVERY if recovery else 0,
            ledger_id=ledger_id,
            first=first,
            last=last,
            count=stride,
            argument=bytes_max,
            key=key,
            wait_ms=wait_ms,
        )
        entries = decode_entries_untrusted(frame)
        assert entries.first_damaged() is None
        return frame.header, entries

    # --- receiving ------------------------------------------------------------------------------

    async def receive(self, *, timeout_s: float = DEADLINE_S) -> Frame:
        """Return the next frame of any kind. EOFError: the connection has ended."""
        with trio.fail_after(timeout_s):
            while not self._frames:
                count = await self.stream.receive_into(self._buffer.writable())
                if not count:
                    raise EOFError
                self._buffer.received(count)
                for frame in self._buffer.take_frames():
                    self._frames.append(Frame(frame.header, memoryview(bytes(frame.raw))))
        return self._frames.popleft()

    async def reply_to(self, number: int, *, timeout_s: float = DEADLINE_S) -> Frame:
        passed: deque[Frame] = deque()
        while True:
            frame = await self.receive(timeout_s=timeout_s)
            if frame.header.request == number and frame.header.kind not in (Kind.ADD | REPLY, Kind.REFUSED):
                self._frames.extendleft(reversed(passed))
                return frame
            passed.append(frame)

    async def acknowledged(self, number: int) -> None:
        """Wait for the acknowledgement of an add. Fail if another add is refused, or if a later one is
        acknowledged too. Keep replies to requests."""
        passed: deque[Frame] = deque()
        while True:
            frame = await self.receive()
            header = frame.header
            if header.kind & REPLY and header.kind != Kind.ADD | REPLY:
                passed.append(frame)
                continue
            assert header.kind == Kind.ADD | REPLY, header
            assert header.request <= number
            if header.request == number:
                self._frames.extendleft(reversed(passed))
                return

    async def refused(self, number: int) -> Status:
        """Return the status with which an add is refused. Fail on anything else."""
        header = (await self.receive()).header
        assert header.kind == Kind.REFUSED, header
        assert header.request == number
        return Status(header.status)

    async def ended(self) -> None:
        """Wait for the end of the connection. Fail if the bookie sends anything before it."""
        with trio.fail_after(DEADLINE_S):
            while True:
                try:
                    frame = await self.receive()
                except EOFError:
                    return
                raise AssertionError(f"the bookie said {frame.header}")


def add(
    ledger_id: int,
    first: int,
    payloads: Sequence[bytes],
    *,
    lac: int = -1,
    lafr: int = -1,
    key: bytes = KEY,
    recovery: bool = False,
) -> list[Buffer]:
    """An ADD's buffers."""
    entries = Entries.build(ledger_id, first, payloads)
    return list(encode_add(entries, lac=lac, lafr=lafr, key=key, recovery=recovery))


def pairs(frame: Frame) -> list[tuple[int, int]]:
    return decode_pairs_untrusted(frame.body)


def figures(frame: Frame) -> dict[str, int]:
    fields = decode_record_untrusted(bytes(frame.body), "figures", WireError)
    return dict(fields._value)
