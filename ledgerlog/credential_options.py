"""The options with which this process proves who it is: ``--tls-cert`` and so on. Both commands have them.

    @click.command()
    @credential_options
    def command() -> None:
        credentials = given_credentials()

The options are not parameters of the command's function. Their values stay in click's context, and
``given_credentials`` returns them, completed by the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from ledgerlog.errors import InvalidArgument
from ledgerlog.model.credentials import (
    SECRET_FILE_VARIABLE,
    TLS_VARIABLES,
    ZK_AUTH_FILE_VARIABLE,
    Credentials,
    tls_given,
)

__all__ = ["credential_options", "given_credentials", "refuse_given"]

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "ledgerlog.credentials"

_OPTIONS = (
    ("--tls-cert", TLS_VARIABLES["cert"], "The certificate of this process, a PEM file."),
    ("--tls-key", TLS_VARIABLES["key"], "The private key of the certificate."),
    ("--tls-ca", TLS_VARIABLES["ca"], "The certificates of the authorities to trust, a PEM file."),
    ("--secret-file", SECRET_FILE_VARIABLE, "The cluster's shared secret."),
    ("--zk-auth-file", ZK_AUTH_FILE_VARIABLE, "A file with the credentials for ZooKeeper."),
)


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    assert param.name is not None
    ctx.meta.setdefault(_KEY, {})[param.name] = value or None


def credential_options(function: F) -> F:
    """Add the options that name files of credentials. ``given_credentials`` returns them."""
    for name, variable, text in reversed(_OPTIONS):
        function = click.option(
            name,
            envvar=variable,
            show_envvar=True,
            type=click.Path(dir_okay=False),
            metavar="FILE",
            expose_value=False,
            callback=_keep,
            help=text,
        )(function)
    return function


def refuse_given(why: str) -> None:
    """Refuse options that would do nothing. Variables in the environment are not refused.

    Args:
        why: Why the running command has no use for credentials.

    Raises:
        click.UsageError: An option names a file. The message names the option.
    """
    context = click.get_current_context(silent=True)
    if context is None:
        return
    for name, _, _ in _OPTIONS:
        if context.get_parameter_source(name[2:].replace("-", "_")) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{name} cannot be used: {why}")


def given_credentials() -> Credentials:
    """Return the credentials in the options of the running command and in the environment.

    Raises:
        click.UsageError: Some of the three TLS files are given and some are not.
    """
    given: dict[str, str | None] = click.get_current_context().meta.get(_KEY, {})
    try:
        return Credentials.completed(
            os.environ,
            tls=tls_given(cert=given.get("tls_cert"), key=given.get("tls_key"), ca=given.get("tls_ca")),
            secret_file=given.get("secret_file"),
            zk_auth_file=given.get("zk_auth_file"),
        )
    except InvalidArgument as wrong:
        raise click.UsageError(str(wrong)) from wrong
