"""The paths of all nodes in the metadata store.

    cluster                         the cluster's random id, made once
    ledgers/HHHHHHHH/HHHH/HHHH      metadata of a ledger: its id in hexadecimal, spread over a tree so that
                                    no node has more than 65,536 children
    bookies/writable/ID             registration of a serving bookie (ephemeral)
    bookies/read-only/ID            registration of a bookie that takes no ordinary writes (ephemeral)
    bookies/placement               the rule about racks, if an operator has set one (``model.placement``)
    cookies/ID                      a bookie's cookie
    logs/NAME                       a log's name -> its incarnation, a number never used again
    log/HHHHHHHHHHHHHHHH            the record of one incarnation of a log: its list of ledgers
    cursors/HHHHHHHHHHHHHHHH/NAME   a cursor of that incarnation of a log
    splices/HHHHHHHHHHHHHHHH/NAME   the mark of a producer's last splice into that incarnation of a log
    splices/HHHHHHHHHHHHHHHH/.gathered-HHHHHHHHHHHHHHHH
                                    the ledgers of that log that a gathered ledger replaced in its list
    requests/HHHHHHHHHHHHHHHH/HH... a request to the leader of that incarnation of a log to splice ledgers
                                    (ephemeral)
    archives/HHHHHHHHHHHHHHHH/HHHHHHHHHHHHHHHH
                                    a file that holds a ledger of that incarnation of a log
    destinations/HH...              a destination of archived files, with the id of its marker: 32
                                    hexadecimal digits of the SHA-256 of the text that identifies it
    snapshots/HHHHHHHHHHHHHHHH      the ledgers that hold snapshots of a state machine on that log
    elections/NAME                  the record of an election: its term and its holder
    elections/NAME/candidates/ID    a candidate (ephemeral)
    access/mode                     how the cluster is closed (``model.admission``)
    access/grants/PRINCIPAL         the rights of a principal (``model.access``)
    restored                        exists from the restore of a backup until an operator accepts the loss
                                    (``model.restoration``)
    repair/...                      the nodes of auto-recovery: see ``model.repair``

A log's name and its record are separate nodes. If a log is deleted and made again, it gets another record
node. So a stale writer's compare-and-set fails with NodeMissing. It never succeeds just because the versions
of the two nodes happen to be equal.
"""

from __future__ import annotations

import hashlib

from ledgerlog.limits import LEDGER_ID_MAX
from ledgerlog.model.ids import BookieId

CLUSTER = "cluster"
ADMISSION = "access/mode"
GRANTS = "access/grants"
LEDGERS = "ledgers"
WRITABLE_BOOKIES = "bookies/writable"
READ_ONLY_BOOKIES = "bookies/read-only"
BOOKIES = "bookies"
PLACEMENT = "bookies/placement"
COOKIES = "cookies"
SNAPSHOTS = "snapshots"
LOG_NAMES = "logs"
LOG_RECORDS = "log"
CURSORS = "cursors"
SPLICES = "splices"
REQUESTS = "requests"
ARCHIVES = "archives"
DESTINATIONS = "destinations"
ELECTIONS = "elections"
RESTORED = "restored"

_GATHERED = ".gathered-"

REPAIR = "repair"
REPAIR_SETTINGS = "repair/settings"
REPAIR_TASKS = "repair/tasks"
REPAIR_LOCKS = "repair/locks"
REPAIR_WORKERS = "repair/workers"
REPAIR_PROGRESS = "repair/progress"
REPAIR_DRAINING = "repair/draining"
REPAIR_AUDIT = "repair/audit"

LEDGER_COUNTER = "ledger"
LOG_COUNTER = "log"

LASTING_ROOTS = (
    CLUSTER,
    LEDGERS,  # Before the logs: the backup then adds the ledgers that logs have listed since.
    LOG_RECORDS,
    LOG_NAMES,
    COOKIES,  # After the ledgers: the backup then knows each bookie that a ledger names.
    PLACEMENT,
    CURSORS,
    SPLICES,
    ARCHIVES,
    DESTINATIONS,
    SNAPSHOTS,
    ELECTIONS,
    REPAIR,
    ADMISSION,
    GRANTS,
)
"""The parents of all nodes in a backup, in the order in which they are read."""


def is_lasting(path: str) -> bool:
    """Return whether a node may outlive the session that made it. If so, a backup must contain it."""
    parts = path.split("/")
    if parts[0] == ELECTIONS:
        return not (len(parts) > 2 and parts[2] == "candidates")
    if parts[0] == REPAIR:
        return "/".join(parts[:2]) not in (REPAIR_LOCKS, REPAIR_WORKERS, REPAIR_PROGRESS)
    return path == PLACEMENT or parts[0] not in (BOOKIES, REQUESTS, RESTORED)


def grants_path(principal: str) -> str:
    """Return the path of a principal's grants. Slashes are spelled %2F, as in names of logs."""
    return f"{GRANTS}/{principal.replace('/', '%2F')}"


def principal_of(component: str) -> str:
    """Return the principal that a component below ``access/grants`` spells."""
    return component.replace("%2F", "/")


def ledger_path(ledger_id: int) -> str:
    text = f"{ledger_id:016x}"
    return f"{LEDGERS}/{text[:8]}/{text[8:12]}/{text[12:]}"


def ledger_id_of(*components: str) -> int:
    """Return the ledger id that three components below ``ledgers`` spell. Raise ValueError if they spell
    none."""
    path = "/".join((LEDGERS, *components))
    ledger_id = int("".join(components), 16) if len(components) == 3 else -1
    # int() alone would also accept signs, underscores and capitals.
    if not 0 <= ledger_id <= LEDGER_ID_MAX or ledger_path(ledger_id) != path:
        raise ValueError(f"{path!r} is not the path of a ledger")
    return ledger_id


def repair_task_path(ledger_id: int) -> str:
    """Return the path of a ledger's repair task. Tasks are spread over a tree like the ledgers."""
    return f"{REPAIR_TASKS}/{ledger_path(ledger_id).removeprefix(LEDGERS + '/')}"


def repair_lock_path(ledger_id: int) -> str:
    return f"{REPAIR_LOCKS}/{ledger_id:016x}"


def repair_worker_path(token: str) -> str:
    return f"{REPAIR_WORKERS}/{token}"


def repair_progress_path(token: str) -> str:
    return f"{REPAIR_PROGRESS}/{token}"


def draining_path(bookie_id: BookieId) -> str:
    return f"{REPAIR_DRAINING}/{bookie_id}"


def writable_path(bookie_id: BookieId) -> str:
    return f"{WRITABLE_BOOKIES}/{bookie_id}"


def read_only_path(bookie_id: BookieId) -> str:
    return f"{READ_ONLY_BOOKIES}/{bookie_id}"


def cookie_path(bookie_id: BookieId) -> str:
    return f"{COOKIES}/{bookie_id}"


def log_name_path(name: str) -> str:
    """Return the path of a log's name. A slash is spelled %2F, so every log is one child of ``logs``."""
    return f"{LOG_NAMES}/{name.replace('/', '%2F')}"


def log_name_of(component: str) -> str:
    return component.replace("%2F", "/")


def cursors_path(incarnation: int) -> str:
    """Return the parent of all cursors of one incarnation of a log."""
    return f"{CURSORS}/{incarnation:016x}"


def cursor_path(incarnation: int, name: str) -> str:
    """Return the path of a cursor. Slashes are spelled as in names of logs."""
    return f"{cursors_path(incarnation)}/{name.replace('/', '%2F')}"


def splices_path(incarnation: int) -> str:
    """Return the parent of all producers' marks of one incarnation of a log."""
    return f"{SPLICES}/{incarnation:016x}"


def splice_path(incarnation: int, producer: str) -> str:
    """Return the path of a producer's mark. Slashes are spelled as in names of logs."""
    return f"{splices_path(incarnation)}/{producer.replace('/', '%2F')}"


def gathered_path(incarnation: int, ledger_id: int) -> str:
    """Return the path of the list of ledgers that a gathered ledger replaced.

    It is beside the marks of producers. No producer's name begins with a dot."""
    return f"{splices_path(incarnation)}/{_GATHERED}{ledger_id:016x}"


def is_gathered(component: str) -> bool:
    """Return whether a component below ``splices_path`` is a list of replaced ledgers, not a mark."""
    return component.startswith(_GATHERED)


def requests_path(incarnation: int) -> str:
    """Return the parent of all requests to the leader of one incarnation of a log."""
    return f"{REQUESTS}/{incarnation:016x}"


def request_path(incarnation: int, token: str) -> str:
    """Return the path of a request. ``token`` is random, so no path is used twice."""
    return f"{requests_path(incarnation)}/{token}"


def archives_path(incarnation: int) -> str:
    """Return the parent of all archive records of one incarnation of a log."""
    return f"{ARCHIVES}/{incarnation:016x}"


def archive_path(incarnation: int, ledger_id: int) -> str:
    return f"{archives_path(incarnation)}/{ledger_id:016x}"


def archived_ledger_of(incarnation: int, component: str) -> int:
    """Return the ledger that a component below ``archives_path`` spells. Raise ValueError if it spells
    none."""
    ledger_id = int(component, 16)
    if archive_path(incarnation, ledger_id) != f"{archives_path(incarnation)}/{component}":
        raise ValueError(f"{component!r} is not the number of a ledger")
    return ledger_id


def destination_path(where: str) -> str:
    """Return the path of a destination of archives. ``where`` is the text that identifies it."""
    return f"{DESTINATIONS}/{hashlib.sha256(where.encode()).hexdigest()[:32]}"


def cursor_name_of(component: str) -> str:
    return component.replace("%2F", "/")


def incarnation_of(component: str) -> int:
    """Return the incarnation that a component below ``cursors`` spells. Raise ValueError if it spells
    none."""
    incarnation = int(component, 16)
    if cursors_path(incarnation) != f"{CURSORS}/{component}":
        raise ValueError(f"{component!r} is not the number of a log")
    return incarnation


def log_record_path(incarnation: int) -> str:
    return f"{LOG_RECORDS}/{incarnation:016x}"


def log_record_of(component: str) -> int:
    """Return the incarnation that a component below ``log`` spells. Raise ValueError if it spells none."""
    incarnation = int(component, 16)
    if log_record_path(incarnation) != f"{LOG_RECORDS}/{component}":
        raise ValueError(f"{component!r} is not the number of a log")
    return incarnation


def election_path(name: str) -> str:
    """Return the path of an election's record. Slashes are spelled %2F, as for logs."""
    return f"{ELECTIONS}/{name.replace('/', '%2F')}"


def snapshots_path(incarnation: int) -> str:
    return f"{SNAPSHOTS}/{incarnation:016x}"


def candidates_path(name: str) -> str:
    return f"{election_path(name)}/candidates"


def candidate_path(name: str, candidacy: str) -> str:
    return f"{candidates_path(name)}/{candidacy}"
