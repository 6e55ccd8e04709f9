"""No entry point shows the password of a URI, no matter which URI it gets."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import attrs
import click
import pytest
import trio
from click.testing import CliRunner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ledgerlog
from bookie.server.main import main as bookie_cli
from ledgerlog import blocking, errors
from ledgerlog.archive.destinations import Destination
from ledgerlog.archive.jobs.archiver import ArchiveStep
from ledgerlog.cli.main import cli
from ledgerlog.errors import ArchiveUnavailable, LedgerLogError
from ledgerlog.meta.uri import parse_uri
from ledgerlog.model.archive import ArchiveDestination, ArchivedFile
from ledgerlog.redact import has_secret, redact
from ledgerlog.spark.audit_task import AuditRow
from ledgerlog.spark.options import parse_audit_options, parse_read_options, parse_write_options

SECRET = "S3NT1NEL"

_plain = st.just(SECRET)
_AROUND = st.text("ab0/+:=@?&.%-", max_size=4)
_passwords = st.builds(lambda before, after: before + SECRET + after, _AROUND, _AROUND)
_users = st.sampled_from(["", "KEY", "user", "a.b"])
_schemes = st.sampled_from(["zk", "zks", "postgres", "file", "sqlite", "http"])
_names = st.sampled_from(["password", "secret", "token", "secret_key", "zk_auth", "PASSWD"])

uris = st.one_of(
    st.builds("{}://{}:{}@host:2181/chroot".format, _schemes, _users, _passwords),
    st.builds("{}://{}@host/bucket".format, _schemes, st.just(SECRET)),
    st.builds("zk:{}:{}@host".format, st.sampled_from(["KEY", "user"]), _passwords),
    st.builds("{}://host:2181/chroot?{}={}".format, _schemes, _names, st.just(SECRET)),
    st.builds("{}:./data?bookies=3&{}={}".format, st.sampled_from(["file", "sqlite"]), _names, _plain),
)


def test_what_is_no_secret_stays() -> None:
    for text in (
        "zk://h1:2181,h2:2181/chroot",
        "file:/data/team:a@b?bookies=3",
        "file:///data/team:a@b",
        "s3://bucket/mail@x/file.parquet?region=eu",
        "sqlite:./data",
        "log 'a:b@c' is sealed",
    ):
        assert redact(text) == text
    assert redact("s3://KEY:SE/CR+ET@bucket/x?region=eu") == "s3://***@bucket/x?region=eu"
    assert redact("to 's3://K:S@b' and 's3://K:S@c'") == "to 's3://***@b' and 's3://***@c'"
    assert (
        redact("s3://b/x?access_key=A&secret_key=S&region=eu")
        == "s3://b/x?access_key=***&secret_key=***&region=eu"
    )


@given(uris)
def test_redacting_twice_is_redacting_once(uri: str) -> None:
    assert redact(redact(uri)) == redact(uri)


async def _connect(uri: str) -> None:
    async with ledgerlog.connect(uri):
        pass


ENTRIES: dict[str, Callable[[str], object]] = {
    "parse_uri": parse_uri,
    "connect": lambda uri: trio.run(_connect, uri),
    "blocking.connect": blocking.connect,
    "a read in Spark": lambda uri: parse_read_options({"uri": uri, "log": "log"}, is_stream=False),
    "a write in Spark": lambda uri: parse_write_options({"uri": uri, "log": "log"}, is_stream=False),
    "an audit in Spark": lambda uri: parse_audit_options({"uri": uri}),
    "a destination of archives": lambda uri: repr(Destination(uri)),
}


@pytest.mark.parametrize("password", ["pa'S3NT1NEL", "pa S3NT1NEL", 'S3NT1NEL"x', "a\tS3NT1NEL 'b'"])
@pytest.mark.parametrize("scheme", ["zk", "s3", "sqlite"])
def test_a_cluster_uri_shows_no_password_with_blanks_and_quotes(scheme: str, password: str) -> None:
    with pytest.raises(errors.InvalidArgument) as raised:
        parse_uri(f"{scheme}://user:{password}@host/x")
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize("entry", ENTRIES)
@settings(max_examples=40, deadline=None)
@given(uri=uris)
def test_no_exception_shows_a_secret(entry: str, uri: str) -> None:
    # Without "://" it is the name of a local directory.
    assume("://" in uri or entry != "a destination of archives")
    try:
        shown = str(ENTRIES[entry](uri))
    except LedgerLogError as error:
        shown = "".join(traceback.format_exception(error)) + repr(error) + str(vars(error))
    assert SECRET not in shown


def commands(
    group: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(group, click.Group):
        for name in sorted(group.commands):
            yield from commands(group.commands[name], (*path, name))
    else:
        yield path, group


def _with_uri() -> list[tuple[str, click.Command, list[str]]]:
    """Return every command that takes a cluster, with arguments that reach it."""
    found = []
    for name, group in (("ledgerlog", cli), ("bookie", bookie_cli)):
        for path, command in commands(group):
            for parameter in command.params:
                option = next((each for each in parameter.opts if each in ("--uri", "--metadata")), None)
                if option is not None and not isinstance(parameter.type, click.Choice):
                    arguments = [
                        _value_of(each) for each in command.params if isinstance(each, click.Argument)
                    ]
                    required = [
                        word
                        for each in command.params
                        if isinstance(each, click.Option) and each.required and option not in each.opts
                        for word in (each.opts[0], _value_of(each))
                    ]
                    found.append((name, group, [*path, *arguments, *required, option]))
    return found


def _value_of(parameter: click.Parameter) -> str:
    return "1" if parameter.name in ("ledger_id", "offset", "before") else "name"


@pytest.mark.parametrize(
    ("group", "arguments"),
    [pytest.param(group, words, id=" ".join((name, *words))) for name, group, words in _with_uri()],
)
@settings(max_examples=10, deadline=None)
@given(uri=uris)
def test_no_command_prints_a_secret(group: click.Command, arguments: list[str], uri: str) -> None:
    done = CliRunner().invoke(group, [*arguments, uri])
    assert done.exit_code in (1, 2)
    assert SECRET not in done.output
    assert not isinstance(done.exception, LedgerLogError), "it is told in words"


def test_the_commands_that_take_a_cluster_were_found() -> None:
    names = {" ".join((name, *words)) for name, _, words in _with_uri()}
    assert {"ledgerlog log list --uri", "bookie run name --metadata"} <= names
    assert len(names) > 30


@pytest.mark.parametrize("name", errors.__all__)
@given(uri=uris)
@settings(max_examples=10)
def test_every_exception_of_ours_leaves_secrets_out(name: str, uri: str) -> None:
    """The base class does this, so new exceptions do it too."""
    # In running text, redaction does not recognize these as URIs.
    assume(not uri.startswith("zk:KEY") and not uri.startswith("zk:user"))
    text = f"no answer from {uri!r}"
    kind = getattr(errors, name)
    error = kind.__new__(kind)
    LedgerLogError.__init__(error, text)
    assert SECRET not in str(error) + repr(error)


def test_what_is_known_of_archives_shows_no_secret() -> None:
    url = f"s3://KEY:{SECRET}/x@bucket/file.parquet?region=eu"
    shown = [
        attrs.fields_dict(ArchivedFile)["file"].repr(url),
        repr(ArchiveDestination(where=url, marker=b"m" * 16, made_ms=0)),
        repr(AuditRow(log="log", ledger_id=1, kind="file_missing", file=url, why=f"no route to {url}")),
        repr(attrs.asdict(ArchiveStep(what="failed", ledger_id=1, file=url, why=f"cannot read {url}"))),
        repr(vars(ArchiveUnavailable(url, f"no route to {url}"))),
        str(ArchiveUnavailable(url, f"no route to {url}")),
    ]
    assert SECRET not in "".join(shown)
    assert "bucket/file.parquet?region=eu" in shown[0]


@pytest.mark.parametrize(
    ("uri", "has"),
    [
        ("s3://bucket/archive?region=eu&endpoint_override=https://there:9000", False),
        ("abfs://container@account.dfs.core.windows.net/a?credential_kind=environment", False),
        ("hdfs://user@host:8020/archive", False),
        ("gs://anonymous@bucket/archive", False),
        ("file:///data/a:b@c", False),
        ("/data/a:b@c", False),
        (f"s3://KEY:{SECRET}@bucket/archive", True),
        (f"s3://KEY:a/b@{SECRET}@bucket/archive", True),
        (f"abfs://:{SECRET}@account.blob.core.windows.net/a", True),
        (f"abfs://container@account/a?tenant_id=t&client_secret={SECRET}", True),
        (f"s3://bucket/archive?endpoint_override=https://user:{SECRET}@there", True),
    ],
)
def test_a_uri_that_holds_a_secret_is_known(uri: str, has: bool) -> None:
    assert has_secret(uri) == has
