"""``ledgerlog bookie``: the storage nodes, as the cluster sees them."""

from __future__ import annotations

import attrs
import click
import trio

from ledgerlog.cli.options import connect, json_option, uri_option
from ledgerlog.cli.output import print_json, print_line, print_table
from ledgerlog.cli.running import run
from ledgerlog.cluster import Cluster
from ledgerlog.errors import BookieUnavailable
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.layout import COOKIES
from ledgerlog.wire.frame import Kind

_ANSWER_S = 2.0


@attrs.frozen
class BookieState:
    """A bookie that the cluster knows by its cookie or its registration."""

    bookie_id: str
    address: str | None
    state: str
    """writable, read-only, or unavailable: not registered, or registered and silent."""
    journal_write_data: bool = True
    """Whether it syncs entries before it acknowledges them, as far as its registration says."""


@click.group()
def bookie() -> None:
    """Look at bookies."""


@bookie.command("list")
@uri_option
@json_option
def bookie_list(uri: str, as_json: bool) -> None:
    """Print every bookie that ever served the cluster, where it serves, and whether it does."""

    async def body() -> list[BookieState]:
        async with connect(uri) as cluster:
            return await bookie_states(cluster)

    states = run(body)
    if as_json:
        for state in states:
            print_json(
                {
                    "id": state.bookie_id,
                    "address": state.address,
                    "state": state.state,
                    "journal_write_data": state.journal_write_data,
                }
            )
    elif states:
        print_table(
            ("bookie", "address", "state"),
            [
                (s.bookie_id, s.address or "-", s.state if s.journal_write_data else f"{s.state}, unsynced")
                for s in states
            ],
        )
    else:
        print_line("no bookie ever served this cluster")


async def bookie_states(cluster: Cluster) -> list[BookieState]:
    """All bookies by id; each that is registered is asked whether it answers."""
    await cluster.bookies.refresh()
    registered: dict[str, tuple[BookieInfo, str]] = {}
    for info in cluster.bookies.read_only():
        registered[info.bookie_id] = info, "read-only"
    for info in cluster.bookies.writable():
        registered[info.bookie_id] = info, "writable"
    silent: set[str] = set()

    async def ask(bookie_id: str) -> None:
        try:
            await cluster.client.pool.connection(bookie_id).request(Kind.INFO, timeout_s=_ANSWER_S)
        except BookieUnavailable:
            silent.add(bookie_id)

    async with trio.open_nursery() as nursery:
        for bookie_id in registered:
            nursery.start_soon(ask, bookie_id)
    states = []
    for bookie_id in sorted({*registered, *await cluster.store.children(COOKIES)}):
        found = registered.get(bookie_id)
        is_silent = found is None or bookie_id in silent
        states.append(
            BookieState(
                bookie_id,
                None if found is None else found[0].address,
                "unavailable" if found is None or is_silent else found[1],
                found is None or found[0].journal_write_data,
            )
        )
    return states
