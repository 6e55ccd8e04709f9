"""Every bound of the system in one place, with assertions on the relations between bounds.

Every queue has a bound in bytes, on by default. Every wait for another machine has a deadline. Names end in
their unit: ``_S`` is seconds, ``_BYTES`` bytes. If an option can change a value, the value here is its
default. If a name ends in ``_MAX``, and the wire or a file format depends on the value, the value is a hard
limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

KIB = 1024
MIB = 1024 * KIB

# --- entries, frames ----------------------------------------------------------------------------

RECORD_BYTES_MAX = 4 * MIB
"""The largest record that a log takes: 4 MiB."""

ENTRY_BYTES_MAX = RECORD_BYTES_MAX + 64 * KIB
"""The largest payload of one ledger entry: one record of the largest size and its header."""

RECORD_ATTRIBUTES_BYTES_MAX = 256 * KIB
"""The largest size of a record's key and headers together. They count towards ``RECORD_BYTES_MAX``, too."""

RECORD_HEADERS_MAX = 256
"""The most headers of one record."""

RECORD_HEADER_NAME_BYTES_MAX = 2**16 - 1
"""The longest name of a header, in bytes of UTF-8."""

FRAME_ENTRIES_MAX = 16 * KIB
"""The largest number of entries in one frame."""

FRAME_BYTES_MAX = ENTRY_BYTES_MAX + MIB
"""The largest frame on the wire, with its header and index part. A receiver checks this before it buffers
anything."""

FRAME_BYTES_TARGET = 512 * KIB
"""A writer closes a frame at about this many payload bytes."""

READ_REPLY_BYTES_TARGET = MIB
"""A bookie ends the reply to a range read at about this many payload bytes. One entry is always allowed."""

SCRUB_BLOCK_ENTRIES = 4 * KIB
"""How many entry ids make one block of a scrub; the digests of a block are added up. This number is part of
the wire format.
"""

SCRUB_BYTES = 8 * MIB
"""A bookie ends the reply to a scrub request once it has read about this many bytes for it."""

SCRUB_RANGES_MAX = 16 * KIB
SCRUB_SUMS_MAX = 16 * KIB
"""The most ranges of each kind, and the most sums of digests, in the reply to one scrub request."""

METADATA_TRANSACTION_BYTES_MAX = MIB - 32 * KIB
"""The largest metadata transaction, paths included. A ZooKeeper server takes packets below 1 MiB."""

METADATA_BYTES_MAX = METADATA_TRANSACTION_BYTES_MAX - 32 * KIB
"""The largest metadata record."""

METADATA_PATH_BYTES_MAX = KIB
"""The longest path of a metadata node, in bytes of UTF-8."""

LEDGER_ID_MAX = 2**63 - 1
ENTRY_ID_MAX = 2**63 - 2
ENSEMBLE_MAX = 64
"""The most bookies in the ensemble of a ledger."""

LEDGER_KEY_BYTES = 16
"""Every ledger has a random key of this length. A bookie refuses adds and fences that do not carry it."""

# --- writer -------------------------------------------------------------------------------------

WRITER_WINDOW_ENTRIES = 16 * KIB
WRITER_WINDOW_BYTES = 32 * MIB
"""Bounds for the appends of one ledger writer that the writer still keeps: entries, and payload bytes.
Further appends wait."""

WRITER_FRAMES_OUTSTANDING = 3
"""While this many frames of a ledger are unacknowledged, new entries gather into the next frame."""

LOG_ENTRY_BYTES_TARGET = 256 * KIB
"""Records are packed into entries of about this size."""

# --- logs ---------------------------------------------------------------------------------------

LOG_WINDOW_RECORDS = 256 * KIB
LOG_WINDOW_BYTES = 32 * MIB
"""Bounds for the records that a log writer has taken and not yet made durable. Further appends wait."""

LOG_READ_AHEAD_BYTES = 8 * MIB
"""How many bytes a log reader fetches ahead of the record that you read. One request is always allowed."""

TAIL_KEPT_BYTES = 4 * MIB
"""If readers in a process follow a log, the process keeps the newest records of each open ledger for all of
them: about this many bytes of each ledger."""

LOG_ROLL_BYTES = 1024 * MIB
"""A log continues in a new ledger at about this many bytes of records."""

LOG_SEGMENTS_ROLL_MAX = 12 * KIB
"""A log with this many ledgers no longer rolls by its policy. The rest of the list is for takeovers."""

LOG_SEGMENTS_SPLICE_MAX = 160 * KIB
"""A log with this many ledgers takes no more splices. The rest of the list is for writers."""

LOG_SEGMENTS_MAX = 320 * KIB
"""The most ledgers in a log's record, written or read. Version 0.1 read at most half of this number, and
could write somewhat more."""

LOG_RECORD_BYTES_MAX = METADATA_BYTES_MAX - 64 * KIB
"""The largest metadata record of a log. It leaves room for the other writes of its transaction."""

LOG_PROPERTIES_BYTES_MAX = 64 * KIB
"""The largest size of a log's properties: keys and values together, in bytes of UTF-8."""

LOG_LINGER_S_MAX = 1.0
"""The longest time that a record waits for others to share its entry, even if ``linger_s`` is larger."""

PRODUCER_ID_BYTES_MAX = 64
"""The longest id of a producer, in bytes of UTF-8."""

LOG_PRODUCERS = 10_000
LOG_PRODUCERS_MAX = 32 * KIB
"""How many producers a log's leader remembers: the default, and the maximum. The largest table fits into one
entry."""

LOG_PRODUCER_RUNS_MAX = 16
"""How many runs of consecutive records the log remembers of each producer."""

LOG_PRODUCER_KEEP_S = 86_400.0
"""How long a producer is remembered after its last append."""

LOG_CHECKPOINT_BYTES = MIB
LOG_CHECKPOINT_ENTRIES = KIB
"""The leader writes the table of producers again after this many bytes or entries of a ledger. A takeover
replays at most that much. A large table is written less often, so that tables take at most 1/32 of the
written bytes."""

CURSOR_PROPERTIES_BYTES_MAX = 16 * KIB
"""The largest size of a cursor's properties: keys and values together, in bytes of UTF-8."""

LOG_RETENTION_LOOK_S = 60.0
"""How often a log's leader looks for ledgers that retention may drop."""

LOG_SWEEP_AGE_S = 3600.0
"""A sweep deletes no unlisted ledger that is younger than this."""

LOG_STAGED_SWEEP_AGE_S = 24 * 3600.0
"""A sweep deletes no ledger that was staged for a splice if it is younger than this: a long batch may still
splice it."""

REPLICA_SNAPSHOT_SWEEP_AGE_S = 24 * 3600.0
"""A sweep deletes no unfinished snapshot that is younger than this: its writer may still finish it."""

LOG_SPLICE_LEDGERS_MAX = 10_000
"""The most ledgers that one transaction can splice into a log."""

LOG_SPLICE_LABELS_MAX = 256
"""A splice changes the labels of at most this many ledgers. Each takes about 640 bytes of its transaction. Of
the other ledgers, only the places in the list are in the transaction."""

LOG_GATHER_LEDGERS_MIN = 64
LOG_GATHER_LEDGERS_MAX = 1024
"""The fewest and the most neighbouring ledgers of a log that are gathered into one."""

LOG_GATHER_GROWTH = 4
"""A gathered ledger has at least this many times the weight of the heaviest ledger that it replaces. So each
record is copied only a few times, even if many ledgers come after it."""

LOG_GATHER_BYTES_MAX = 256 * MIB
"""Gathered ledgers have at most about this many bytes of records."""

LOG_GATHER_TIMEOUT_S = 60.0
"""A splice spends at most this long on gathering. The batch is in the log before that."""

LOG_GATHERED_KEEP_S = 24 * 3600.0
"""A ledger that a gathered one replaced is deleted after this time. Until then, a process that has read the
older list can read the ledger, and a backup of the older list can be restored."""

LOG_SPLICE_ANSWER_S = 10.0
"""How long a splice waits for the leader of the log to answer its request. After that, the splice takes the
log over."""

LOG_SPLICE_HOLD_S = 20.0
"""A leader that splices holds its appends back. Its leadership ends if it cannot write the log's record for
this many seconds."""

ARCHIVE_GROUP_ROWS = 64 * KIB
ARCHIVE_GROUP_BYTES = 8 * MIB
"""Archived files are written and read in groups of about this many records, or bytes of records."""

ARCHIVE_READ_TIMEOUT_S = 60.0
"""The deadline for reading a group, or for opening a file. After that the file counts as unavailable."""

ARCHIVE_REQUEST_TIMEOUT_S = 15.0
"""The deadline for one request to an object store."""

ARCHIVE_REQUEST_ATTEMPTS = 3
"""How many times a request to an object store is sent, if it fails in a way that may pass."""

ARCHIVE_THREADS_MAX = 16
"""The most threads of a process that read archived files. A thread that hangs in a file system counts too."""

ARCHIVE_KEEP_COPIES_S = 24 * 3600.0
"""How long bookies keep their copies of a ledger after it was archived."""

ARCHIVE_STRAY_AGE_S = 24 * 3600.0
"""A file that no log names is not deleted if it is younger than this: a job may be about to add it to a
log."""

ARCHIVE_MERGE_BYTES = 512 * MIB
"""Merging makes files of at most about this size."""

ARCHIVE_MERGE_LEDGERS_MAX = KIB
"""The most ledgers in one archived file."""

LOG_CLOSE_TIMEOUT_S = 15.0
"""The deadline for draining and closing when you leave a log writer. If it passes, the next opener recovers
the ledger."""

LOG_RESOLVE_TIMEOUT_S = 5.0
"""How long a deposed log writer tries to find out which of its last appends recovery kept."""

# --- elections ----------------------------------------------------------------------------------

ELECTION_BEAT_S = 0.1
"""How often a leader sends a heartbeat to its standbys."""

ELECTION_SILENCE_S = 1.0
"""A standby suspects that the leader is dead after this long without a heartbeat. If the connection breaks
and cannot be made again, the standby suspects that at once."""

ELECTION_TENURE_S = 0.5
ELECTION_TENURE_MAX_S = 60.0
"""For this long after a new term, no standby claims the lead on suspicion. Each duel doubles this time, from
the first value up to the second."""

ELECTION_STANDBYS_MAX = 256
"""How many standbys get a leader's heartbeats. Further ones rely on the metadata session."""

ELECTION_STRANGERS_MAX = 64
"""How many connections that have not said HELLO yet a candidate keeps open. For one more, the oldest is
closed."""

ELECTION_STEP_DOWN_S = 2.0
"""How long a process that leaves an election tries to tell the metadata store."""

# --- replicas -----------------------------------------------------------------------------------

REPLICA_REQUESTS = 50_000
REPLICA_RESULTS_BYTES = 64 * MIB
"""How many outcomes of requests a replica remembers, in number and in bytes. The remembered outcomes are part
of the replicated state: if two replicas of a log had different bounds, they would execute different commands.
So a change of these bounds is a change of the format."""

REPLICA_SNAPSHOT_RECORDS = 10_000
"""A replica takes a snapshot after this many records."""

REPLICA_SNAPSHOT_BYTES_MAX = 1024 * MIB
"""The largest snapshot that is stored and restored. The whole snapshot is checked in memory before the
machine sees it."""

REPLICA_EVENTS = 256
"""How many events wait for a slow listener. If there are more, the oldest are dropped, and an event tells the
listener how many."""

# --- connections --------------------------------------------------------------------------------

CONNECTION_SEND_QUEUE_BYTES = 64 * MIB
"""The most unsent bytes of one client connection. If there are more, the bookie is far too slow and counts as
failed.
"""

CONNECTION_SPARE_BUFFER_BYTES = 4 * MIB
"""The most bytes of larger receive buffers that a client keeps for large replies of all its connections."""

BOOKIE_CONNECTIONS_MAX = 2048
BOOKIE_INFLIGHT_BYTES = 256 * MIB
"""The most bytes that a bookie has received and not yet synced, over all connections. At this bound it pauses
reading."""

BOOKIE_CONNECTION_REPLY_BYTES = 16 * MIB
"""The most reply bytes of one connection of a bookie. They count from before the disk is read until they are
sent."""

BOOKIE_CONNECTION_UNREAD_BYTES = MIB
"""If more reply bytes of a connection wait for the client to read, the bookie begins no request of it."""

BOOKIE_CONNECTION_ANSWER_BYTES = 128 * KIB
"""The most bytes of unsent answers without data of one connection, such as refusals. At this bound the bookie
does not read from the connection."""

BOOKIE_CONNECTION_WORKING = 8
BOOKIE_CONNECTION_URGENT = 16
"""How many requests of one connection a bookie works on at the same time. Long polls do not count, and fences
and recovery reads have places of their own."""

BOOKIE_REPLY_BYTES = 128 * MIB
"""The most reply bytes of all connections of a bookie. At this bound a read request waits before it reads the
disk."""

BOOKIE_CONNECTION_REQUESTS = KIB
BOOKIE_REQUESTS = 8 * KIB
"""The most requests under way, for one connection and for the whole bookie. Adds do not count. The answer to
one more request is TOO_MANY_REQUESTS. Long polls may take up to three quarters of the places, because each
can last seconds."""

BOOKIE_CONNECTION_BUFFER_BYTES_MIN = 16 * KIB
BOOKIE_CONNECTION_BUFFER_BYTES = 256 * KIB
"""The receive buffer of a connection starts with the first size, and grows up to the second if it is used."""

BOOKIE_LARGE_FRAMES = 16
"""How many connections at once may hold a larger buffer, for a single frame that needs it."""

BOOKIE_SPARE_BUFFER_BYTES = 8 * MIB
"""The most bytes of larger buffers that a bookie keeps while no connection needs them."""

INDEX_CACHE_BYTES = 8 * MIB
"""Blocks of the index that a bookie keeps in memory."""

INDEX_WRITE_BUFFER_BYTES = 4 * MIB
"""The store of a bookie's index writes a table once it has this many bytes of rows."""

BOOKIE_UNIDENTIFIED_PER_ADDRESS = 128
"""The most connections from one address that have not sent HELLO. For one more, the bookie closes the oldest.
"""

HELLO_BYTES_MAX = 4 * KIB
"""The largest frame that a bookie takes from a peer that has not sent HELLO."""

JOURNAL_GATHER_BYTES = 2 * MIB
"""While a connection has more adds to read, a sync waits until this many bytes have gathered."""

PARTY_UNSYNCED_BYTES = 512 * KIB
"""While several parties (see ``PARTY_WORKING``) use a bookie, a party may add only while fewer bytes than
this of its adds wait for their sync."""

PARTY_WORKING = 64
PARTY_URGENT = 16
"""How many requests of one party a bookie works on at the same time. A party is all connections of one
principal from one address. There are as many places again for the answers of long polls, and other places for
fences and recovery reads."""

PARTY_LOOKS = 4
PRINCIPAL_LOOKS = 8
BOOKIE_LOOKS = 16
RESERVE_LOOKS = 4
"""How many questions about rights and ledgers a bookie asks the metadata store at the same time: for one
party, for all parties of one principal, for all parties together, and in addition for other bookies."""

PARTY_REQUESTS = 4 * KIB
PRINCIPAL_REQUESTS = 6 * KIB
RESERVE_REQUESTS = KIB
"""The most requests under way of one party, and of one principal; and how many requests beyond
``BOOKIE_REQUESTS`` are left for fences, recovery and other bookies. Adds do not count. Long polls take up to
three quarters of each number."""

PARTY_REPLY_BYTES = 64 * MIB
PRINCIPAL_REPLY_BYTES = 96 * MIB
RESERVE_REPLY_BYTES = 32 * MIB
"""The most reply bytes of one party, and of one principal; and the reply bytes that are left for recovery and
other bookies."""

PARTY_LARGE_FRAMES = 8
PRINCIPAL_LARGE_FRAMES = 12
RESERVE_LARGE_FRAMES = 4
"""How many connections of one party, and of one principal, may hold a larger buffer at the same time; and how
many connections of other bookies may, if all ``BOOKIE_LARGE_FRAMES`` buffers are held."""

TURN_REQUEST_BYTES = 4 * KIB
"""A request counts for at least this many bytes of a turn (the work that a party may do in one pass of the
event loop). The bytes that the request reads count in addition."""

ACCESS_LEDGERS = 16 * KIB
"""A bookie remembers the logs and keys of this many ledgers, for decisions about access."""

ACCESS_CONNECTION_LEDGERS = 4 * KIB
"""A bookie remembers for each connection its permissions on about this many ledgers."""

ACCESS_PRINCIPALS = 4 * KIB
"""A bookie remembers the rights of this many principals, and of all connected principals."""

BOOKIE_THREAD_SWITCH_S = 0.0005
"""How long a thread of a bookie waits for a thread that computes. A sync in a thread waits twice as long:
once before it begins, and once after it has ended."""

BOOKIE_COLLECTOR = (700, 10, 1000)
"""The thresholds of the garbage collector in a bookie. A full collection visits all objects in one go. This
takes 50 ms and more if many small entries are in memory. Objects that come and go often have no cycles, so
they are freed without the collector. With Python's own thresholds there would be a hundred times as many full
collections."""

TURN_BYTES = 64 * KIB
TURN_FRAMES = 32
TURN_CALLS = 16
"""After this many bytes, frames or calls without a wait, a connection lets the other tasks run."""

# --- deadlines, in seconds ----------------------------------------------------------------------

CONNECT_TIMEOUT_S = 3.0
HANDSHAKE_TIMEOUT_S = 5.0
FRAME_PROGRESS_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 5.0
"""The deadline for one bookie to answer a fence, read or list request."""

SCRUB_TIMEOUT_S = 30.0
"""The deadline for a scrub request. It reads more than other requests, and waits for its turn."""

ADD_TIMEOUT_S = 5.0
"""A bookie that leaves an add unanswered for this long has failed. An ensemble change follows."""

REACH_ASK_S = 0.5
"""If the oldest append of a ledger is not acknowledged after this long, its writer asks silent bookies for a
sign of life, and asks again after the same time."""

REACH_LOST_S = 1.0
"""If a bookie of a ledger whose oldest append is late (``REACH_ASK_S``) gives no sign of life for this long,
the bookie is out of reach."""

REACH_LOOK_S = 0.1
"""How often the writer of a ledger whose oldest append is late checks the signs of life."""

SCAN_PIECES_MAX = 100_000
"""A parallel read is split into about this many pieces at most, besides one for each ledger. Log records with
an absurd number of records would give 2**40 tasks otherwise."""

AUDIT_SETTLE_S = ADD_TIMEOUT_S + 1.0
"""If entries seem to be missing, an audit of all copies checks them again after this long. A committed entry
may still be on its way to one more bookie. After this time the entry has arrived, or that bookie has
failed."""

AUDIT_SETTLE_S_MAX = 3600.0

AUDIT_SHARE = 0.5
AUDIT_SHARE_MIN = 0.01
"""A task of an audit of all copies uses at most the first part of the time of each bookie. An option may say
another part, down to the second: then a bookie that answers within its time limit gets a request in an hour,
at least."""

APPEND_DEADLINE_S = 20.0
"""An append that has not reached its ack quorum after this time fails, and the ledger ends."""

REFUSED_S = 2.0
"""The writer of a new ledger ends after this time if authentication failed with every bookie: this process or
the bookie did not prove who it is. Waiting longer does not correct a wrong file or clock."""

METADATA_TIMEOUT_S = 10.0
FILING_TIMEOUT_S = 2.0
"""When a ledger ends, its writer waits at most this long until the ledger is filed for repair (a repair task
is written)."""

LATE_COPIES_S = 0.5
"""A writer that has closed its ledger waits for at most this long for the last confirmations of connected
bookies, before it files the ledger for repair."""

METADATA_CONFLICTS_MAX = 1000
"""A change of metadata fails after this many attempts if, each time, another process wrote between the
change's read and its write."""
SESSION_TIMEOUT_S = 6.0
SESSION_TIMEOUT_MAX_S = 24 * 3600.0
LONG_POLL_S = 5.0
CONNECTION_IDLE_S = 60.0
"""A client closes a connection that it has not used for this long."""

ACCESS_LOOK_S = 1.0
"""A bookie waits this long for the metadata store to say what a client may do. While an add waits, the later
frames of its connection wait, too. So this time is shorter than other waits for the store."""

ACCESS_REFRESH_S = 2.0
"""A bookie reads the grants of the connected principals at least this often. A watch reports most changes
sooner. If the watch is late, this bounds the delay."""

BOOKIE_DRAIN_S = 5.0
"""How long a stopping bookie waits for the requests that it has begun."""

LAC_PUBLISH_IDLE_S = 0.002
"""A writer that has been idle for this long publishes its LAC, so that followers see its last entry."""

RECONNECT_DELAY_MIN_S = 0.05
RECONNECT_DELAY_MAX_S = 2.0

BUSY_DELAY_MIN_S = 0.02
BUSY_DELAY_MAX_S = 0.5
"""A request that was answered TOO_MANY_REQUESTS is sent again after a pause. The pauses grow from the first
value to the second."""

LIMBO_TELL_S = 600.0
"""How often a bookie logs why ledgers stay in limbo (the bookie may have lost entries of them), if the reason
does not change."""

LIMBO_TELL_AGAIN_S = 60.0
"""If the reason changes, a bookie logs the new reason after this time at the earliest."""


ADMIN_CONNECTIONS = 32
"""How many connections the administration port serves at once. One more closes the oldest idle one."""
ADMIN_HEADER_BYTES_MAX = 16 * KIB
ADMIN_BODY_BYTES_MAX = 4 * KIB
"""The limits of a request to the administration port. No request needs a body."""
ADMIN_REQUEST_S = 60.0
"""A connection to the administration port is closed if its next request is not complete after this time."""
ADMIN_ANSWER_S = 10.0
"""The administration port has this long to find an answer and to send it. The asking process waits no longer,
either."""
ADMIN_ANSWER_BYTES_MAX = MIB
"""The most bytes that we read of an answer from an administration port."""

CONSOLE_PAGE_ROWS = 50
"""How many logs, ledgers or tasks a page of the console shows, and so how many the console follows for it."""
CONSOLE_LINE_PARTS_MAX = 120
"""The console draws a log as a line of about this many parts. The newest ledgers and gaps are drawn in
addition."""
CONSOLE_WATCHERS = 64
"""How many open pages one console serves."""
CONSOLE_SESSIONS = 256
"""How many people may be logged in at one console. One more logs the oldest out."""
CONSOLE_REFRESH_S = 1.0
"""How often the console asks the bookies. It asks the metadata store only after changes."""
CONSOLE_ANSWER_S = 0.75
"""A bookie that does not answer within this time is shown as unavailable. This time, the pause before the
question and ``CONSOLE_TELL_S`` together stay below two seconds."""
CONSOLE_GATHER_S = 1.0
"""After the console has read something in the metadata store, it waits this long before it reads that
again."""
CONSOLE_LISTING_S = 5.0
"""The same pause for a listing of all ledgers."""
CONSOLE_TELL_S = 0.2
"""The console sends differences to a page at most this often."""
CONSOLE_ALIVE_S = 15.0
"""If nothing on a page has changed, the console sends the page a sign of life this often, and then also
checks the rights of the page's user."""
CONSOLE_BODY_BYTES_MAX = 4 * KIB
"""The most bytes that the body of a request to the console may have."""
CONSOLE_BODY_S = 10.0
"""How long the console waits for the body of a request, for the next request on a connection, and for a
browser that does not receive the sent data."""


assert METADATA_TRANSACTION_BYTES_MAX > METADATA_BYTES_MAX + 4 * METADATA_PATH_BYTES_MAX
assert ENTRY_BYTES_MAX > RECORD_BYTES_MAX > RECORD_ATTRIBUTES_BYTES_MAX > RECORD_HEADER_NAME_BYTES_MAX
assert FRAME_BYTES_MAX > ENTRY_BYTES_MAX + 128 + 12 * FRAME_ENTRIES_MAX
assert FRAME_BYTES_TARGET <= ENTRY_BYTES_MAX
assert 8 + 2 * 16 * SCRUB_RANGES_MAX + 24 * SCRUB_SUMS_MAX <= READ_REPLY_BYTES_TARGET
assert SCRUB_SUMS_MAX >= 2 * SCRUB_BLOCK_ENTRIES  # so a request that begins inside a block makes progress
assert SCRUB_BLOCK_ENTRIES >= ENSEMBLE_MAX
assert CONNECTION_SEND_QUEUE_BYTES >= 4 * FRAME_BYTES_MAX
assert WRITER_WINDOW_BYTES >= 2 * ENTRY_BYTES_MAX
assert CONNECTION_SEND_QUEUE_BYTES >= WRITER_WINDOW_BYTES
assert BOOKIE_INFLIGHT_BYTES >= 4 * FRAME_BYTES_MAX
assert BOOKIE_CONNECTION_REPLY_BYTES >= READ_REPLY_BYTES_TARGET + ENTRY_BYTES_MAX
assert BOOKIE_CONNECTION_REPLY_BYTES > BOOKIE_CONNECTION_UNREAD_BYTES
assert BOOKIE_REPLY_BYTES >= 2 * BOOKIE_CONNECTION_REPLY_BYTES
assert BOOKIE_CONNECTION_WORKING < PARTY_WORKING
assert BOOKIE_CONNECTION_URGENT <= PARTY_URGENT
assert BOOKIE_CONNECTION_REQUESTS < PARTY_REQUESTS < PRINCIPAL_REQUESTS < BOOKIE_REQUESTS
assert BOOKIE_CONNECTION_REPLY_BYTES < PARTY_REPLY_BYTES < PRINCIPAL_REPLY_BYTES < BOOKIE_REPLY_BYTES
assert RESERVE_REPLY_BYTES >= READ_REPLY_BYTES_TARGET + ENTRY_BYTES_MAX
assert PARTY_LARGE_FRAMES < PRINCIPAL_LARGE_FRAMES < BOOKIE_LARGE_FRAMES
assert PARTY_LOOKS < PRINCIPAL_LOOKS < BOOKIE_LOOKS
assert 4 * REACH_LOOK_S < REACH_ASK_S <= REACH_LOST_S / 2 < REACH_LOST_S < ADD_TIMEOUT_S < APPEND_DEADLINE_S
assert REFUSED_S < APPEND_DEADLINE_S
assert ADD_TIMEOUT_S < AUDIT_SETTLE_S
assert AUDIT_SHARE_MIN < AUDIT_SHARE < 1
assert SCRUB_TIMEOUT_S / AUDIT_SHARE_MIN <= 3600.0
assert ARCHIVE_REQUEST_ATTEMPTS * ARCHIVE_REQUEST_TIMEOUT_S < ARCHIVE_READ_TIMEOUT_S
assert ACCESS_LOOK_S < ADD_TIMEOUT_S / 2
assert ACCESS_LOOK_S < REQUEST_TIMEOUT_S / 2
assert ACCESS_LOOK_S < ADMIN_ANSWER_S / 2
assert 3 * ELECTION_BEAT_S <= ELECTION_SILENCE_S < SESSION_TIMEOUT_S
assert ELECTION_TENURE_S < ELECTION_TENURE_MAX_S
assert LOG_WINDOW_BYTES >= 2 * RECORD_BYTES_MAX
assert LOG_ENTRY_BYTES_TARGET <= ENTRY_BYTES_MAX
assert 54 * LOG_SEGMENTS_ROLL_MAX + LOG_PROPERTIES_BYTES_MAX < LOG_RECORD_BYTES_MAX  # a segment's worst case
assert LOG_GATHER_GROWTH < LOG_GATHER_LEDGERS_MIN < LOG_GATHER_LEDGERS_MAX
assert METADATA_TIMEOUT_S <= LOG_SPLICE_ANSWER_S < LOG_SPLICE_HOLD_S <= APPEND_DEADLINE_S
assert LOG_SEGMENTS_ROLL_MAX < LOG_SEGMENTS_SPLICE_MAX <= LOG_SEGMENTS_MAX // 2
assert LOG_PRODUCERS <= LOG_PRODUCERS_MAX
assert LOG_PRODUCERS_MAX * (PRODUCER_ID_BYTES_MAX + 34) + KIB < ENTRY_BYTES_MAX  # one run for each producer

SHARED_DISK: Mapping[str, Any] = {
    "disk_warning_ratio": 0.999,
    "disk_writable_ratio": 0.999,
    "disk_read_only_ratio": 1.0,
    "disk_reserve_bytes": 64 * MIB,
}
"""Options of a bookie that shares its disk with the rest of the machine. There the reserve is a number of
bytes, not a share of the disk: a laptop's disk that is 96 % full may have 40 GB free."""
assert (
    ARCHIVE_REQUEST_ATTEMPTS * ARCHIVE_REQUEST_TIMEOUT_S < ARCHIVE_READ_TIMEOUT_S
)  # its own error says more
