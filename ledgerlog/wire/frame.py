"""Frames: every message between a client and a bookie, as bytes.

A frame is a fixed header of 96 bytes, an index part, and payloads. All numbers are little endian.

    offset  size  field
    0       4     length     bytes that follow this field (at most FRAME_BYTES_MAX)
    4       4     checksum   CRC-32C of bytes 8 to the end of the index part
    8       1     kind       a request kind, or one with 0x80 set for its reply
    9       1     flags      RECOVERY, SPARSE
    10      2     status     of a reply: 0 is OK
    12      4     count      entries in the frame; the stride of a read, the classes of a scrub
    16      8     request    pairs replies with requests (not used by ADD)
    24      8     ledger     ledger id
    32      8     first      first entry id
    40      8     last       last entry id
    48      8     lac        last add confirmed that the sender knows
    56      8     lafr       last add fully replicated that the sender knows
    64      8     argument   depends on the kind
    72      4     wait_ms    how long a read may wait for the LAC to reach ``first``
    76      4     zero
    80      16    key        the ledger's key
    96            index part: count lengths (u32), count digests (u32), and with SPARSE count offsets
                  from ``first`` (u32); in kinds without entries, the whole body
                  payloads, one after the other

The frame's checksum covers LAC, LAFR, ids and lengths, and each entry's digest covers its payload (rule 17).
Together the checksum and the digests cover every byte, and each payload byte is processed only once.

**ADD and its acknowledgements.** An ADD has the same bytes for every bookie of a write set, so it has no
request number. Instead both ends count the ADDs of a connection from 1. ``ADD | REPLY`` has a number in
``request``: all ADDs up to it are durable, except ADDs that were refused before. A message of kind
``REFUSED`` refuses one ADD by its number and carries a status. An ADD without entries tells the LAC; it is
counted and acknowledged like any other.

**Replies** repeat the request's number and ledger id. A client closes its connection to a bookie that answers
a request that the client never made, or answers with another kind or ledger.

**READ** asks for the entries first, first + stride, ... up to ``last``, within ``argument`` payload bytes.
The reply holds the entries that were found, and is complete through the entry in ``argument``. A requested
entry up to there may be absent from the reply. Then the bookie does not have the entry (status OK or
NO_SUCH_LEDGER), or it does not know whether it once had the entry (status UNKNOWN: limbo). The reply says
nothing about later entries; CORRUPT and IO_ERROR say why the next entry could not be read. Any other status
refuses the whole request: the reply says nothing about any entry, ``argument`` is below ``first``, and
readers ignore it.

**READ_LAC** asks for the LAC, and may wait until the LAC is greater than ``first``. ``last`` in the reply is
the last entry that is durable on the bookie, whether or not the ledger's writer has acknowledged it (-1:
none).

**LIST** asks for the entries in the bookie's index from ``first`` to ``last`` (``last`` 0: to the end). The
body of the reply is pairs (first, last) of i64, complete through ``argument``. A reply may end early if the
bookie must look at many entries; a reply without pairs never ends early.

**SCRUB** asks the bookie to read the entries from ``first`` to ``last`` and check their digests, at most
``argument`` bytes of them. The bookie adds up the digests by class, and ``count`` is the number of classes.
``wire.scrub`` describes the body of the reply, which is complete through ``argument``.

**LEDGERS** asks for the ledgers with entries on the bookie, from the id in ``ledger`` on. ``key`` is the
bookie's listing key. ``wire.ledgers`` describes the body of the reply, which is complete through the ledger
in ``argument``. Status UNKNOWN: the bookie may have lost other ledgers.

**PROOF** follows HELLO if both ends prove who they are with a shared secret (``wire.proof``).
"""

from __future__ import annotations

import enum
import struct
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ledgerlog.errors import InvalidArgument, WireError
from ledgerlog.limits import ENTRY_ID_MAX, FRAME_BYTES_MAX, FRAME_ENTRIES_MAX, LEDGER_ID_MAX, TURN_BYTES
from ledgerlog.model.ids import NO_ENTRY
from ledgerlog.model.record import tuple_new
from ledgerlog.wire.checksum import checksum

HEADER = struct.Struct("<IIBBHIQqqqqqqI4x16s")
HEADER_BYTES = HEADER.size
assert HEADER_BYTES == 96

REPLY = 0x80
NO_KEY = bytes(16)


class Kind(enum.IntEnum):
    """The kind of a request. A reply has ``REPLY`` added."""

    HELLO = 1
    ADD = 2
    REFUSED = 3
    FENCE = 4
    READ = 5
    READ_LAC = 6
    LIST = 7
    INFO = 8
    SCRUB = 9
    LEDGERS = 10
    PROOF = 11


_KINDS = frozenset(kind.value for kind in Kind)
_WITH_ENTRIES = frozenset((Kind.ADD.value, Kind.READ.value | REPLY))

RECOVERY = 1
"""On an ADD: the bookie stores it even if the ledger is fenced. On a READ: the bookie fences the ledger,
durably, before it answers (R-B1)."""
SPARSE = 2
"""The index part has the entry ids as offsets from ``first``. Without this flag the ids are consecutive."""
_FLAGS = RECOVERY | SPARSE


class Status(enum.IntEnum):
    """The outcome of a request."""

    OK = 0
    FENCED = 1
    NO_SUCH_ENTRY = 2
    NO_SUCH_LEDGER = 3
    UNKNOWN = 4
    """A bookie in limbo (it may have lost entries) answers this instead of denying an entry."""
    UNAUTHORIZED = 5
    READ_ONLY = 6
    TOO_MANY_REQUESTS = 7
    IO_ERROR = 8
    CORRUPT = 9
    BAD_REQUEST = 10
    NOT_READY = 11
    CONFLICT = 12
    """The entry exists with another digest: one of the two copies is damaged (rule 6)."""
    DISK_FULL = 13
    WRONG_BOOKIE = 14
    """The peer is not the bookie that the client wants to reach, or it is another instance of that bookie."""
    PERMISSION_DENIED = 15
    """The client's principal does not have the right that the request needs. Only a client that has named its
    principal gets this status. All bookies would give the same answer. UNAUTHORIZED is different: it is about
    the ledger's key, and so about this bookie only."""


_STATUSES = frozenset(status.value for status in Status)


class Header(NamedTuple):
    """A frame's header. The fields are in wire order."""

    length: int
    checksum: int
    kind: int
    flags: int
    status: int
    entry_count: int
    request: int
    ledger_id: int
    first: int
    last: int
    lac: int
    lafr: int
    argument: int
    wait_ms: int
    key: bytes


class Frame(NamedTuple):
    """A header and its bytes. ``raw`` is the whole frame as it was received.

    A frame from a ``FrameBuffer`` is a view into the buffer. It is valid until the next call of ``writable``.
    """

    header: Header
    raw: memoryview

    @property
    def body(self) -> memoryview:
        return self.raw[HEADER_BYTES:]


def index_bytes(kind: int, flags: int, count: int, body_length: int) -> int:
    """Return how many bytes after the header the frame's checksum covers."""
    if kind in _WITH_ENTRIES:
        return count * (12 if flags & SPARSE else 8)
    return body_length


def encode_head(
    kind: int,
    *,
    flags: int = 0,
    status: int = 0,
    count: int = 0,
    request: int = 0,
    ledger_id: int = 0,
    first: int = 0,
    last: int = 0,
    lac: int = NO_ENTRY,
    lafr: int = NO_ENTRY,
    argument: int = 0,
    wait_ms: int = 0,
    key: bytes = NO_KEY,
    index: bytes = b"",
    payload_bytes: int = 0,
) -> bytes:
    """Encode the header and the index part of a frame. Send ``payload_bytes`` bytes of payload after it."""
    length = HEADER_BYTES - 4 + len(index) + payload_bytes
    assert length <= FRAME_BYTES_MAX, f"a frame of {length} bytes"
    covered = (
        HEADER.pack(
            0,
            0,
            kind,
            flags,
            status,
            count,
            request,
            ledger_id,
            first,
            last,
            lac,
            lafr,
            argument,
            wait_ms,
            key,
        )[8:]
        + index
    )
    return _LENGTH_AND_CHECKSUM.pack(length, checksum(covered)) + covered


_LENGTH_AND_CHECKSUM = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


def decode_frame_untrusted(raw: memoryview) -> Frame:
    """Decode the frame that ``raw`` holds exactly.

    This does not check the payload: ``Entries.damaged`` checks the digests.

    Raises:
        WireError: A field is out of range, or the checksum does not match.
    """
    size = len(raw)
    if size < HEADER_BYTES:
        raise WireError(f"a frame of {size} bytes; the header alone has {HEADER_BYTES}")
    header: Header = tuple_new(Header, HEADER.unpack_from(raw))
    if header.length != size - 4:
        raise WireError(f"a frame of {size} bytes says that it has {header.length + 4}")
    if header.kind & ~REPLY not in _KINDS:
        raise WireError(f"unknown message kind {header.kind}")
    if header.flags & ~_FLAGS:
        raise WireError(f"unknown flags {header.flags:#x} in a message of kind {header.kind}")
    if header.status not in _STATUSES:
        raise WireError(f"unknown status {header.status} in a message of kind {header.kind}")
    end = size
    if header.kind in _WITH_ENTRIES:
        if header.entry_count > FRAME_ENTRIES_MAX:
            raise WireError(f"{header.entry_count} entries in a frame, over the limit of {FRAME_ENTRIES_MAX}")
        body_length = size - HEADER_BYTES
        end = HEADER_BYTES + index_bytes(header.kind, header.flags, header.entry_count, body_length)
        if end > size:
            raise WireError(f"{header.entry_count} entries do not fit a body of {body_length} bytes")
    if checksum(bytes(raw[8:end])) != header.checksum:
        raise WireError(f"the checksum of a message of kind {header.kind} does not match")
    if not 0 <= header.ledger_id <= LEDGER_ID_MAX:
        raise WireError(f"ledger id {header.ledger_id} is out of range")
    if not (-1 <= header.first <= ENTRY_ID_MAX and -1 <= header.last <= ENTRY_ID_MAX):
        raise WireError(f"entry ids {header.first}..{header.last} are out of range")
    if not (NO_ENTRY <= header.lac <= ENTRY_ID_MAX and NO_ENTRY <= header.lafr <= ENTRY_ID_MAX):
        raise WireError(f"LAC {header.lac}, LAFR {header.lafr}: out of range")
    frame: Frame = tuple_new(Frame, (header, raw))
    return frame


class SpareBuffers:
    """Large buffers that several ``FrameBuffer`` objects lend each other.

    A busy writer sends a frame that needs a large buffer every few milliseconds. If each of these frames got
    a new buffer, the system would map and clear memory each time. That takes longer than receiving the frame.
    """

    __slots__ = ("_bytes_max", "_kept")

    def __init__(self, bytes_max: int) -> None:
        """Make an empty store that keeps at most ``bytes_max`` bytes."""
        self._bytes_max = bytes_max
        self._kept: list[bytearray] = []

    @property
    def bytes_held(self) -> int:
        """Bytes of the kept buffers, which are not in use."""
        return sum(map(len, self._kept))

    def take(self, size: int) -> bytearray | None:
        """Take the smallest kept buffer of at least ``size`` bytes; None if there is none. Its content is
        arbitrary."""
        fitting = [buffer for buffer in self._kept if len(buffer) >= size]
        if not fitting:
            return None
        found = min(fitting, key=len)
        self._kept.remove(found)
        return found

    def give(self, buffer: bytearray) -> None:
        """Keep a buffer that is no longer used. If the kept buffers have too many bytes, the smallest are
        freed."""
        self._kept.append(buffer)
        while self.bytes_held > self._bytes_max:
            self._kept.remove(min(self._kept, key=len))


class FrameBuffer:
    """Cuts a byte stream into frames, in place.

    The owner receives into ``writable()``, reports the number of bytes with ``received()``, and takes the
    complete frames. Memory is bounded. A length over the limit is refused before anything is buffered for it.
    The buffer doubles only when a frame's bytes really arrive, so a peer that announces a large frame and
    sends little of it costs little memory.
    """

    __slots__ = ("_buffer", "_end", "_filled", "_ordinary", "_roomy", "_spares", "_start", "_view")

    def __init__(
        self,
        initial_bytes: int = 256 * 1024,
        roomy_bytes: int | None = None,
        spares: SpareBuffers | None = None,
    ) -> None:
        """Make an empty buffer.

        Args:
            initial_bytes: The first size of the buffer.
            roomy_bytes: The largest size that the buffer keeps between frames (default: four times the
                initial size). If a receive fills the buffer, or at least half of it, more bytes are probably
                waiting. Then the buffer grows, up to this size. (Over TLS a receive ends with a TLS record
                and seldom fills the buffer.) The buffer grows beyond this size only for a larger frame, and
                shrinks after that frame.
            spares: Lends the buffers for larger frames, and gets them back afterwards. None: such buffers are
                made and freed.
        """
        self._roomy = 4 * initial_bytes if roomy_bytes is None else roomy_bytes
        assert HEADER_BYTES <= initial_bytes <= self._roomy
        self._buffer = bytearray(initial_bytes)
        self._view = memoryview(self._buffer)
        self._ordinary: bytearray | None = None  # the buffer to go back to after a larger frame
        self._spares = spares
        self._start = 0  # the position of the first byte that is not yet taken
        self._end = 0  # the position after the last received byte
        self._filled = False  # whether more bytes are probably waiting

    @property
    def capacity(self) -> int:
        """Bytes of memory held."""
        return len(self._buffer) + (0 if self._ordinary is None else len(self._ordinary))

    @property
    def is_mid_frame(self) -> bool:
        """Whether bytes of an unfinished frame have arrived."""
        return self._end > self._start

    @property
    def unfinished_bytes(self) -> int:
        """The whole size of the unfinished frame; 0 if there is none, or if its length has not arrived yet.

        Use this after ``take_frames``.
        """
        if self._end - self._start < 4:
            return 0
        (length,) = _LENGTH.unpack_from(self._view, self._start)
        return 4 + int(length)

    def writable(self) -> memoryview:
        """Return room to receive into. This invalidates every frame that was taken before: from now on the
        memory of these frames may hold other bytes, even bytes of another connection (``SpareBuffers``).

        The room is never empty. It is at most the rest of an unfinished frame plus ``limits.TURN_BYTES``.
        """
        rest = self._end - self._start
        size = len(self._buffer)
        if not rest:
            self._start = self._end = 0
            if not self._filled and size <= self._roomy:
                return self._view[:TURN_BYTES]  # This is the usual case: nothing moves, grows or shrinks.
        if size > self._roomy and self.unfinished_bytes <= self._roomy:
            self._leave_large(rest)  # The large frame is done: others may use its memory.
        elif size - self._end < size // 4 or not rest:
            if rest == size:
                size *= 2
            elif self._filled and size < self._roomy:
                size = min(2 * size, self._roomy)
            if size > self._roomy and size > len(self._buffer):
                self._enter_large(rest, size)
            elif size != len(self._buffer) or self._start:
                self._move(rest, size)
        room = len(self._buffer) - self._end
        if room > TURN_BYTES:
            # Receive a little more than the frame needs. If this brings the head of another large frame, the
            # large buffer is kept for that frame.
            room = min(room, TURN_BYTES + max(0, self.unfinished_bytes - rest))
        return self._view[self._end : self._end + room]

    def _move(self, rest: int, size: int) -> None:
        # If the size changes, make a new buffer. Otherwise move the bytes within the buffer: frames that were
        # taken before are no longer valid.
        if size != len(self._buffer):
            self._use(bytearray(size), rest)
        else:
            self._buffer[:rest] = self._view[self._start : self._end]
            self._start, self._end = 0, rest

    def _use(self, buffer: bytearray, rest: int) -> None:
        buffer[:rest] = self._view[self._start : self._end]
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._start, self._end = 0, rest

    def _enter_large(self, rest: int, size: int) -> None:
        before = self._buffer
        spares = self._spares
        # A spare costs nothing, so take one that fits the whole frame at once.
        spare = None if spares is None else spares.take(max(size, self.unfinished_bytes)) or spares.take(size)
        self._use(spare or bytearray(size), rest)
        if len(before) == self._roomy:
            self._ordinary = before
        elif len(before) > self._roomy and spares is not None:
            spares.give(before)

    def _leave_large(self, rest: int) -> None:
        large = self._buffer
        self._use(self._ordinary or bytearray(self._roomy), rest)
        self._ordinary = None
        if self._spares is not None:
            self._spares.give(large)

    def received(self, count: int) -> None:
        """Report that ``count`` bytes were received into the front of ``writable()``."""
        self._end += count
        size = len(self._buffer)
        self._filled = self._end == size or 2 * count >= size

    def take_frame(self, bytes_max: int) -> Frame | None:
        """Take the first complete frame alone; None if there is none yet.

        Raises:
            WireError: The frame is malformed, or it announces more than ``bytes_max`` bytes.
        """
        if self.unfinished_bytes > bytes_max:
            raise WireError(f"a frame of {self.unfinished_bytes} bytes where {bytes_max} are the most")
        start, stop = self._start, self._start + self.unfinished_bytes
        if stop == start or stop > self._end:
            return None
        self._start = stop
        return decode_frame_untrusted(self._view[start:stop])

    @property
    def has_frame(self) -> bool:
        """Whether ``take_frames`` would take a frame or raise WireError for a malformed length."""
        held = self._end - self._start
        if held < 4:
            return False
        (length,) = _LENGTH.unpack_from(self._view, self._start)
        return bool(4 + length <= held or length > FRAME_BYTES_MAX)

    def count_frames(self, count_max: int) -> tuple[int, int]:
        """Return the number and the size of the complete frames, up to ``count_max``, without taking them."""
        count, position, end, view = 0, self._start, self._end, self._view
        while count < count_max and end - position >= 4:
            (length,) = _LENGTH.unpack_from(view, position)
            if position + 4 + length > end:
                break
            position += 4 + length
            count += 1
        return count, position - self._start

    def take_frames(self, count_max: int = sys.maxsize) -> list[Frame]:
        """Take the complete frames, in order.

        Args:
            count_max: Take at most this many.

        Raises:
            WireError: A frame is malformed. Drop the connection.
        """
        frames: list[Frame] = []
        start, end, view = self._start, self._end, self._view
        while end - start >= 4 and count_max > 0:
            (length,) = _LENGTH.unpack_from(view, start)
            if not HEADER_BYTES - 4 <= length <= FRAME_BYTES_MAX:
                raise WireError(f"a frame length of {length} bytes is out of range")
            stop = start + 4 + length
            if stop > end:
                break
            frames.append(decode_frame_untrusted(view[start:stop]))
            start = stop
            count_max -= 1
        self._start = start
        return frames


def encode_pairs(pairs: Sequence[tuple[int, int]]) -> bytes:
    """Encode ranges of entry ids for a LIST reply. Raise InvalidArgument if the ranges do not grow."""
    _check_pairs(pairs, InvalidArgument)
    return b"".join(_PAIR.pack(first, last) for first, last in pairs)


def decode_pairs_untrusted(body: memoryview) -> list[tuple[int, int]]:
    """Decode the bytes of ``encode_pairs``. Raise WireError if they are not growing ranges."""
    if len(body) % _PAIR.size:
        raise WireError("a list of entry ranges has a part of a range")
    pairs = list(_PAIR.iter_unpack(body))
    _check_pairs(pairs, WireError)
    return pairs


def _check_pairs(pairs: Sequence[tuple[int, int]], error: Callable[[str], Exception]) -> None:
    previous = NO_ENTRY
    for first, last in pairs:
        if not previous < first <= last <= ENTRY_ID_MAX:
            raise error(f"entry range {first}..{last} after {previous}")
        previous = last


_PAIR = struct.Struct("<qq")
