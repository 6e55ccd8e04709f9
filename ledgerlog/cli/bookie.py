"""``ledgerlog bookie``: list the bookies of a cluster, restart them gently, and take them out of service."""

from __future__ import annotations

import attrs
import click
import trio

from ledgerlog.cli.bookie_drain import bookie_drain
from ledgerlog.cli.options import connect, json_option, parsed, uri_option
from ledgerlog.cli.output import print_json, print_line, print_table
from ledgerlog.cli.running import run
from ledgerlog.cluster import Cluster
from ledgerlog.errors import BookieUnavailable, PermissionDenied, WireError
from ledgerlog.ledger.figures import INCOMPATIBLE, UNAVAILABLE, ask_figures, bookie_state
from ledgerlog.metrics.families import BOOKIE_FIGURES, INFO_SUMS
from ledgerlog.model.bookie import BookieInfo
from ledgerlog.model.ids import check_bookie_id
from ledgerlog.model.layout import COOKIES
from ledgerlog.model.protocol import ProtocolSupport
from ledgerlog.progress_bar import progress_bar
from ledgerlog.repair.decommission import Emptying, decommission
from ledgerlog.repair.queue import RepairQueue
from ledgerlog.versions import SPOKEN

_ANSWER_S = 2.0
_TROUBLES_SHOWN = 10
"""``bookie decommission`` prints at most this many reasons why a ledger still refers to the bookie."""


@attrs.frozen
class BookieState:
    """A bookie that the cluster knows by its cookie or its registration."""

    bookie_id: str
    address: str | None
    state: str
    """``writable``, ``read-only``; ``unavailable``: not registered, or registered and silent;
    ``incompatible``: it has no version of the protocol in common with this process."""
    journal_write_data: bool = True
    """Whether it syncs entries before it acknowledges them, according to its registration. True if it is not
    registered."""
    ledgers_in_limbo: int | None = None
    """How many ledgers are in limbo: the bookie may have lost some of their entries, and has not copied them
    back yet. None: it did not answer."""
    speaks: ProtocolSupport | None = None
    """The protocol versions and features in its registration. None: it is not registered."""
    why: str | None = None
    """Why it is unavailable; None if it is not."""

    @property
    def words(self) -> str:
        """The state for a person."""
        if self.state == INCOMPATIBLE:
            return f"{self.state}: it speaks protocol {self.speaks}, this command {SPOKEN}"
        if self.why is not None:
            return f"{self.state}: {self.why}"
        words = self.state if self.journal_write_data else f"{self.state}, unsynced"
        return f"{words}, {self.ledgers_in_limbo} ledgers in limbo" if self.ledgers_in_limbo else words


@click.group()
def bookie() -> None:
    """Inspect bookies, restart them gently, and take them out of service."""


bookie.add_command(bookie_drain)


@bookie.command("list")
@uri_option
@json_option
def bookie_list(uri: str, as_json: bool) -> None:
    """Print every bookie that has ever served the cluster, its address, and whether it serves now."""

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
                    "why": state.why,
                    "journal_write_data": state.journal_write_data,
                    "ledgers_in_limbo": state.ledgers_in_limbo,
                    "protocol": None if state.speaks is None else list(state.speaks.range),
                    "features": None if state.speaks is None else list(state.speaks.features),
                }
            )
    elif states:
        print_table(
            ("bookie", "address", "state"),
            [(s.bookie_id, s.address or "-", s.words) for s in states],
        )
    else:
        print_line("no bookie has ever served this cluster")


@bookie.command("status")
@click.argument("bookie_id", metavar="ID", callback=parsed(check_bookie_id))
@uri_option
@json_option
def bookie_status(bookie_id: str, uri: str, as_json: bool) -> None:
    """Print the state and all figures of the bookie ID, with the meaning of each figure.

    docs/METRICS.md names the metric of each figure. A figure that only a newer version knows is printed
    without its meaning."""

    async def body() -> tuple[str, str, dict[str, int]]:
        async with connect(uri) as cluster:
            await cluster.bookies.refresh()
            info = next((i for i in cluster.bookies.registered() if i.bookie_id == bookie_id), None)
            if info is None:
                raise BookieUnavailable(f"bookie {bookie_id} is not registered in the metadata store")
            state = bookie_state(info, is_read_only=cluster.bookies.is_read_only(bookie_id))
            return info.address, state, await ask_figures(cluster.client.pool, bookie_id, timeout_s=_ANSWER_S)

    address, state, figures = run(body)
    if as_json:
        print_json({"id": bookie_id, "address": address, "state": state, "figures": figures})
        return
    print_line(f"{bookie_id} at {address}: {state}")
    rows = []
    order = [name for name in (*BOOKIE_FIGURES, *INFO_SUMS) if name in figures]
    for name in dict.fromkeys((*order, *sorted(figures))):
        value = figures[name]
        if name.startswith("refused_"):
            meaning = f"refused with {name.removeprefix('refused_').upper()}"
        else:
            family = BOOKIE_FIGURES.get(name)
            meaning = INFO_SUMS.get(name, "-") if family is None else family.meaning
        rows.append((name, value, meaning))
    print_table(("figure", "value", "what it is"), rows, numbers=("value",))


@bookie.command("decommission")
@click.argument("bookie_id", metavar="ID", callback=parsed(check_bookie_id))
@click.option("--cancel", is_flag=True, help="Keep the bookie: it takes new ledgers again.")
@uri_option
@json_option
def bookie_decommission(bookie_id: str, cancel: bool, uri: str, as_json: bool) -> None:
    """Take the bookie ID out of service for good: copy all its entries to other bookies, then forget it.

    The bookie may be alive or dead. If it is alive, it serves its entries until the end. Auto-recovery must
    run somewhere. The command returns when no ledger refers to the bookie and its cookie is removed. Then
    stop its process. If you interrupt the command, the bookie is still emptied. Run the command again to
    continue to wait, or with --cancel to keep the bookie."""

    async def keep() -> bool:
        async with connect(uri) as cluster:
            return await RepairQueue(cluster.client).keep(bookie_id)

    async def empty() -> bool:
        is_told = False
        known_troubles: set[str] = set()

        def say(emptying: Emptying) -> None:
            nonlocal is_told
            for ledger_id, trouble in sorted(emptying.troubles.items()):
                if trouble not in known_troubles and len(known_troubles) < _TROUBLES_SHOWN:
                    known_troubles.add(trouble)
                    click.echo(
                        f"ledgerlog: ledger {ledger_id} still refers to {bookie_id}: {trouble}", err=True
                    )
            bar.describe(f"{emptying.ledgers_left} ledgers left")
            if emptying.ledgers_left and not emptying.workers and not is_told:
                is_told = True
                click.echo(
                    "ledgerlog: auto-recovery is not running, so nothing is copied: start "
                    "'ledgerlog repair run', or bookies with --auto-recovery",
                    err=True,
                )

        with progress_bar(f"emptying {bookie_id}", None) as bar:
            async with connect(uri) as cluster:
                await decommission(cluster.client, bookie_id, say=say)
                return await RepairQueue(cluster.client).is_registered(bookie_id)

    if cancel:
        was_asked = run(keep)
        if as_json:
            print_json({"id": bookie_id, "state": "kept", "was_draining": was_asked})
        else:
            print_line(f"{bookie_id} stays" if was_asked else f"{bookie_id} was not being emptied")
        return
    is_running = run(empty)
    if as_json:
        print_json({"id": bookie_id, "state": "decommissioned", "is_running": is_running})
    else:
        print_line(f"no ledger refers to {bookie_id} now, and its cookie is removed")
        if is_running:
            print_line("its process is still running: stop it")


async def bookie_states(cluster: Cluster) -> list[BookieState]:
    """Return the states of all known bookies, by id. This asks each registered bookie whether it answers."""
    await cluster.bookies.refresh()
    registered: dict[str, tuple[BookieInfo, str]] = {}
    for info in cluster.bookies.registered():
        is_read_only = cluster.bookies.is_read_only(info.bookie_id)
        registered[info.bookie_id] = info, bookie_state(info, is_read_only=is_read_only)
    silent: dict[str, str] = {}
    in_limbo: dict[str, int] = {}

    async def ask(bookie_id: str) -> None:
        try:
            figures = await ask_figures(cluster.client.pool, bookie_id, timeout_s=_ANSWER_S)
            in_limbo[bookie_id] = figures.get("ledgers_in_limbo", 0)
        except PermissionDenied:
            pass  # The bookie answers, but does not tell its figures to this client.
        except (BookieUnavailable, WireError) as failure:
            silent[bookie_id] = str(failure)

    async with trio.open_nursery() as nursery:
        for bookie_id, (_, state) in registered.items():
            if state != INCOMPATIBLE:
                nursery.start_soon(ask, bookie_id)
    states = []
    for bookie_id in sorted({*registered, *await cluster.store.children(COOKIES)}):
        found = registered.get(bookie_id)
        why = "it is not registered" if found is None else silent.get(bookie_id)
        states.append(
            BookieState(
                bookie_id,
                None if found is None else found[0].address,
                UNAVAILABLE if found is None or why is not None else found[1],
                found is None or found[0].journal_write_data,
                in_limbo.get(bookie_id),
                None if found is None else found[0].speaks,
                why,
            )
        )
    return states
