"""Making clusters: a new one is closed from its first moment, and processes find its secret."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import attrs
import pytest

import ledgerlog
from ledgerlog import proving
from ledgerlog.errors import InvalidArgument, MetadataUnavailable, Unauthenticated
from ledgerlog.ledger.bookies import STORED_PLACEMENT
from ledgerlog.meta.admission import STORED_ADMISSION
from ledgerlog.meta.belonging import make_cluster
from ledgerlog.meta.memory import MemoryTree
from ledgerlog.meta.uri import ClusterUri, make_cluster_at, open_store, parse_uri
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.credentials import NO_CREDENTIALS, Credentials
from ledgerlog.model.layout import ADMISSION, CLUSTER
from ledgerlog.model.placement import PlacementPolicy
from ledgerlog.proving import make_closed_cluster, make_cluster_with, open_prover
from ledgerlog.testing.faulty_store import Call, FaultyStore, GoOn

CLOSED = Admission(ProvenBy.SECRET)
THREE_RACKS = PlacementPolicy(min_racks=3, strict=True)


async def admission_at(uri: str) -> Admission:
    async with open_store(parse_uri(uri)) as store:
        return await STORED_ADMISSION.read(store)


async def test_a_new_cluster_has_its_mode_and_its_placement_from_its_first_moment() -> None:
    """They are written together with its id. So a maker that dies in between leaves no open cluster, and none
    with another placement."""
    tree = MemoryTree()
    seen: list[tuple[Admission, PlacementPolicy]] = []

    async def note(call: Call, go_on: GoOn) -> object:
        found = await go_on()
        async with tree.open_store() as other:
            if await other.get(CLUSTER) is not None:
                seen.append((await STORED_ADMISSION.read(other), await STORED_PLACEMENT.read(other)))
        return found

    async with tree.open_store() as store:
        maker = FaultyStore(tree, note)
        assert await make_cluster(maker, os.urandom, admission=CLOSED, placement=THREE_RACKS)
        assert seen
        assert {*seen} == {(CLOSED, THREE_RACKS)}
        assert not await make_cluster(store, os.urandom, admission=OPEN)
        assert await STORED_ADMISSION.read(store) == CLOSED, "who finds a cluster changes nothing"
        assert await STORED_PLACEMENT.read(store) == THREE_RACKS


async def test_the_mode_of_a_cluster_that_was_removed_does_not_hold_for_the_next_one() -> None:
    async with MemoryTree().open_store() as store:
        await store.create(ADMISSION, b"left over")
        assert await make_cluster(store, os.urandom, admission=CLOSED)
        assert await STORED_ADMISSION.read(store) == CLOSED


async def test_connect_makes_a_cluster_that_is_closed_by_a_secret_beside_its_file(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path / 'new' / 'metadata'}"
    async with ledgerlog.connect(uri, create=True):
        pass
    assert await admission_at(uri) == CLOSED
    secret = tmp_path / "new" / "metadata.secret"
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    before = secret.read_bytes()
    async with ledgerlog.connect(uri, create=True):
        assert secret.read_bytes() == before
    secret.unlink()
    with pytest.raises(Unauthenticated, match="--secret-file FILE"):
        async with ledgerlog.connect(uri, create=True):
            pass
    assert not secret.exists(), "no secret is made for a cluster that is there already"


@pytest.mark.parametrize("with_secret", [False, True])
@pytest.mark.parametrize("directory", ["/proc/none/at-all", "a-file", "a-file/below"])
async def test_a_directory_that_cannot_be_made_means_that_there_is_no_metadata(
    tmp_path: Path, directory: str, with_secret: bool
) -> None:
    (tmp_path / "a-file").write_bytes(b"")
    secret = tmp_path / "given.secret" if with_secret else None
    with pytest.raises(MetadataUnavailable, match="cannot make the directory of the metadata file"):
        async with ledgerlog.connect(
            f"sqlite:{tmp_path / directory / 'metadata'}", create=True, secret_file=secret
        ):
            pass
    assert os.listdir(tmp_path) == ["a-file"]


async def test_a_cluster_that_is_there_and_open_stays_open(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path / 'metadata'}"
    await make_cluster_at(parse_uri(uri))
    async with ledgerlog.connect(uri, create=True):
        pass
    assert await admission_at(uri) == OPEN
    assert not (tmp_path / "metadata.secret").exists()


async def test_a_cluster_on_other_machines_is_open_if_nothing_is_given_and_a_warning_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A secret would lie on this machine alone. The test's store is in memory: its URI names no file, too."""
    assert await make_cluster_with(parse_uri("memory:"), NO_CREDENTIALS) == NO_CREDENTIALS
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "is open: every process that reaches a bookie can read and write every ledger" in said.getMessage()


async def test_a_cluster_of_one_machine_names_the_file_of_its_secret_and_processes_use_it(
    tmp_path: Path,
) -> None:
    where = parse_uri(f"sqlite:{tmp_path / 'metadata'}")
    file = tmp_path / "cluster.secret"
    given = Credentials(secret_file=str(file))
    await make_closed_cluster(where, given, by=ProvenBy.SECRET, names_file=True)
    async with open_store(where) as store:
        assert await STORED_ADMISSION.read(store) == attrs.evolve(CLOSED, file=str(file))
        async with open_prover(store, NO_CREDENTIALS) as prover:
            assert prover.begin() is not None
        file.chmod(0o644)
        with pytest.raises(InvalidArgument, match="other users can access the secret file"):
            async with open_prover(store, NO_CREDENTIALS):
                pass
        file.unlink()
        with pytest.raises(Unauthenticated, match="--secret-file FILE"):
            async with open_prover(store, NO_CREDENTIALS):
                pass


@pytest.mark.parametrize("name", ["metadata.secret", "other.secret"])
async def test_a_secret_file_that_may_not_belong_to_the_cluster_of_a_faster_process_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The file beside the metadata belongs to whoever was faster."""
    where = parse_uri(f"sqlite:{tmp_path / 'metadata'}")
    file = tmp_path / name
    look = proving._has_cluster

    async def look_before_a_rival(uri: ClusterUri, credentials: Credentials) -> bool:
        found = await look(uri, credentials)
        await make_cluster_at(uri, admission=CLOSED)
        return found

    monkeypatch.setattr(proving, "_has_cluster", look_before_a_rival)
    _, is_new = await make_closed_cluster(where, Credentials(secret_file=str(file)), by=ProvenBy.SECRET)
    assert (is_new, file.exists()) == (False, True)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [f"Unless it used {file} too" in each for each in said] == [True] * (name == "other.secret")


async def test_a_file_that_is_no_secret_makes_no_cluster(tmp_path: Path) -> None:
    where = parse_uri(f"sqlite:{tmp_path / 'metadata'}")
    file = tmp_path / "the.secret"
    file.write_text("nonsense")
    file.chmod(0o600)
    with pytest.raises(InvalidArgument, match="is not a secret file"):
        await make_closed_cluster(where, Credentials(secret_file=str(file)), by=ProvenBy.SECRET)
    with pytest.raises(ledgerlog.ClusterNotFound):
        await admission_at(str(where))
