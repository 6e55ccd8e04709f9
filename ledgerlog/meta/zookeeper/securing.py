"""Put access control lists (the rights of users) on the tree of a cluster, while the cluster works.

All znodes have the same list as the cluster's node (``acl``). The list is changed in this order:

1. Set the list of the cluster's node.
2. Write that node's value again, unchanged, which gives the node another version. Every process checks this
   version in each of its writes. So from here on no process makes a znode with the former list: the check
   fails, and the process reads the node's list again before it writes.
3. Walk over the whole tree and set the list of every znode that has another one. Znodes that are made
   meanwhile have the new list already.

If the command dies in between, run it again: it does the same steps, and sets only the lists that differ.
Processes of version 0.1 know no lists and make open znodes: run the command once more when the last of these
processes has ended.

The walk is repeated until it finds nothing to change.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import attrs

from ledgerlog.errors import ClusterNotFound, InvalidArgument, MetadataUnavailable
from ledgerlog.meta.zookeeper.acl import (
    THE_CREATOR,
    Acl,
    ZkPrincipal,
    acl_for,
    is_same,
)
from ledgerlog.meta.zookeeper.calls import Get, GetAcl, GetChildren, Refused, SetAcl, ZookeeperCall
from ledgerlog.meta.zookeeper.conversation import Attempt, Conversation
from ledgerlog.meta.zookeeper.names import Names
from ledgerlog.meta.zookeeper.plan import SetZnode
from ledgerlog.model.layout import CLUSTER

__all__ = ["Secured", "count_other_lists", "secure"]

_ZOOKEEPERS_OWN = "/zookeeper"
_WALKS_MAX = 16
_PART = 1024


@attrs.frozen
class Secured:
    """The result of ``secure``."""

    acl: Acl
    """The list that every znode has now."""
    changed: int
    """How many znodes had another list."""
    znodes: int
    """How many znodes there are."""


async def secure(
    conversation: Conversation,
    names: Names,
    *,
    all_of: Iterable[ZkPrincipal] = (),
    readers: Iterable[ZkPrincipal] = (),
    with_root: bool = False,
) -> Secured:
    """Give every znode of a tree the list that admits only these principals.

    The caller may always do everything, under each identity that it has proved.

    Args:
        conversation: The requests of a store that belongs to no cluster, so that it may write the cluster's
            node.
        names: The names of the tree.
        all_of: Other principals that may do everything.
        readers: The principals that may read.
        with_root: Whether to set the list of the znode "/" too, if the tree begins there.

    Raises:
        InvalidArgument: The tree begins at "/", and ``with_root`` is not set; or this process has no
            identity.
        ClusterNotFound: There is no cluster.
        Unauthenticated, PermissionDenied: The caller may not change a list. Other lists may be changed
            already.
        MetadataUnavailable: The store did not answer. Some lists may be changed already: call again.
    """
    if names.root == "/" and not with_root:
        raise InvalidArgument(
            "the cluster lies in ZooKeeper's root, whose list applies to all users of the ensemble. If only "
            "this cluster uses it, give --with-root; otherwise move the cluster below a chroot (metadata "
            "backup and restore)"
        )
    if not conversation.login.is_somebody:
        raise InvalidArgument(
            "a client without credentials would lock itself out: give --zk-auth-file, or use zks://"
        )
    place = names.value(CLUSTER)
    (before,) = await _ask(conversation, [partial(GetAcl, place)])
    if isinstance(before, Refused):
        raise ClusterNotFound("there is no cluster in the store, so there is nothing to secure")
    # The server replaces "the creator" by our identities.
    await _ask(conversation, [partial(SetAcl, place, acl_for([THE_CREATOR, *all_of], readers))])
    await conversation.within_deadline(partial(_write_again, conversation, place))
    changed = 0
    for _ in range(_WALKS_MAX):
        # Read it each time: if two commands run at the same time, the last list wins everywhere.
        (acl,) = await _ask(conversation, [partial(GetAcl, place)])
        znodes, now_changed = await _walk(conversation, names, acl)
        changed += now_changed
        if not now_changed:
            return Secured(acl, changed + (not is_same(before, acl)), znodes)
    raise MetadataUnavailable(
        f"lists of znodes still differed after {_WALKS_MAX} walks: processes of an older version make open "
        f"znodes, or another 'metadata secure' runs. {changed} lists were set"
    )


async def _write_again(conversation: Conversation, znode: str, attempt: Attempt) -> None:
    """Give a znode another version, and keep its value."""
    while True:
        value, stat = await conversation.read(partial(Get, znode))
        answer = await conversation.write([SetZnode(znode, value, stat.version)], attempt, is_repeatable=True)
        if not isinstance(answer, Refused):
            return


async def _ask(conversation: Conversation, makes: Sequence[Callable[[], ZookeeperCall]]) -> list[Any]:
    """Ask in parts, each within the deadline of a call."""
    answers: list[Any] = []
    for first in range(0, len(makes), _PART):
        answers += await conversation.within_deadline(
            partial(_ask_part, conversation, makes[first : first + _PART])
        )
    return answers


async def _ask_part(
    conversation: Conversation, makes: Sequence[Callable[[], ZookeeperCall]], _: Attempt
) -> list[Any]:
    return await conversation.read_all(makes)


async def count_other_lists(conversation: Conversation, names: Names) -> int:
    """Return how many znodes have another list than the cluster's node."""
    (acl,) = await _ask(conversation, [partial(GetAcl, names.value(CLUSTER))])
    other = 0
    async with aclosing(_levels(conversation, names, acl)) as levels:
        async for _, wrong in levels:
            other += len(wrong)
    return other


async def _walk(conversation: Conversation, names: Names, acl: Acl) -> tuple[int, int]:
    """Set every list that differs. Return the number of znodes, and the number of changed znodes."""
    znodes = changed = 0
    async with aclosing(_levels(conversation, names, acl)) as levels:
        async for found, wrong in levels:
            answers = await _ask(conversation, [partial(SetAcl, znode, acl) for znode in wrong])
            znodes += len(found)
            changed += sum(not isinstance(answer, Refused) for answer in answers)
    return znodes, changed


async def _levels(
    conversation: Conversation, names: Names, acl: Acl
) -> AsyncGenerator[tuple[list[str], list[str]]]:
    """Yield the znodes of each level of the tree, and the znodes of that level whose list is not ``acl``."""
    level = [names.root]
    while level:
        lists = await _ask(conversation, [partial(GetAcl, znode) for znode in level])
        found = [
            (znode, listed)
            for znode, listed in zip(level, lists, strict=True)
            if not isinstance(listed, Refused)
        ]
        there = [znode for znode, _ in found]
        yield there, [znode for znode, listed in found if not is_same(listed, acl)]
        children = await _ask(conversation, [partial(GetChildren, znode) for znode in there])
        level = [
            f"{'' if znode == '/' else znode}/{name}"
            for znode, names_below in zip(there, children, strict=True)
            if not isinstance(names_below, Refused)
            for name in names_below
        ]
        level = [znode for znode in level if znode != _ZOOKEEPERS_OWN]
