"""``ledgerlog bookie drain``: have writers leave a bookie before it is restarted.

The command asks the bookie to turn read-only, by ``POST /read-only`` on the bookie's administration port. The
bookie stays read-only until it is restarted or ``--undo`` takes the request back. The request is not stored
in the metadata store, because there it would outlast the restart. A request in the metadata store empties a
bookie for good (``repair.decommission``).
"""

from __future__ import annotations

import json
import time

import click

from ledgerlog.admin.http import Answer, ask_http
from ledgerlog.cli.options import FiniteNumber, connect, json_option, parsed, uri_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.cluster import Cluster
from ledgerlog.errors import BookieUnavailable, InvalidArgument, PermissionDenied, Unauthenticated, WireError
from ledgerlog.model.ids import BookieId, check_bookie_id
from ledgerlog.model.token import TokenScope
from ledgerlog.net.tcp import parse_address
from ledgerlog.progress_bar import progress_bar
from ledgerlog.repair.core.leaving import Leaving
from ledgerlog.repair.leaving import wait_until_free

__all__ = ["bookie_drain"]

_TOKEN_S = 300.0
"""How long our token is valid, in seconds. The clocks of two machines may differ by most of this time."""
_WAIT_MAX_S = 86_400.0


def _address(text: str) -> str:
    parse_address(text)
    return text


@click.command("drain")
@click.argument("bookie_id", metavar="ID", callback=parsed(check_bookie_id))
@click.option(
    "--admin",
    required=True,
    metavar="HOST:PORT",
    callback=parsed(_address),
    help="The administration port of the bookie.",
)
@click.option("--undo", is_flag=True, help="Let the bookie take adds again.")
@click.option(
    "--within",
    "within_s",
    type=FiniteNumber(0, _WAIT_MAX_S),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest time to wait.",
)
@uri_option
@json_option
def bookie_drain(bookie_id: str, admin: str, undo: bool, within_s: float, uri: str, as_json: bool) -> None:
    """Move all writers away from the bookie ID, so that its restart disturbs no writer.

    The bookie becomes read-only, and the command returns when every ledger that uses it is closed. The bookie
    still serves its entries, and nothing is copied. After a restart it is writable again. If writers do not
    leave in time, the command fails, and the bookie stays read-only. Run the command again to continue to
    wait, or with --undo. Writers need another writable bookie to move to. A ledger whose writer has died
    counts until it is recovered, although a restart does not disturb such a ledger.

    You must prove to be an admin: with a secret (--secret-file), from which the command makes a token, or
    with a certificate."""

    async def take_back() -> str:
        async with connect(uri) as cluster:
            return await _set_read_only(cluster, bookie_id, admin, wanted=False)

    async def leave() -> tuple[Leaving, int]:
        with progress_bar(f"draining {bookie_id}", None) as bar:
            async with connect(uri) as cluster:
                await _set_read_only(cluster, bookie_id, admin, wanted=True)
                leaving = await wait_until_free(
                    cluster.client, bookie_id, within_s=within_s, say=bar.describe
                )
                return leaving, len(cluster.bookies.writable())

    if undo:
        state = run(take_back)
        if as_json:
            print_json({"id": bookie_id, "state": state})
        else:
            print_line(f"{bookie_id}: {state}")
        return
    leaving, writable = run(leave)
    if as_json:
        print_json({"id": bookie_id, "drained": leaving.is_free, "waits_for": leaving.waits_for})
    elif leaving.is_free:
        print_line(f"no writer uses {bookie_id}: you can restart it")
    if not leaving.is_free:
        raise click.ClickException(
            f"{bookie_id} is not drained after {within_s:g} s: {leaving.waits_for}; {writable} writable "
            "bookies are there. It stays read-only: run the command again to keep waiting, or with --undo "
            "to make it writable"
        )


async def _set_read_only(cluster: Cluster, bookie_id: BookieId, admin: str, *, wanted: bool) -> str:
    """Make the bookie read-only, or writable again. Return its new state.

    Raises:
        BookieUnavailable: The bookie does not serve yet.
        InvalidArgument: Another process answers at the address.
        PermissionDenied: This process may not change the bookie.
        Unauthenticated: This process has not proven who it is.
        WireError: The address does not belong to an administration port.

    Errors of ``ask_http`` pass through.
    """
    client = cluster.client

    async def ask(method: str, target: str, scope: TokenScope) -> Answer:
        token = client.prover.token(scope, expires_s=time.time() + _TOKEN_S)
        answer = await ask_http(client.network, admin, method, target, token=token)
        _check(answer, admin)
        return answer

    try:
        there = json.loads((await ask("GET", "/config", TokenScope.READ)).body).get("id")
    except (ValueError, AttributeError):
        raise WireError(f"{admin} does not answer as the administration port of a bookie") from None
    if there is None:
        raise BookieUnavailable(f"the process at {admin} does not serve as a bookie, or has not started to")
    if there != bookie_id:
        raise InvalidArgument(f"{admin} is the administration port of {there!r}, not of {bookie_id}")
    switch = "true" if wanted else "false"
    answer = await ask("POST", f"/read-only?on={switch}", TokenScope.CHANGE)
    return answer.body.decode("utf-8", "replace").strip()


def _check(answer: Answer, admin: str) -> None:
    if answer.status == 200:
        return
    why = f"{admin}: {answer.body.decode('utf-8', 'replace').strip()}"
    if answer.status == 401:
        raise Unauthenticated(why)
    if answer.status == 403:
        raise PermissionDenied(why)
    if answer.status == 503:
        raise BookieUnavailable(why)
    raise WireError(
        f"{admin} answers with status {answer.status}, which is not an answer of a bookie's "
        f"administration port"
    )
