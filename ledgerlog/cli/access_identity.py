"""The commands of ``ledgerlog access`` about secrets, and about how a cluster is closed.

You close a cluster in steps, so that no process is refused meanwhile: make a secret, set the mode
``closing``, start each process again with the secret, set the mode ``closed``. docs/SECURITY.md has the
steps.
"""

from __future__ import annotations

import time

import attrs
import click

from ledgerlog.cli.options import FiniteNumber, json_option, needs, parsed, uri_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.concurrency.gathering import gather_each
from ledgerlog.credential_options import given_credentials
from ledgerlog.errors import BookieUnavailable, InvalidArgument, Unauthenticated
from ledgerlog.ledger.client import open_client
from ledgerlog.meta.admission import STORED_ADMISSION
from ledgerlog.meta.store import MetadataStore
from ledgerlog.meta.uri import open_store, parse_uri
from ledgerlog.model.admission import OPEN, Admission, ProvenBy
from ledgerlog.model.credentials import Credentials
from ledgerlog.model.ids import BookieId
from ledgerlog.model.principal import Principal
from ledgerlog.model.secret import Secrets, fingerprint_of
from ledgerlog.model.token import Token, TokenScope
from ledgerlog.net.prover import Prover
from ledgerlog.net.secret_file import make_secret_file, new_secret, read_secret_file, replace_secret_file
from ledgerlog.net.tls import network_of
from ledgerlog.proving import with_secret_beside
from ledgerlog.wire.frame import Kind

__all__ = ["IDENTITY_COMMANDS"]

_ASKED_AT_ONCE = 32
_ANSWER_S = 5.0
_TOKEN_HOURS_MAX = 24 * 366

_file_argument = click.argument("file", type=click.Path(dir_okay=False))


@click.command("new-secret")
@_file_argument
def new_secret_command(file: str) -> None:
    """Make the secret of a cluster in the new file FILE, which only you can read."""

    async def body() -> None:
        secrets = Secrets(None, (new_secret(),))
        make_secret_file(file, secrets)
        print_line(_said(file, secrets))

    run(body)


@click.command("secret")
@click.argument("principal", callback=parsed(Principal.parse), metavar="PRINCIPAL")
@_file_argument
@click.option(
    "--secret-file",
    required=True,
    envvar="LEDGERLOG_SECRET_FILE",
    show_envvar=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The cluster's secret.",
)
def secret_command(principal: Principal, file: str, secret_file: str) -> None:
    """Make the secret of PRINCIPAL, such as client/billing, in the new file FILE.

    The secret is derived from the cluster's secret, so it is stored nowhere else. A process that has FILE can
    prove to be PRINCIPAL, but no other principal. If the cluster's file holds two secrets, FILE gets two."""

    async def body() -> None:
        secrets = read_secret_file(secret_file).derived(principal)
        make_secret_file(file, secrets)
        print_line(_said(file, secrets))

    run(body)


@click.command("rotate")
@_file_argument
@click.option(
    "--settle",
    is_flag=True,
    help="Remove the former secret from FILE. Do this once every process has the new one.",
)
def rotate_command(file: str, settle: bool) -> None:
    """Add a new secret of the cluster to FILE, and keep the present secret as the second one.

    Processes read FILE again within seconds. First copy FILE to all machines, and make the secret files of
    principals again. Then do the same with --settle, which removes the old secret. Open connections are not
    interrupted."""

    async def body() -> None:
        secrets = read_secret_file(file)
        if secrets.holder is not None:
            raise InvalidArgument(
                f"{file} holds the secret of {secrets.holder}, which is derived from the cluster's secret: "
                "rotate the cluster's secret, then make this one again with 'ledgerlog access secret "
                f"{secrets.holder}'"
            )
        if settle:
            changed = secrets.settled()
        elif len(secrets.values) > 1:
            raise InvalidArgument(
                f"{file} already holds two secrets: finish that rotation with --settle first"
            )
        else:
            changed = secrets.rotated(new_secret())
        replace_secret_file(file, changed)
        print_line(_said(file, changed))

    run(body)


def _said(file: str, secrets: Secrets) -> str:
    prints = ", then ".join(fingerprint_of(value).hex() for value in secrets.values)
    return f"{file}: the secret of {secrets.holder or 'the cluster'}; fingerprint {prints}"


@click.command("token")
@click.argument("principal", callback=parsed(Principal.parse), metavar="[PRINCIPAL]", required=False)
@click.option("--change", is_flag=True, help="Also allow changes, not only reading.")
@click.option(
    "--hours",
    type=FiniteNumber(0, _TOKEN_HOURS_MAX),
    default=1.0,
    show_default=True,
    help="How many hours the token is valid.",
)
@click.option(
    "--secret-file",
    required=True,
    envvar="LEDGERLOG_SECRET_FILE",
    show_envvar=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The secret of the cluster, or of PRINCIPAL.",
)
def token_command(principal: Principal | None, change: bool, hours: float, secret_file: str) -> None:
    """Print a token for the administration port of bookies and of 'repair run'.

    The token proves that the sender is PRINCIPAL, by default the holder of the secret. Send it as
    'Authorization: Bearer TOKEN'. Use a token without --change for monitoring: it allows no changes."""

    async def body() -> None:
        secrets = read_secret_file(secret_file)
        who = principal or secrets.principal
        found = secrets.of(who)
        if not found:
            raise InvalidArgument(
                f"{secret_file} holds the secret of {secrets.holder}, not the secret of {who}"
            )
        scope = TokenScope.CHANGE if change else TokenScope.READ
        print_line(Token(who, scope, int(time.time() + 3600 * hours)).encode(found[0]))

    run(body)


@click.command("mode")
@click.argument("mode", type=click.Choice(["open", "closing", "closed"]), required=False)
@click.option(
    "--force", is_flag=True, help="Close the cluster even if some bookies do not prove who they are."
)
@click.option("--reset", is_flag=True, help="Replace the stored record, even if it is damaged.")
@uri_option
@json_option
def mode_command(mode: str | None, force: bool, reset: bool, uri: str, as_json: bool) -> None:
    """Print how the cluster is closed, or change it.

    \b
    open     bookies serve every process that can reach them
    closing  processes prove who they are if they can; bookies serve the others, too
    closed   bookies serve only processes that prove who they are, and clients use only bookies that do

    The kind of proof is the one that you give: --secret-file, or a certificate. Before the command closes the
    cluster, it asks every bookie for its proof. Processes apply the change within seconds, without a restart.
    Then bookies end the connections of processes that proved nothing."""
    for option in ("--force", "--reset"):
        needs(option, "a mode: open, closing or closed", is_given=mode is not None)
    where = parse_uri(uri)
    credentials = with_secret_beside(given_credentials(), where)
    wanted = None if mode is None else _admission(mode, credentials)

    async def body() -> Admission:
        async with open_store(where, credentials=credentials) as store:
            if wanted is None:
                return await STORED_ADMISSION.read(store)
            if wanted.is_required and not force:
                await _check_bookies(store, credentials, wanted)

            def change(now: Admission) -> Admission:
                return attrs.evolve(now, by=wanted.by, is_required=wanted.is_required)

            return await STORED_ADMISSION.change(store, change, reset=reset)

    admission = run(body)
    if as_json:
        print_json({"mode": admission.name, "by": admission.by.value})
    else:
        print_line(f"this cluster is {admission}")


def _admission(mode: str, credentials: Credentials) -> Admission:
    if mode == "open":
        return OPEN
    if credentials.tls is None and credentials.secret_file is None:
        raise click.UsageError("give a proof of who you are: --secret-file, or a certificate")
    by = ProvenBy.SECRET if credentials.tls is None else ProvenBy.TLS
    return Admission(by, is_required=mode == "closed")


async def _check_bookies(store: MetadataStore, credentials: Credentials, wanted: Admission) -> None:
    """Check that every registered bookie proves who it is and knows our secret.

    Raises:
        Unauthenticated: Some bookies do not. The message says why.
    """
    prover = Prover.of(credentials)
    prover.admit(wanted)
    network = network_of(credentials, cluster=store.cluster)
    refused: list[str] = []

    async with open_client(store, network, credentials=credentials, prover=prover) as client:

        async def ask(bookie_id: BookieId) -> None:
            try:
                await client.pool.connection(bookie_id).request(Kind.INFO, timeout_s=_ANSWER_S)
            except BookieUnavailable as why:
                refused.append(str(why))

        ids = [info.bookie_id for info in client.bookies.registered()]
        await gather_each(ids, ask, at_once=_ASKED_AT_ONCE)
    if refused:
        raise Unauthenticated(
            f"nothing was changed, because {len(refused)} of {len(ids)} bookies would be lost: "
            f"{'; '.join(sorted(refused))} (--force closes the cluster anyway)"
        )


IDENTITY_COMMANDS = (new_secret_command, secret_command, rotate_command, token_command, mode_command)
"""The commands of this module."""
