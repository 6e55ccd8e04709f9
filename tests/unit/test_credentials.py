"""Which credentials a process has: arguments, options, and what the environment adds."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import ledgerlog
from bookie.server.main import main as bookie_cli
from ledgerlog.cli.main import cli
from ledgerlog.credential_options import credential_options, given_credentials
from ledgerlog.errors import InvalidArgument
from ledgerlog.model.credentials import CREDENTIAL_VARIABLES, NO_CREDENTIALS, TLS, Credentials, tls_given

FILES = TLS(cert="/me.pem", key="/me.key", ca="/ca.pem")
ALL = {
    "LEDGERLOG_TLS_CERT": "/me.pem",
    "LEDGERLOG_TLS_KEY": "/me.key",
    "LEDGERLOG_TLS_CA": "/ca.pem",
    "LEDGERLOG_SECRET_FILE": "/secret",
    "LEDGERLOG_ZK_AUTH_FILE": "/zk",
}
OPTIONS = ("--tls-cert", "--tls-key", "--tls-ca", "--secret-file", "--zk-auth-file")


def test_what_is_not_given_comes_from_the_environment() -> None:
    assert Credentials.completed({}) == NO_CREDENTIALS
    everything = Credentials(tls=FILES, secret_file="/secret", zk_auth_file="/zk")
    assert Credentials.completed(ALL) == everything
    mine = TLS(cert="a", key="b", ca="c")
    given = Credentials.completed(ALL, tls=mine, zk_auth_file=Path("/mine"))
    assert given == Credentials(tls=mine, secret_file="/secret", zk_auth_file="/mine")


def test_an_empty_variable_counts_as_not_set() -> None:
    assert Credentials.completed(dict.fromkeys(ALL, "")) == NO_CREDENTIALS


def test_some_of_the_three_tls_files_are_an_error_that_names_what_is_missing() -> None:
    with pytest.raises(InvalidArgument, match=r"key .--tls-key, LEDGERLOG_TLS_KEY. missing"):
        Credentials.completed({"LEDGERLOG_TLS_CERT": "/a", "LEDGERLOG_TLS_CA": "/b"})
    with pytest.raises(InvalidArgument, match=r"cert .* and ca .* missing"):
        tls_given(cert=None, key="/k", ca=None)
    assert tls_given(cert=None, key=None, ca=None) is None


def test_a_path_may_be_text_or_an_object_and_nothing_else() -> None:
    assert TLS(cert=Path("/me.pem"), key="/me.key", ca=Path("/ca.pem")) == FILES
    for wrong in (b"/me.pem", "", 7, "a\0b"):
        with pytest.raises(InvalidArgument, match="is not the path of a file"):
            TLS(cert=wrong, key="k", ca="c")
        with pytest.raises(InvalidArgument, match="is not the path of a file"):
            Credentials(secret_file=wrong)


def test_a_child_process_finds_exactly_these_credentials() -> None:
    ours = Credentials(tls=FILES)
    child = ours.environment_of_child({**ALL, "LEDGERLOG_TLS_CERT": "/another", "HOME": "/root"})
    assert child.pop("HOME") == "/root"
    assert Credentials.completed(child) == ours
    assert Credentials.completed(NO_CREDENTIALS.environment_of_child(ALL)) == NO_CREDENTIALS
    assert set(CREDENTIAL_VARIABLES) == set(ALL)


@click.command()
@credential_options
def show() -> None:
    click.echo(repr(given_credentials()))


def test_options_go_before_the_environment() -> None:
    result = CliRunner().invoke(show, ["--secret-file", "/mine"], env=ALL)
    assert result.output.strip() == repr(Credentials(tls=FILES, secret_file="/mine", zk_auth_file="/zk"))
    result = CliRunner().invoke(show, ["--tls-cert", "/c"], env={"LEDGERLOG_TLS_KEY": "/k"})
    assert result.exit_code == 2
    assert "ca (--tls-ca, LEDGERLOG_TLS_CA) missing" in result.output


def test_every_command_that_opens_a_cluster_takes_credentials() -> None:
    seen = 0

    def walk(command: click.Command) -> None:
        nonlocal seen
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                walk(inner)
            return
        options = {name: p for p in command.params for name in p.opts}
        if command.name in ("secret", "token"):
            return  # It opens no cluster. It derives something from the secret that the option names.
        opens = "--uri" in options or options.get("--metadata", click.Option(["--x"])).required
        if opens:
            seen += 1
            assert set(OPTIONS) <= set(options), command.name
        else:
            assert not set(OPTIONS) & set(options), command.name

    walk(cli)
    walk(bookie_cli)
    assert seen > 30


@pytest.mark.parametrize("error", [ledgerlog.Unauthenticated, ledgerlog.PermissionDenied])
def test_the_errors_of_identity_survive_pickle(error: type[ledgerlog.LedgerLogError]) -> None:
    for again in (pickle.loads(pickle.dumps(error("why"))), copy.copy(error("why"))):
        assert type(again) is error
        assert str(again) == "why"
