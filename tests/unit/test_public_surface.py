"""The names, signatures, commands and options that other people's programs and scripts rely on.

The tables say what must exist and how a program may call it. More names may exist, and more parameters if
they have defaults. If you have to change a line here, you break somebody's program.
"""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click
import pytest

import ledgerlog
import ledgerlog.aio
import ledgerlog.blocking
import ledgerlog.testing
from bookie.server.main import main as bookie_command
from ledgerlog.cli.main import cli as ledgerlog_command

CALLS: dict[str, str] = {
    "connect": "(uri, **options)",
    "Replication": "(ensemble=3, write_quorum=3, ack_quorum=2, guaranteed=False)",
    "RollPolicy": "(*, max_bytes=..., max_records=None, max_age_s=None)",
    "RetentionPolicy": "(*, max_age_s=None, max_bytes=None)",
    "Cluster.create_log": (
        "async (name, *, replication=..., roll=..., retention=..., properties=..., exist_ok=False)"
    ),
    "Cluster.open_log": "async (name)",
    "Cluster.logs": "async (prefix='')",
    "Cluster.delete_log": "async (name, *, damaged=False)",
    "Cluster.election": "(name)",
    "Cluster.ledgers": "property",
    "Log.writer": "(*, producer=None, dedupe=..., window=...)",
    "Log.read": "(start='earliest', *, until=None, follow=False)",
    "Log.info": "async ()",
    "Log.truncate": "async (before_offset)",
    "Log.seal": "async ()",
    "Log.cursor": "(name)",
    "Log.properties": "async ()",
    "LogWriter.append": "async (data, *, expected_offset=None, sequence=None)",
    "LogWriter.append_many": "async (datas)",
    "LogWriter.submit": "async (data)",
    "LogWriter.flush": "async ()",
    "LogWriter.roll": "async ()",
    "LogWriter.statistics": "()",
    "LogWriter.epoch": "property",
    "Submission.wait": "async ()",
    "Position.parse": "(text)",
    "Election.leadership": "()",
    "Replica": "(log, machine, *, snapshots=None)",
    "Replica.propose": "async (command, *, request_id=None)",
    "Replica.read": "async (fn, *, consistency='local')",
    "Replica.wait_applied": "async (offset)",
    "Replica.events": "()",
    "StateMachine.apply": "(command)",
    "StateMachine.snapshot": "()",
    "StateMachine.restore": "(chunks)",
    "Ledgers.create": "async (replication=..., metadata=...)",
    "Ledgers.open": "async (ledger_id, recover=False)",
    "Ledgers.delete": "async (ledger_id)",
    "Ledgers.list": "async ()",
    "Ledgers.metadata": "async (ledger_id)",
    "Ledgers.recover": "async (ledger_id)",
    "LedgerWriter.append": "async (payload)",
    "LedgerWriter.append_many": "async (payloads)",
    "LedgerWriter.close": "async ()",
    "LedgerWriter.last_add_confirmed": "property",
    "LedgerWriter.last_add_fully_replicated": "property",
    "LedgerReader.read": "async (first, last)",
    "LedgerReader.last_add_confirmed": "async ()",
    "LedgerReader.follow": "()",
}
"""Names of the package with their signatures: positional parameters in this order, and these defaults
(``...``: any default).
"""

FIELDS = {
    "Ack": ("offset", "position", "epoch", "duplicate"),
    "Record": ("offset", "position", "data", "timestamp", "epoch", "key", "headers"),
    "Position": ("ledger_id", "entry_id", "slot"),
}

ERRORS = (
    "InvalidArgument",
    "MetadataUnavailable",
    "SessionExpired",
    "LedgerNotFound",
    "LedgerExists",
    "LedgerClosed",
    "LedgerFenced",
    "NotEnoughBookies",
    "EntryNotFound",
    "EntryUnavailable",
    "EntryCorrupt",
    "RecoveryFailed",
    "LogNotFound",
    "LogExists",
    "LogSealed",
    "LostLeadership",
    "AppendUnknown",
    "Truncated",
    "OffsetMismatch",
    "RecordTooLarge",
    "CursorConflict",
    "BookieUnavailable",
    "BookieReadOnly",
    "Unauthorized",
    "WireError",
    "StorageLocked",
    "CookieMismatch",
    "StorageCorrupt",
    "DiskFull",
)

LEDGERLOG_COMMANDS = """
demo --records --input --json
cluster run PATH --bookies --metadata
log create NAME --ensemble --write-quorum --ack-quorum --guaranteed --uri --json
log append NAME --input --uri --json
log read NAME --start --until --follow --raw --uri --json
log list --uri --json
log show NAME --uri --json
log truncate NAME --before --uri --json
log seal NAME --uri --json
log delete NAME --damaged --uri --json
ledger list --uri --json
ledger show LEDGER_ID --uri --json
ledger read LEDGER_ID --uri --json
ledger recover LEDGER_ID --uri --json
ledger verify LEDGER_ID --uri --json
ledger delete LEDGER_ID --uri --json
bookie list --uri --json
bookie decommission BOOKIE_ID --uri --json
repair status --uri --json
repair audit --uri --json
repair run --uri
bench write --json
bench read --json
bench takeover --json
bench lone --json
bench followers --followers --json
bench isolation --json
bench idle --json
simulate --seeds --json
"""

BOOKIE_COMMANDS = """
run PATH --metadata --listen --id --config
cookie show PATH
cookie fix PATH
inspect journal PATH
inspect entries PATH
inspect index PATH
"""


def _found(name: str) -> tuple[Any, Any]:
    """Return the object with that name, as it is defined and as it is called."""
    owner, _, attribute = name.partition(".")
    found = getattr(ledgerlog, owner)
    if not attribute:
        return found, found
    return inspect.getattr_static(found, attribute), getattr(found, attribute)


def _parameters(function: Any) -> list[inspect.Parameter]:
    found = list(inspect.signature(function).parameters.values())
    return found[1:] if found and found[0].name == "self" else found


@pytest.mark.parametrize("name", CALLS)
def test_every_name_can_be_called_as_it_says(name: str) -> None:
    assert name.partition(".")[0] in ledgerlog.__all__
    static, found = _found(name)
    if CALLS[name] == "property":
        assert isinstance(static, property)
        return
    is_async = CALLS[name].startswith("async ")
    assert inspect.iscoroutinefunction(found) == is_async
    promised: dict[str, Any] = {}
    wanted_signature = inspect.signature(_written(CALLS[name].removeprefix("async ")))
    actual = {parameter.name: parameter for parameter in _parameters(found)}
    in_place = [p.name for p in actual.values() if p.kind is not inspect.Parameter.KEYWORD_ONLY]
    for index, (wanted, parameter) in enumerate(wanted_signature.parameters.items()):
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        promised[wanted] = parameter
        assert wanted in actual, f"{name} has no parameter {wanted!r}"
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            assert in_place[index] == wanted, f"{wanted!r} of {name} has another place"
        has_default = actual[wanted].default is not inspect.Parameter.empty
        assert has_default == (parameter.default is not inspect.Parameter.empty), f"{wanted!r} of {name}"
        if has_default and parameter.default is not ...:
            assert actual[wanted].default == parameter.default, f"the default of {wanted!r} of {name}"
    for added in actual.keys() - promised.keys():
        assert actual[added].default is not inspect.Parameter.empty, f"{added!r} of {name} has no default"


def _written(signature: str) -> Any:
    """Return a function with this signature. The parser knows only the few forms that the table uses."""
    parameters: list[inspect.Parameter] = []
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    values: dict[str, Any] = {"...": ..., "None": None, "False": False, "True": True}
    for part in filter(None, (part.strip() for part in signature.strip("()").split(","))):
        name, _, default = part.partition("=")
        if part == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        elif part.startswith("**"):
            parameters.append(inspect.Parameter(name[2:], inspect.Parameter.VAR_KEYWORD))
        elif not default:
            parameters.append(inspect.Parameter(name, kind))
        else:
            value = values[default] if default in values else _literal(default)
            parameters.append(inspect.Parameter(name, kind, default=value))

    def written() -> None: ...

    written.__signature__ = inspect.Signature(parameters)
    return written


def _literal(text: str) -> Any:
    return text.strip("'") if text.startswith("'") else int(text)


@pytest.mark.parametrize("name", FIELDS)
def test_values_have_their_fields_in_this_order(name: str) -> None:
    assert getattr(ledgerlog, name)._fields == FIELDS[name]


def test_a_position_is_ordered_and_written_and_read() -> None:
    assert ledgerlog.Position(1, 2, 3) < ledgerlog.Position(1, 10, 0) < ledgerlog.Position(2, 0, 0)
    assert ledgerlog.Position.parse(str(ledgerlog.Position(1, 2, 3))) == ledgerlog.Position(1, 2, 3)


def test_the_errors_are_of_one_tree() -> None:
    for name in ERRORS:
        assert issubclass(getattr(ledgerlog, name), ledgerlog.LedgerLogError), name
        assert name in ledgerlog.__all__
    assert issubclass(ledgerlog.InvalidArgument, ValueError)
    assert ledgerlog.LostLeadership("log", 7).epoch == 7
    assert ledgerlog.Truncated("log", 7).first_offset == 7
    assert ledgerlog.OffsetMismatch("log", 3, 7).actual == 7


def test_every_public_name_is_there_once() -> None:
    assert len(set(ledgerlog.__all__)) == len(ledgerlog.__all__)
    assert [name for name in ledgerlog.__all__ if not hasattr(ledgerlog, name)] == []


@attrs.frozen
class Command:
    program: str
    words: tuple[str, ...]
    arguments: tuple[str, ...]
    options: tuple[str, ...]

    @classmethod
    def read(cls, program: str, line: str) -> Command:
        words = line.split()
        return cls(
            program,
            tuple(word for word in words if word.islower() and not word.startswith("-")),
            tuple(word for word in words if word.isupper()),
            tuple(word for word in words if word.startswith("-")),
        )


COMMANDS = [
    Command.read(program, line)
    for program, table in (("ledgerlog", LEDGERLOG_COMMANDS), ("bookie", BOOKIE_COMMANDS))
    for line in table.strip().splitlines()
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join((c.program, *c.words)))
def test_every_command_takes_what_scripts_give_it(command: Command) -> None:
    found: click.Command = {"ledgerlog": ledgerlog_command, "bookie": bookie_command}[command.program]
    for word in command.words:
        assert isinstance(found, click.Group), word
        found = found.commands[word]
    assert not isinstance(found, click.Group)
    arguments = [p for p in found.params if isinstance(p, click.Argument) and p.required]
    assert len(arguments) == len(command.arguments)
    options = {name: p for p in found.params if isinstance(p, click.Option) for name in p.opts}
    assert set(command.options) <= set(options)
    needed = {name for name, p in options.items() if p.required and p.envvar is None}
    assert needed <= set(command.options), "nothing more has to be given"
    if "--uri" in command.options:
        assert options["--uri"].envvar == "LEDGERLOG_URI"


FOR_THE_LIBRARY = frozenset(
    {
        "AttachedLedger",
        "BookieDirectory",
        "BookieNode",
        "DiskImage",
        "FullnessPolicy",
        "LedgerClient",
        "MetadataStore",
        "OutOfReach",
        "Platter",
        "Process",
        "Prover",
        "SegmentCounts",
        "SpacePolicy",
        "Timer",
    }
)
"""Types of members that are for the library itself and its tools."""

PACKAGES = (ledgerlog, ledgerlog.aio, ledgerlog.blocking, ledgerlog.testing)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_type_that_a_program_gets_from_a_public_object_or_gives_to_it_is_exported(
    package: ModuleType,
) -> None:
    """A program that annotates its functions needs the name, but not that of a protocol that it meets."""
    exported = {getattr(each, name) for each in {ledgerlog, package} for name in each.__all__}
    hidden = set()
    for owner in package.__all__:
        for member, hint in _hints(getattr(package, owner)):
            for found in _classes_in(hint):
                is_ours = found.__module__.split(".")[0] in ("ledgerlog", "bookie")
                is_needed = not getattr(found, "_is_protocol", False) or member.endswith(" returns")
                is_inner = found.__name__[0] == "_" or found.__name__ in FOR_THE_LIBRARY
                if is_ours and is_needed and not is_inner and found not in exported:
                    hidden.add(f"{owner}{member}: {found.__name__}")
    assert hidden == set()


def _hints(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what the public members of a class, or the parameters of a function, are said to be.

    ``__init__`` is left out: most objects are made by the library.
    """
    functions = {"": thing} if inspect.isfunction(thing) else {}
    if inspect.isclass(thing):
        fields = typing.get_type_hints(thing).items()
        yield from ((f".{name} returns", hint) for name, hint in fields if name[0] != "_")
        for name, member in inspect.getmembers_static(thing):
            function = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
            if inspect.isfunction(function) and (name[0] != "_" or name in ("__iter__", "__aiter__")):
                functions[f".{name}"] = function
    for name, function in functions.items():
        for parameter, hint in typing.get_type_hints(function).items():
            yield f"{name} returns" if parameter == "return" else f"{name}({parameter})", hint


def _classes_in(hint: Any) -> Iterator[type]:
    origin = typing.get_origin(hint) or hint
    if isinstance(origin, type):
        yield origin
    for argument in typing.get_args(hint):
        for each in argument if isinstance(argument, list) else [argument]:
            yield from _classes_in(each)


def test_what_connections_and_cores_call_is_on_no_public_object() -> None:
    inner = re.compile(r"(on|take)_\w+|act|run")
    public = [(name, getattr(ledgerlog, name)) for name in ledgerlog.__all__]
    members = [
        f"{name}.{member}" for name, thing in public if inspect.isclass(thing) for member in dir(thing)
    ]
    assert [member for member in members if inner.fullmatch(member.partition(".")[2])] == []


def test_every_public_name_is_imported_from_its_home_at_its_first_use() -> None:
    """Type checkers read the imports, Python reads the table: both must say the same."""
    source = Path(ledgerlog.__file__).read_text()
    imported: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module is not None
            and node.module.startswith("ledgerlog.")
        ):
            imported.setdefault(node.module, set()).update(alias.name for alias in node.names)
    errors = imported.pop("ledgerlog.errors")
    assert imported == {module: set(names) for module, names in ledgerlog._HOMES.items()}
    assert errors | set().union(*imported.values()) == set(ledgerlog.__all__)
    for name in ledgerlog.__all__:
        assert getattr(ledgerlog, name).__name__ == name
    assert set(ledgerlog.__all__) <= set(dir(ledgerlog))
    with pytest.raises(AttributeError, match="'ledgerlog' has no attribute 'Nobody'"):
        _ = ledgerlog.Nobody
