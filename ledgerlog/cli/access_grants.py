"""``ledgerlog access grant``, ``revoke`` and ``list``: the roles of principals in a cluster.

Grants are records in the metadata store (``model.access``), and bookies read them there. So these commands
need no bookie, only a store that this process may write. docs/SECURITY.md explains roles and principals.
"""

from __future__ import annotations

from typing import Any

import click

from ledgerlog.cli.options import connect, json_option, parsed, uri_option
from ledgerlog.cli.output import print_json, print_line
from ledgerlog.cli.running import run
from ledgerlog.errors import InvalidArgument, MetadataCorrupt
from ledgerlog.meta.grants import change_grants, list_grants
from ledgerlog.model.access import Grant, Grants, Role
from ledgerlog.model.principal import Principal

__all__ = ["access_grant", "access_list", "access_revoke"]


def _principal_argument(function: Any) -> Any:
    return click.argument("principal", callback=parsed(Principal.parse), metavar="PRINCIPAL")(function)


def _grant(role: str, prefix: str | None) -> Grant:
    try:
        return Grant(Role(role), prefix or "")
    except InvalidArgument as cause:
        raise click.UsageError(str(cause)) from cause


_ROLES = click.Choice([role.value for role in Role])


@click.command("grant")
@_principal_argument
@click.argument("role", type=_ROLES)
@click.argument("prefix", required=False)
@uri_option
@json_option
def access_grant(principal: Principal, role: str, prefix: str | None, uri: str, as_json: bool) -> None:
    """Give PRINCIPAL a role, for example: grant client/billing writer billing/

    With PREFIX, a writer or reader has the role for all logs whose names begin with PREFIX. Without PREFIX,
    it has the role for all logs, and for ledgers that belong to no log. Bookies apply the change within 5 s.
    """
    wanted = _grant(role, prefix)

    async def body() -> Grants:
        async with connect(uri) as cluster:
            return await change_grants(cluster.client.store, principal, lambda now: now.granted(wanted))

    _print(run(body), as_json)


@click.command("revoke")
@_principal_argument
@click.argument("role", type=_ROLES, required=False)
@click.argument("prefix", required=False)
@click.option("--reset", is_flag=True, help="Take away all roles, even if the record is damaged.")
@uri_option
@json_option
def access_revoke(
    principal: Principal, role: str | None, prefix: str | None, reset: bool, uri: str, as_json: bool
) -> None:
    """Take a role away from PRINCIPAL. Without ROLE, take away all its roles.

    A bookie and an admin have the role of their kind without a grant. To take that away, name it or leave
    ROLE out. To give it back, use 'grant'. The exit status is 1 if there is no role to take away. Bookies
    apply the change within 5 s, and end the requests of the principal that are under way."""
    if reset and role is not None:
        raise click.UsageError("--reset takes every role away: give no ROLE")
    unwanted = None if role is None else _grant(role, prefix)
    tries = 0

    def take(now: Grants) -> Grants:
        nonlocal tries
        tries += 1
        # A later try may find the role gone because an earlier one took it, and its answer was lost.
        if tries == 1 and not reset and now.revoked(unwanted) == now:
            raise InvalidArgument(
                f"{principal} has no role to take away: 'ledgerlog access list' shows who has one"
            )
        return now.revoked(unwanted)

    async def body() -> Grants:
        async with connect(uri) as cluster:
            return await change_grants(cluster.client.store, principal, take, reset=reset)

    _print(run(body), as_json)


@click.command("list")
@uri_option
@json_option
def access_list(uri: str, as_json: bool) -> None:
    """List the principals that have a record, with their roles.

    A bookie or an admin without a record has the role of its kind. A client without a record has no role."""

    async def body() -> list[Grants | MetadataCorrupt]:
        async with connect(uri) as cluster:
            return await list_grants(cluster.client.store)

    for one in run(body):
        if isinstance(one, MetadataCorrupt):
            if as_json:
                print_json({"damaged": str(one)})
            else:
                print_line(f"damaged, so it gives no role: {one}")
        elif not one.is_empty:
            _print(one, as_json)


def _print(grants: Grants, as_json: bool) -> None:
    own = grants.own_role
    if as_json:
        print_json(
            {
                "principal": grants.principal,
                "roles": [
                    {"role": grant.role.value, **({"prefix": grant.prefix} if grant.role.has_prefix else {})}
                    for grant in grants.grants
                ],
                "own_role": None if own is None else own.value,
                "own_role_revoked": grants.is_revoked,
            }
        )
        return
    roles = [str(grant) for grant in grants.grants]
    if own is not None:
        roles.insert(0, f"{own.value} (by its kind{', but revoked' if grants.is_revoked else ''})")
    print_line(f"{grants.principal}: {', '.join(roles) or 'no role'}")
