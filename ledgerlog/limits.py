"""Every bound of the system in one place, with the relations between bounds asserted.

Whatever queues has a bound in bytes, on by default; whatever waits on another machine has a
deadline. Names end in their unit. A value here is a default where an option exists to change it and
a hard limit where its name ends in ``_max`` and the wire or a file format depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KIB = 1024
MIB = 1024 * KIB

# --- entries, frames ----------------------------------------------------------------------------

RECORD_BYTES_MAX = 4 * MIB
"""The largest record that a log takes."""

ENTRY_BYTES_MAX = RECORD_BYTES_MAX + 64 * KIB
"""The largest payload of one ledger entry: one record of the largest size and its header."""

FRAME_ENTRIES_MAX = 16 * KIB
"""Entries in one frame."""

FRAME_BYTES_MAX = ENTRY_BYTES_MAX + MIB
"""The largest frame on the wire, header and index part included. Checked before any buffering."""

FRAME_BYTES_TARGET = 512 * KIB
"""A writer closes a frame at about this many payload bytes."""

READ_REPLY_BYTES_TARGET = MIB
"""A bookie ends a range reply at about this many payload bytes (one entry always fits)."""

SCRUB_BLOCK_ENTRIES = 4 * KIB
"""Entry ids whose digests a scrub adds up: part of the wire format."""

SCRUB_BYTES = 8 * MIB
"""A bookie ends the answer to one scrub request at about this many bytes that it read for it."""

SCRUB_RANGES_MAX = 16 * KIB
SCRUB_SUMS_MAX = 16 * KIB
"""Ranges of each kind, and sums of digests, in the answer to one scrub request."""

METADATA_TRANSACTION_BYTES_MAX = MIB - 32 * KIB
"""The largest metadata transaction, paths and all; a ZooKeeper server takes packets below 1 MiB."""

METADATA_BYTES_MAX = METADATA_TRANSACTION_BYTES_MAX - 32 * KIB
"""The largest metadata record."""

METADATA_PATH_BYTES_MAX = KIB
"""The longest path of a metadata node, in UTF-8."""

LEDGER_ID_MAX = 2**63 - 1
ENTRY_ID_MAX = 2**63 - 2
ENSEMBLE_MAX = 64

LEDGER_KEY_BYTES = 16
"""Every ledger has a random key; a bookie refuses writes and fences that do not carry it."""

# --- writer -------------------------------------------------------------------------------------

WRITER_WINDOW_ENTRIES = 16 * KIB
WRITER_WINDOW_BYTES = 32 * MIB
"""Appended and not yet retired payload bytes of one ledger writer; appends wait beyond it."""

WRITER_FRAMES_OUTSTANDING = 3
"""While this many frames of a ledger are unacknowledged, what arrives gathers into the next one."""

LOG_ENTRY_BYTES_TARGET = 256 * KIB
"""Records are packed into entries of about this size."""

# --- logs ---------------------------------------------------------------------------------------

LOG_WINDOW_RECORDS = 256 * KIB
LOG_WINDOW_BYTES = 32 * MIB
"""Records that a log writer has taken and that are not yet durable; appends wait beyond it."""

LOG_READ_AHEAD_BYTES = 8 * MIB
"""What a log reader fetches ahead of the record that its user looks at (one request always fits)."""

LOG_ROLL_BYTES = 1024 * MIB
"""A log goes on in a new ledger at about this many bytes of records."""

LOG_SEGMENTS_ROLL_MAX = 12 * KIB
"""A log with so many ledgers no longer rolls by its policy, so that takeovers still find room."""

LOG_SEGMENTS_SPLICE_MAX = 160 * KIB
"""A log with so many ledgers takes no more of them by splicing, so that writers still find room."""

LOG_SEGMENTS_MAX = 320 * KIB
"""Ledgers in a log's record, written or read. Version 0.1 wrote records of somewhat more than it read, half
of this."""

LOG_RECORD_BYTES_MAX = METADATA_BYTES_MAX - 64 * KIB
"""The largest metadata record of a log; the rest is left for the transaction that carries it."""

LOG_PROPERTIES_BYTES_MAX = 64 * KIB
"""A log's properties, keys and values together, in UTF-8."""

LOG_LINGER_S_MAX = 1.0
"""A record waits for company for so long at most, whatever its writer was asked for."""

PRODUCER_ID_BYTES_MAX = 64
"""A producer's id, in UTF-8."""

LOG_PRODUCERS = 10_000
LOG_PRODUCERS_MAX = 32 * KIB
"""Producers that a log's leader remembers; the table of the most of them fits into one entry."""

LOG_PRODUCER_RUNS_MAX = 16
"""Stretches of consecutive records that are remembered of each producer."""

LOG_PRODUCER_KEEP_S = 86_400.0
"""A producer is remembered for so long after its last append."""

LOG_CHECKPOINT_BYTES = MIB
LOG_CHECKPOINT_ENTRIES = KIB
"""The table of producers is written again after so many bytes or entries of a ledger: what a takeover
replays at most. A table so large that this were more than a thirty-second of what is written comes later."""

CURSOR_PROPERTIES_BYTES_MAX = 16 * KIB
"""A cursor's properties, keys and values together, in UTF-8."""

LOG_RETENTION_LOOK_S = 60.0
"""How often a log's leader looks for what its retention lets go."""

LOG_SWEEP_AGE_S = 3600.0
"""A ledger that no list names is not swept before it is this old."""

LOG_STAGED_SWEEP_AGE_S = 24 * 3600.0
"""Nor is one that was staged for a log and never became part of it, which a long batch may still do."""

REPLICA_SNAPSHOT_SWEEP_AGE_S = 24 * 3600.0
"""Nor a snapshot that is listed as unfinished: whoever still writes it would have to begin again."""

LOG_SPLICE_LEDGERS_MAX = 256
"""Ledgers that become part of a log in one transaction."""

ARCHIVE_GROUP_ROWS = 64 * KIB
ARCHIVE_GROUP_BYTES = 8 * MIB
"""An archived file is written and read by groups of about so many records, or bytes of records."""

ARCHIVE_READ_TIMEOUT_S = 60.0
"""A group, or what opening a file needs, is read within this time, or the file counts as unavailable."""

ARCHIVE_THREADS_MAX = 16
"""Threads of a process that are in archived files. Those that a file system does not let go count."""

ARCHIVE_KEEP_COPIES_S = 24 * 3600.0
"""Bookies keep their copies of a ledger for so long after it was archived."""

ARCHIVE_STRAY_AGE_S = 24 * 3600.0
"""A file that no log names is not deleted before it is this old: a job may be about to name it."""

ARCHIVE_MERGE_BYTES = 512 * MIB
"""Merging makes files of about this size at most."""

ARCHIVE_MERGE_LEDGERS_MAX = KIB
"""Ledgers in one archived file."""

LOG_CLOSE_TIMEOUT_S = 15.0
"""Leaving a log writer drains and closes within this time, or leaves the ledger to the next opener."""

LOG_RESOLVE_TIMEOUT_S = 5.0
"""A deposed log writer tries for this long to find out what recovery kept of its last appends."""

# --- elections ----------------------------------------------------------------------------------

ELECTION_BEAT_S = 0.1
"""A leader tells its standbys so often that it is there."""

ELECTION_SILENCE_S = 1.0
"""A leader that was not heard for so long is suspected to be dead. One whose connection breaks, and that
cannot be reached again, is suspected at once."""

ELECTION_TENURE_S = 0.5
ELECTION_TENURE_MAX_S = 60.0
"""A new leader is left alone for so long on mere suspicion; a duel doubles it, up to the second."""

ELECTION_STANDBYS_MAX = 256
"""Standbys that hear one leader's heartbeat; further ones rely on the metadata session."""

ELECTION_STEP_DOWN_S = 2.0
"""Who leaves an election tries for so long to tell the metadata store."""

# --- replicas -----------------------------------------------------------------------------------

REPLICA_REQUESTS = 50_000
REPLICA_RESULTS_BYTES = 64 * MIB
"""Outcomes of requests that a replica remembers. Part of the replicated state: replicas of one log that had
other values would execute other things, so a change of these is a change of the format."""

REPLICA_SNAPSHOT_RECORDS = 10_000
"""A replica takes a snapshot after so many records."""

REPLICA_SNAPSHOT_BYTES_MAX = 1024 * MIB
"""The largest snapshot that is restored: it is checked as a whole, in memory, before the machine sees it."""

REPLICA_EVENTS = 256
"""Events that a slow listener has not taken; the oldest are lost beyond it, and it is told how many."""

# --- connections --------------------------------------------------------------------------------

CONNECTION_SEND_QUEUE_BYTES = 64 * MIB
"""Unsent bytes of one client connection; past it the bookie counts as failed (it is far too slow)."""

BOOKIE_CONNECTIONS_MAX = 2048
BOOKIE_INFLIGHT_BYTES = 256 * MIB
"""Received and not yet durable bytes of all connections of a bookie; past it reading pauses."""

BOOKIE_CONNECTION_REPLY_BYTES = 16 * MIB
"""Unsent reply bytes of one connection of a bookie; past it its requests are not read."""

BOOKIE_REPLY_BYTES = 128 * MIB
"""Reply bytes of all connections of a bookie; past it reads wait before they read."""

BOOKIE_CONNECTION_REQUESTS = KIB
BOOKIE_REQUESTS = 8 * KIB
"""Requests other than adds under way; one more is answered TOO_MANY_REQUESTS. A quarter of the places is kept
from long polls, which may take theirs for seconds."""

BOOKIE_CONNECTION_BUFFER_BYTES_MIN = 16 * KIB
BOOKIE_CONNECTION_BUFFER_BYTES = 256 * KIB
"""A connection receives into a buffer that grows from the first to the second as it is used."""

BOOKIE_LARGE_FRAMES = 16
"""So many connections at once may hold a larger buffer, for the one frame that needs it."""

BOOKIE_UNIDENTIFIED_PER_ADDRESS = 128
"""Connections from one address that have not said HELLO. Where one more comes the oldest is closed."""

HELLO_BYTES_MAX = 4 * KIB
"""The largest frame that a bookie takes before a peer has said HELLO."""

JOURNAL_GATHER_BYTES = 2 * MIB
"""While a connection has more adds at hand, a sync waits for them until so many bytes have gathered."""

TURN_BYTES = 64 * KIB
TURN_FRAMES = 64
TURN_CALLS = 16
"""After so many bytes, frames or calls that did not wait, a connection lets the other tasks run."""

# --- deadlines, in seconds ----------------------------------------------------------------------

CONNECT_TIMEOUT_S = 3.0
HANDSHAKE_TIMEOUT_S = 5.0
FRAME_PROGRESS_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 5.0
"""A fence, read or list request to one bookie."""

SCRUB_TIMEOUT_S = 30.0
"""A scrub request: it reads more than others do, and waits for its turn."""

ADD_TIMEOUT_S = 5.0
"""A bookie that leaves an add unanswered for this long has failed (an ensemble change follows)."""

AUDIT_SETTLE_S = ADD_TIMEOUT_S + 1.0
"""An audit of all copies looks again at what seems to be missing after so long: an entry that is committed
and on its way to one more bookie has arrived by then, or that bookie has failed."""

AUDIT_SETTLE_S_MAX = 3600.0

APPEND_DEADLINE_S = 20.0
"""An append that cannot reach its ack quorum within this time fails and the ledger ends."""

METADATA_TIMEOUT_S = 10.0
METADATA_CONFLICTS_MAX = 1000
"""A change of metadata that met so many rivals between its looks and its writes fails."""
SESSION_TIMEOUT_S = 6.0
LONG_POLL_S = 5.0
CONNECTION_IDLE_S = 60.0
"""A client closes a connection that nobody has needed for this long."""

BOOKIE_DRAIN_S = 5.0
"""A bookie that stops gives what it has begun this long to finish."""

LAC_PUBLISH_IDLE_S = 0.002
"""A writer that has been idle for this long publishes its LAC, so that followers see the last entry."""

RECONNECT_DELAY_MIN_S = 0.05
RECONNECT_DELAY_MAX_S = 2.0

BUSY_DELAY_MIN_S = 0.02
BUSY_DELAY_MAX_S = 0.5
"""A request that was answered TOO_MANY_REQUESTS is sent again after so long, the pauses growing."""

LIMBO_TELL_S = 600.0
"""How often a bookie says again what keeps ledgers in limbo, while that does not change."""

LIMBO_TELL_AGAIN_S = 60.0
"""How long it waits at least before it says something else about that."""


assert METADATA_TRANSACTION_BYTES_MAX > METADATA_BYTES_MAX + 4 * METADATA_PATH_BYTES_MAX
assert ENTRY_BYTES_MAX > RECORD_BYTES_MAX
assert FRAME_BYTES_MAX > ENTRY_BYTES_MAX + 128 + 12 * FRAME_ENTRIES_MAX
assert FRAME_BYTES_TARGET <= ENTRY_BYTES_MAX
assert 8 + 2 * 16 * SCRUB_RANGES_MAX + 24 * SCRUB_SUMS_MAX <= READ_REPLY_BYTES_TARGET
assert SCRUB_SUMS_MAX >= 2 * SCRUB_BLOCK_ENTRIES  # a request that begins inside a block gets on
assert SCRUB_BLOCK_ENTRIES >= ENSEMBLE_MAX
assert CONNECTION_SEND_QUEUE_BYTES >= 4 * FRAME_BYTES_MAX
assert WRITER_WINDOW_BYTES >= 2 * ENTRY_BYTES_MAX
assert CONNECTION_SEND_QUEUE_BYTES >= WRITER_WINDOW_BYTES
assert BOOKIE_INFLIGHT_BYTES >= 4 * FRAME_BYTES_MAX
assert BOOKIE_CONNECTION_REPLY_BYTES >= READ_REPLY_BYTES_TARGET + ENTRY_BYTES_MAX
assert BOOKIE_REPLY_BYTES >= 2 * BOOKIE_CONNECTION_REPLY_BYTES
assert BOOKIE_CONNECTION_REQUESTS < BOOKIE_REQUESTS
assert ADD_TIMEOUT_S < APPEND_DEADLINE_S
assert ADD_TIMEOUT_S < AUDIT_SETTLE_S
assert 3 * ELECTION_BEAT_S <= ELECTION_SILENCE_S < SESSION_TIMEOUT_S
assert ELECTION_TENURE_S < ELECTION_TENURE_MAX_S
assert LOG_WINDOW_BYTES >= 2 * RECORD_BYTES_MAX
assert LOG_ENTRY_BYTES_TARGET <= ENTRY_BYTES_MAX
assert 54 * LOG_SEGMENTS_ROLL_MAX + LOG_PROPERTIES_BYTES_MAX < LOG_RECORD_BYTES_MAX  # a segment's worst case
assert LOG_SEGMENTS_ROLL_MAX < LOG_SEGMENTS_SPLICE_MAX <= LOG_SEGMENTS_MAX // 2
assert LOG_PRODUCERS <= LOG_PRODUCERS_MAX
assert LOG_PRODUCERS_MAX * (PRODUCER_ID_BYTES_MAX + 34) + KIB < ENTRY_BYTES_MAX  # one run of each

SHARED_DISK: Mapping[str, Any] = {
    "disk_warning_ratio": 0.999,
    "disk_writable_ratio": 0.999,
    "disk_read_only_ratio": 1.0,
    "disk_reserve_bytes": 64 * MIB,
}
"""Options of a bookie that shares its disk with everything else on the machine. Bytes decide there, because
a share of the whole disk says nothing: a laptop's disk that is 96 % full may have 40 GB free."""
