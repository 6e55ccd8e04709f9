"""``ledgerlog access``: the rights of principals in a cluster, and the proofs of their identity.

docs/SECURITY.md explains principals and roles.
"""

from __future__ import annotations

import click

from ledgerlog.cli.access_certificates import access_certificates
from ledgerlog.cli.access_grants import access_grant, access_list, access_revoke
from ledgerlog.cli.access_identity import IDENTITY_COMMANDS

__all__ = ["access"]


@click.group()
def access() -> None:
    """Grant roles, make certificates and secrets, and close a cluster."""


for _command in (access_grant, access_revoke, access_list, access_certificates, *IDENTITY_COMMANDS):
    access.add_command(_command)
