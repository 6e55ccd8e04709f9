"""Who may use a tree in ZooKeeper, with a real server: digest, SASL, certificates, lists on every znode.

Each test has a chroot of its own. ``Tree`` looks at the lists with kazoo itself, so that nothing of ours has
to be right for that.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest
import trio
from kazoo.client import KazooClient
from kazoo.security import ACL, OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from ledgerlog.errors import (
    InvalidArgument,
    MetadataUnavailable,
    PermissionDenied,
    Unauthenticated,
    WrongCluster,
)
from ledgerlog.meta.belonging import join_cluster, make_cluster
from ledgerlog.meta.store import Check, Create, Delete, Operation, Set
from ledgerlog.meta.uri import ClusterUri, back_up, make_cluster_at, parse_uri, restore_at
from ledgerlog.meta.zookeeper.acl import (
    OPEN,
    THE_CREATOR,
    Acl,
    ZkPrincipal,
    acl_for,
    digest_principal,
    is_same,
)
from ledgerlog.meta.zookeeper.store import ZooKeeperStore, open_zookeeper_store
from ledgerlog.model.credentials import TLS, Credentials
from ledgerlog.model.layout import CLUSTER
from tests.waiting import PATIENCE_S, until
from tests.zookeepers import SASL_USERS, SecuredServer, new_chroot

OWNER, READER, STRANGER = ("owner", "p1"), ("reader", "p2"), ("stranger", "p3")
OWNER_ONLY: Acl = acl_for([digest_principal(*OWNER)], [])


def random_bytes(count: int) -> bytes:
    return b"r" * count


@attrs.define(eq=False)
class Tree:
    """A chroot on the server, and the files of credentials."""

    server: SecuredServer
    directory: Path
    chroot: str = attrs.field(factory=new_chroot)

    def digest(self, who: tuple[str, str]) -> Credentials:
        return self.file(f'scheme = "digest"\nuser = "{who[0]}"\npassword = "{who[1]}"\n')

    def sasl(self, user: str, password: str) -> Credentials:
        return self.file(
            f'scheme = "sasl"\nmechanism = "DIGEST-MD5"\nuser = "{user}"\npassword = "{password}"\n'
        )

    def file(self, text: str) -> Credentials:
        path = self.directory / f"auth-{len(list(self.directory.iterdir()))}.toml"
        path.write_text(text)
        path.chmod(0o600)
        return Credentials(zk_auth_file=path)

    @asynccontextmanager
    async def open(
        self, credentials: Credentials, *, new_acl: Acl = OPEN, is_tls: bool = False
    ) -> AsyncIterator[ZooKeeperStore]:
        hosts = self.server.tls_hosts if is_tls else self.server.hosts
        async with open_zookeeper_store(
            hosts, chroot=self.chroot, credentials=credentials, new_acl=new_acl, is_tls=is_tls
        ) as store:
            yield store

    @asynccontextmanager
    async def made(
        self, credentials: Credentials, *, new_acl: Acl | None = None, is_tls: bool = False
    ) -> AsyncIterator[ZooKeeperStore]:
        """Make a cluster whose creator may do everything."""
        acl = acl_for([THE_CREATOR], []) if new_acl is None else new_acl
        async with self.open(credentials, new_acl=acl, is_tls=is_tls) as store:
            assert await make_cluster(store, random_bytes)
            yield store

    @asynccontextmanager
    async def joined(
        self, credentials: Credentials, *, is_tls: bool = False
    ) -> AsyncIterator[ZooKeeperStore]:
        async with self.open(credentials, is_tls=is_tls) as store:
            await join_cluster(store)
            yield store

    async def lists(self, credentials: tuple[str, str] = OWNER) -> dict[str, set[tuple[str, str, int]]]:
        """Every znode below the chroot with its list, as kazoo reads it."""

        def look() -> dict[str, set[tuple[str, str, int]]]:
            client = KazooClient(self.server.hosts, auth_data=[("digest", ":".join(credentials))])
            client.start()
            try:
                found = {}
                left = [self.chroot]
                while left:
                    znode = left.pop()
                    found[znode] = {(a.id.scheme, a.id.id, a.perms) for a in client.get_acls(znode)[0]}
                    left += [f"{znode}/{name}" for name in client.get_children(znode)]
                return found
            finally:
                client.stop()
                client.close()

        return await trio.to_thread.run_sync(look)


def as_kazoo(acl: Acl) -> set[tuple[str, str, int]]:
    return {(each.principal.scheme, each.principal.identity, each.permissions) for each in acl}


@pytest.fixture
def tree(secured_zookeeper: SecuredServer, tmp_path: Path) -> Tree:
    return Tree(secured_zookeeper, tmp_path)


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    caplog.set_level(logging.DEBUG)
    return lambda: caplog.text


# --- lists on every znode -------------------------------------------------------------------------


async def test_every_znode_that_is_made_has_the_list_of_the_cluster(tree: Tree) -> None:
    async with tree.made(tree.digest(OWNER)) as store:
        await store.create("a/b/c", b"v")
        await store.create("bookies/writable/b1", b"e", ephemeral=True)
        await store.transaction([Create("t/1", b""), Create("t/2", b"", ephemeral=True)])
        await store.next_id("ledger")
        await store.skip_ids("ledger", 2**31)
        await store.create("gone", b"")
        await store.delete("gone")
        lists = await tree.lists()
    assert len(lists) >= 15
    assert {znode for znode, acl in lists.items() if acl != as_kazoo(OWNER_ONLY)} == set()


async def test_another_process_makes_znodes_with_the_same_list(tree: Tree) -> None:
    second = digest_principal(*STRANGER)
    async with tree.made(tree.digest(OWNER), new_acl=acl_for([THE_CREATOR, second], [])):
        async with tree.joined(tree.digest(STRANGER)) as store:
            await store.create("by/the/other", b"")
        lists = await tree.lists()
    wanted = as_kazoo(acl_for([digest_principal(*OWNER), second], []))
    assert [acl for acl in lists.values() if acl != wanted] == []


async def test_a_reader_reads_and_its_writes_are_denied_at_once(tree: Tree) -> None:
    readers = [digest_principal(*READER)]
    async with tree.made(tree.digest(OWNER), new_acl=acl_for([THE_CREATOR], readers)) as owner:
        await owner.create("a/b", b"v")
        async with tree.joined(tree.digest(READER)) as reader, reader.watch("a") as watch:
            assert (await reader.get("a/b")).value == b"v"
            assert await reader.children("a") == ["b"]
            await reader.sync()
            await owner.create("a/c", b"")
            with trio.fail_after(PATIENCE_S):
                await watch.wait()
            for operation in (Create("a/d", b""), Set("a/b", b"", 0), Delete("a/b")):
                with pytest.raises(PermissionDenied, match="digest user reader"):
                    await reader.transaction([operation])
            with pytest.raises(PermissionDenied):
                await reader.next_id("ledger")
            await reader.transaction([Check("a/b", 0)])
        assert await owner.children("a") == ["b", "c"]


# --- who is not let in ----------------------------------------------------------------------------


async def test_a_client_without_credentials_gets_one_clear_error_at_once(tree: Tree) -> None:
    async with tree.made(tree.digest(OWNER)):
        started = trio.current_time()
        with pytest.raises(Unauthenticated, match=r"without credentials.*--zk-auth-file"):
            async with tree.joined(Credentials()):
                pass
        assert trio.current_time() - started < 8.0, "it waited for the deadline of a call"


async def test_a_wrong_password_is_one_clear_error(tree: Tree) -> None:
    async with tree.made(tree.digest(OWNER)):
        with pytest.raises(PermissionDenied, match=r"digest user owner.*password is wrong") as told:
            async with tree.joined(tree.digest(("owner", "wrong-password"))):
                pass
    assert isinstance(told.value, MetadataUnavailable), "nothing happened"


async def test_a_wrong_password_of_sasl_is_one_clear_error(tree: Tree) -> None:
    with pytest.raises(Unauthenticated, match=r"sasl user ledgerlog.*refuses the login"):
        async with tree.joined(tree.sasl("ledgerlog", "wrong-password")):
            pass


async def test_no_message_and_no_log_line_holds_a_password(tree: Tree, log_lines: Callable[[], str]) -> None:
    password = "hush-hush-17"
    credentials = tree.digest(("owner", password))
    async with tree.made(tree.digest(OWNER)):
        with pytest.raises(PermissionDenied) as told:
            async with tree.joined(credentials):
                pass
    wrong = tree.sasl("ledgerlog", password)
    with pytest.raises(Unauthenticated) as told_of_sasl:
        async with tree.joined(wrong):
            pass
    said = f"{told.value!r} {told_of_sasl.value!r} {credentials!r} {wrong!r} {log_lines()}"
    assert password not in said


async def test_who_loses_the_right_is_told_and_works_again_once_it_is_back(tree: Tree) -> None:
    both = acl_for([THE_CREATOR, digest_principal(*STRANGER)], [])
    async with (
        tree.made(tree.digest(OWNER), new_acl=both),
        tree.joined(tree.digest(STRANGER)) as store,
        tree.open(tree.digest(OWNER)) as admin,
    ):
        await store.create("mine", b"")
        assert (await admin.secure()).changed > 0
        with pytest.raises(PermissionDenied):
            await store.create("no/more", b"")
        await admin.secure(all_of=[digest_principal(*STRANGER)])

        async def is_back() -> bool:
            try:
                await store.create("again", b"")
            except PermissionDenied:
                return False
            return True

        await until(is_back)


# --- SASL and TLS ---------------------------------------------------------------------------------


async def test_sasl_identifies_the_creator_and_the_others(tree: Tree) -> None:
    reader = ZkPrincipal("sasl", "reader")
    async with tree.made(
        tree.sasl("ledgerlog", SASL_USERS["ledgerlog"]), new_acl=acl_for([THE_CREATOR], [reader])
    ) as owner:
        await owner.create("a", b"v")
        async with tree.joined(tree.sasl("reader", SASL_USERS["reader"])) as store:
            assert (await store.get("a")).value == b"v"
            with pytest.raises(PermissionDenied, match="sasl user reader"):
                await store.create("b", b"")


async def test_a_certificate_identifies_a_client_over_tls(tree: Tree) -> None:
    async with tree.made(Credentials(tls=tree.server.tls), is_tls=True) as owner:
        await owner.create("a", b"v" * 500_000)
        assert len((await owner.get("a")).value) == 500_000
        # Many answers lie decrypted in one record.
        async with trio.open_nursery() as nursery:
            for number in range(300):
                nursery.start_soon(owner.create, f"many/{number}", b"")
        assert len(await owner.children("many")) == 300
        with pytest.raises(Unauthenticated):
            async with tree.joined(Credentials()):
                pass


async def test_a_digest_works_over_tls(tree: Tree) -> None:
    both = attrs.evolve(tree.digest(OWNER), tls=tree.server.tls)
    async with tree.made(both, is_tls=True, new_acl=OWNER_ONLY) as store:
        await store.create("a", b"")
        assert set(map(frozenset, (await tree.lists()).values())) == {frozenset(as_kazoo(OWNER_ONLY))}


async def test_a_server_whose_certificate_is_not_ours_is_refused_by_name(tree: Tree, tmp_path: Path) -> None:
    import trustme

    other = tmp_path / "other-ca.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    tls = TLS(cert=tree.server.tls.cert, key=tree.server.tls.key, ca=other)
    with pytest.raises(Unauthenticated, match="the server's certificate is refused"):
        async with tree.joined(Credentials(tls=tls), is_tls=True):
            pass


async def test_a_client_whose_certificate_the_server_does_not_know_is_told(
    tree: Tree, tmp_path: Path
) -> None:
    import trustme

    stranger = trustme.CA().issue_cert("client@example.org")
    stranger.private_key_pem.write_to_path(str(tmp_path / "stranger.key"))
    stranger.cert_chain_pems[0].write_to_path(str(tmp_path / "stranger.pem"))
    tls = TLS(
        cert=tmp_path / "stranger.pem", key=tmp_path / "stranger.key", ca=tree.server.directory / "ca.pem"
    )
    with pytest.raises(Unauthenticated, match="TLS with"):
        async with tree.joined(Credentials(tls=tls), is_tls=True):
            pass


def test_tls_takes_an_identity(tree: Tree) -> None:
    with pytest.raises(InvalidArgument, match="zks://"):
        open_zookeeper_store(tree.server.tls_hosts, is_tls=True)


# --- metadata secure ------------------------------------------------------------------------------


async def test_an_open_tree_is_secured_while_others_write(tree: Tree) -> None:
    async with tree.open(Credentials()) as anybody:
        await make_cluster(anybody, random_bytes)
        for number in range(50):
            await anybody.create(f"old/{number}/x", b"")
        async with (
            tree.open(tree.digest(OWNER)) as admin,
            tree.joined(tree.digest(OWNER)) as worker,
            trio.open_nursery() as nursery,
        ):
            made = 0

            async def work() -> None:
                nonlocal made
                while True:
                    await worker.transaction(
                        [Create(f"new/{made}", b""), Create(f"mark/{made}", b"", ephemeral=True)]
                    )
                    made += 1

            nursery.start_soon(work)
            await until(lambda: made > 20)
            with trio.fail_after(PATIENCE_S):  # It would never end if others could go on with the old list.
                done = await admin.secure(readers=[digest_principal(*READER)])
            before = made
            await until(lambda: made > before + 20)
            nursery.cancel_scope.cancel()
        wanted = acl_for([digest_principal(*OWNER)], [digest_principal(*READER)])
        assert is_same(done.acl, wanted)
        assert done.changed > 100
        lists = await tree.lists()
        assert {znode for znode, acl in lists.items() if acl != as_kazoo(wanted)} == set()
        with pytest.raises(Unauthenticated):
            await anybody.create("more", b"")


async def test_securing_again_changes_nothing_and_goes_on_after_an_interruption(tree: Tree) -> None:
    async with tree.open(Credentials()) as anybody:
        await make_cluster(anybody, random_bytes)
        for number in range(20):
            await anybody.create(f"old/{number}", b"")
    async with tree.open(tree.digest(OWNER)) as admin:
        first = await admin.secure()
        assert (first.changed, first.znodes) == (23, 23)
        assert (await admin.secure()).changed == 0
        # As an interrupted command leaves it: some lists are as they were.
        await tree_sets(tree, f"{tree.chroot}/old", f"{tree.chroot}/old/=3")
        again = await admin.secure()
        assert (again.changed, again.znodes) == (2, 23)


async def test_ids_are_given_out_below_a_znode_in_which_others_may_not_create(tree: Tree) -> None:
    async with tree.made(tree.digest(OWNER)) as store:
        await store.create("a", b"")
    above, tree.chroot = tree.chroot, f"{tree.chroot}/cluster"

    def share() -> None:
        client = KazooClient(tree.server.hosts, auth_data=[("digest", ":".join(OWNER))])
        client.start()
        try:
            client.create(tree.chroot, acl=[make_digest_acl(*READER, all=True)])
            client.set_acls(above, [make_digest_acl(*OWNER, all=True), make_digest_acl(*READER, read=True)])
        finally:
            client.stop()
            client.close()

    await trio.to_thread.run_sync(share)
    async with tree.made(tree.digest(READER)) as store:
        assert [await store.next_id("n") for _ in range(3)] == [0, 1, 2]


async def make_open(tree: Tree) -> ClusterUri:
    """Make the chroot, open to everybody, as an operator may have done."""

    def make() -> None:
        client = KazooClient(tree.server.hosts)
        client.start()
        try:
            client.create(tree.chroot)
        finally:
            client.stop()
            client.close()

    await trio.to_thread.run_sync(make)
    return parse_uri(f"zk://{tree.server.hosts}{tree.chroot}")


async def back_up_and_lose(tree: Tree, owner: Credentials, backup: str) -> ClusterUri:
    """Back up a cluster in an open chroot. Return another open chroot, which is empty."""
    uri = await make_open(tree)
    await make_cluster_at(uri, credentials=owner)
    await back_up(uri, backup, made_ms=1, credentials=owner)
    tree.chroot = new_chroot()
    return await make_open(tree)


async def test_a_restored_tree_can_be_used_only_after_its_chroot_has_its_list(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the command is killed, the store refuses all but another restore, which sets the list."""
    owner, backup = tree.digest(OWNER), str(tmp_path / "backup")
    uri = await back_up_and_lose(tree, owner, backup)
    do_write = ZooKeeperStore.transaction
    others = []

    async def look(self: ZooKeeperStore, operations: Sequence[Operation]) -> list[int]:
        if any(isinstance(each, Set) and each.path == CLUSTER for each in operations):
            others.append(await self.count_other_lists())
        return await do_write(self, operations)

    monkeypatch.setattr(ZooKeeperStore, "transaction", look)
    await restore_at(uri, backup, now_ms=2, credentials=owner)
    assert others == [0]


async def test_a_restore_that_may_not_set_the_list_of_the_chroot_says_what_to_do_and_is_done_again(
    tree: Tree, tmp_path: Path
) -> None:
    owner, backup = tree.digest(OWNER), str(tmp_path / "backup")
    uri = await back_up_and_lose(tree, owner, backup)
    no_admin = make_acl("world", "anyone", read=True, create=True, write=True, delete=True)
    admin = make_digest_acl(*STRANGER, all=True)
    await tree_sets(tree, tree.chroot, acl=[no_admin, admin])
    for _ in range(2):
        with pytest.raises(PermissionDenied, match="give this user the ADMIN right, and restore again"):
            await restore_at(uri, backup, now_ms=2, credentials=owner)
        with pytest.raises(WrongCluster, match="is being restored"):
            await join(tree, owner)
    await tree_sets(tree, tree.chroot, by=STRANGER)
    await restore_at(uri, backup, now_ms=2, credentials=owner)
    await join(tree, owner)


async def join(tree: Tree, credentials: Credentials) -> None:
    async with tree.joined(credentials):
        pass


async def tree_sets(
    tree: Tree, *znodes: str, acl: Sequence[ACL] = OPEN_ACL_UNSAFE, by: tuple[str, str] = OWNER
) -> None:
    """Set the lists of some znodes, by kazoo itself. By default, open them."""

    def set_them() -> None:
        client = KazooClient(tree.server.hosts, auth_data=[("digest", ":".join(by))])
        client.start()
        try:
            for znode in znodes:
                client.set_acls(znode, acl)
        finally:
            client.stop()
            client.close()

    await trio.to_thread.run_sync(set_them)


async def test_a_client_without_credentials_cannot_lock_itself_out(tree: Tree) -> None:
    async with tree.open(Credentials()) as anybody:
        await make_cluster(anybody, random_bytes)
        with pytest.raises(InvalidArgument, match="lock itself out"):
            await anybody.secure()


async def test_the_root_of_an_ensemble_is_not_secured_unasked(tree: Tree) -> None:
    async with open_zookeeper_store(tree.server.hosts, credentials=tree.digest(OWNER)) as store:
        with pytest.raises(InvalidArgument, match="chroot"):
            await store.secure()
