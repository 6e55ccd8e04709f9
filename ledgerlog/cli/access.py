"""``ledgerlog access``: who may do what in a cluster, and with what they prove who they are.

docs/SECURITY.md explains principals.
"""

from __future__ import annotations

import click

from ledgerlog.cli.access_certificates import access_certificates

__all__ = ["access"]


@click.group()
def access() -> None:
    """Say who may do what, and make certificates."""


access.add_command(access_certificates)
