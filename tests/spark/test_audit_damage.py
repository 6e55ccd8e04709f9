"""An audit survives damage at every place of the metadata tree. It has a row for each record that it cannot
read, and looks at everything else."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from ledgerlog.archive.registry import ArchiveRegistry
from ledgerlog.errors import PermissionDenied
from ledgerlog.meta.store import Versioned
from ledgerlog.meta.zookeeper.refusals import ZooKeeperDenies
from ledgerlog.model.layout import (
    ARCHIVES,
    BOOKIES,
    CLUSTER,
    LASTING_ROOTS,
    LEDGERS,
    LOG_NAMES,
    LOG_RECORDS,
    archives_path,
    incarnation_of,
    log_name_path,
)
from ledgerlog.spark.audit_task import (
    ARCHIVE,
    CHECKED_FILE,
    CHECKED_LOG,
    DENIED,
    LOG,
    METADATA,
    SOUND,
    AuditRow,
)
from ledgerlog.testing.faulty_store import Call, GoOn
from ledgerlog.testing.memory_cluster import Client, MemoryCluster, open_cluster
from tests.archive.archived_logs import archive, fill, new_log
from tests.repairing import set_up
from tests.spark.test_audit_verdicts import audit, drop, faults

KIND_OF = {LEDGERS: METADATA, LOG_NAMES: LOG, LOG_RECORDS: LOG, ARCHIVES: ARCHIVE}
"""The kind of the row about a record that does not decode, by the root of the record."""


async def nodes_below(client: Client, path: str) -> list[tuple[str, Versioned]]:
    node = await client.store.get(path)
    found = [] if node is None else [(path, node)]
    for component in await client.store.children(path):
        found += await nodes_below(client, f"{path}/{component}")
    return found


async def all_nodes(client: Client) -> list[tuple[str, Versioned]]:
    """The nodes of records and registrations, without the id of the cluster: without it there is no cluster
    to audit, and everybody says so."""
    found = []
    for root in (*LASTING_ROOTS, BOOKIES):
        found += await nodes_below(client, root) if root != CLUSTER else []
    return sorted(dict(found).items())


async def put(client: Client, path: str, value: bytes) -> None:
    node = await client.store.get(path)
    assert node is not None
    await client.store.set(path, value, version=node.version)


async def fresh_audit(cluster: MemoryCluster, **options: str) -> list[AuditRow]:
    """The rows of an audit that knows nothing from before."""
    async with cluster.client() as client:
        return await audit(client, **options)


def sound(rows: list[AuditRow]) -> set[tuple[str, str | int | None, str | None]]:
    """What is sound, by kind: a log by its name, a file by its ledger, the copies of a ledger by their
    bookie. If the record of a log is damaged, nobody knows which ledgers it lists."""
    return {
        (row.kind, row.log if row.kind == CHECKED_LOG else row.ledger_id, row.bookie)
        for row in rows
        if row.kind in SOUND
    }


def damaged(value: bytes, dice: random.Random) -> list[bytes]:
    flipped = bytearray(value or b"\0")
    flipped[dice.randrange(len(flipped))] ^= 1 << dice.randrange(8)
    return [dice.randbytes(dice.randrange(80)), bytes(flipped)]


async def fill_cluster(client: Client, where: Path) -> None:
    await fill(await new_log(client, "archived"), 4, 3)
    await archive(client, where, log="archived")
    await fill(await new_log(client, "stays"), 2, 3)
    await set_up(client)


async def test_a_damaged_record_at_every_place_is_a_row_and_the_rest_has_a_verdict(tmp_path: Path) -> None:
    dice = random.Random(7)
    async with open_cluster() as cluster, cluster.client() as client:
        await fill_cluster(client, tmp_path)
        before = sound(await fresh_audit(cluster))
        places = set()
        for path, node in await all_nodes(client):
            root = path.split("/")[0]
            places.add(root)
            for is_flipped, value in enumerate(damaged(node.value, dice)):
                await put(client, path, value)
                rows = await fresh_audit(cluster)
                if root in KIND_OF and not is_flipped:
                    told = {row.kind for row in rows if row.kind not in SOUND}
                    assert told == {KIND_OF[root]}, (path, value)
                    (row,) = [row for row in rows if row.kind not in SOUND]
                    assert row.why
                    assert len(before - sound(rows)) <= 3, (path, value)
                elif root not in (*KIND_OF, BOOKIES, "destinations"):
                    assert sound(rows) == before, (path, value)
                await put(client, path, node.value)
        assert places >= {*KIND_OF, "bookies", "cookies", "destinations", "repair"}
        assert sound(await fresh_audit(cluster)) == before


STRAYS = {
    f"{LEDGERS}/x/y/z": METADATA,
    f"{LEDGERS}/00000000/0000/00001": METADATA,
    f"{LEDGERS}/ffffffff/ffff/ffff": METADATA,
    f"{LOG_NAMES}/no name": LOG,
    f"{LOG_NAMES}/%2F": LOG,
    f"{LOG_RECORDS}/zz": LOG,
    f"{LOG_RECORDS}/00000000000000ff": LOG,
    f"{ARCHIVES}/x": ARCHIVE,
    f"{ARCHIVES}/0000000000000001/zz": ARCHIVE,
    f"{ARCHIVES}/00000000000000ee/0000000000000001": ARCHIVE,
    "destinations/zz": None,
    "bookies/writable/no name": None,
    "cookies/no name": None,
}
"""Nodes with names that no record has, and the kind of the row; None: the audit does not need the node."""


@pytest.mark.parametrize("path", STRAYS)
async def test_a_node_that_is_no_records_is_a_row_and_the_rest_has_a_verdict(
    tmp_path: Path, path: str
) -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        await fill_cluster(client, tmp_path)
        before = sound(await fresh_audit(cluster))
        await client.store.create(path, b"stray")
        for mode in ("index", "scrub"):
            rows = await fresh_audit(cluster, mode=mode)
            found = [row for row in rows if row.kind not in SOUND]
            assert [row.kind for row in found] == ([] if STRAYS[path] is None else [STRAYS[path]])
            assert all(row.why for row in found)
            assert sound(rows) == before


async def test_a_log_that_lost_its_name_is_a_row() -> None:
    async with open_cluster() as cluster, cluster.client() as client:
        for name in ("a", "b"):
            await fill(await new_log(client, name), 2)
        await drop(client, log_name_path("a"))
        rows = await fresh_audit(cluster)
        assert faults(rows) == {(LOG, "a", None)}
        assert [row.why for row in rows if row.kind == LOG] == [
            "logs/a should name log/0000000000000000, and does not"
        ]


async def test_a_record_that_zookeeper_does_not_show_is_a_row_and_the_rest_has_a_verdict(
    tmp_path: Path,
) -> None:
    """The list of one znode does not stop the audit of all other nodes."""
    async with open_cluster() as cluster, cluster.client() as client:
        await fill_cluster(client, tmp_path)
        before = sound(await fresh_audit(cluster))
        for root in KIND_OF:
            for path, _ in await nodes_below(client, root):
                async with cluster.client() as auditor:

                    async def deny(read: str, hidden: str = path) -> None:
                        if read == hidden:
                            raise ZooKeeperDenies(f"{read}: not for you")

                    auditor.store.before_get = deny
                    rows = await audit(auditor)
                    found = [row for row in rows if row.kind not in SOUND]
                    assert {row.kind for row in found} == {DENIED}, path
                    assert sound(rows) <= before


@pytest.mark.parametrize("logs", [None, "archived"])
async def test_records_that_zookeeper_does_not_list_are_a_row_and_the_rest_has_a_verdict(
    tmp_path: Path, logs: str | None
) -> None:
    chosen = {} if logs is None else {"logs": logs}
    async with open_cluster() as cluster, cluster.client() as client, cluster.client() as auditor:
        await fill_cluster(client, tmp_path)
        before = sound(await fresh_audit(cluster, **chosen))
        (component,) = await client.store.children(ARCHIVES)
        hidden = archives_path(incarnation_of(component))

        async def deny(call: Call, go_on: GoOn) -> Any:
            if (call.verb, call.path) == ("children", hidden):
                raise ZooKeeperDenies("not for you")
            return await go_on()

        auditor.store.faults.append(deny)
        rows = await audit(auditor, **chosen)
        assert [(row.kind, row.why) for row in rows if row.kind not in SOUND] == [
            (DENIED, f"{hidden}: not for you")
        ]
        assert sound(rows) == {item for item in before if item[0] != CHECKED_FILE}
        # Whoever acts on the list of all archives needs all of it.
        with pytest.raises(PermissionDenied):
            await ArchiveRegistry(auditor.store).incarnations()
