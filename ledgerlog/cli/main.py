"""The ``ledgerlog`` command: its groups, and the one place that turns a fault into an exit code.

    0      done
    1      failed; one line on standard error says what happened and what to try
    2      wrong usage
    128+n  ended cleanly by signal n; 141 (SIGPIPE) if the reader of standard output went away

Commands raise exceptions; only this module exits or prints a complaint. Any exception except a
``LedgerLogError`` and an error of the operating system is a bug, and keeps its traceback.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import wraps
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from ledgerlog import __version__
from ledgerlog.cli.complaints import complaint, os_complaint
from ledgerlog.cli.output import shown, telling_of_output
from ledgerlog.cli.running import Interrupted
from ledgerlog.errors import LedgerLogError
from ledgerlog.event_log import log_to_stderr
from ledgerlog.standard_streams import open_standard_streams

__all__ = ["cli", "main"]

COMMANDS: dict[str, Callable[[], ModuleType]] = {
    "archive": lambda: import_module("ledgerlog.cli.archive"),
    "access": lambda: import_module("ledgerlog.cli.access"),
    "bench": lambda: import_module("ledgerlog.cli.bench"),
    "bookie": lambda: import_module("ledgerlog.cli.bookie"),
    "cluster": lambda: import_module("ledgerlog.cli.cluster"),
    "console": lambda: import_module("ledgerlog.cli.console"),
    "completion": lambda: import_module("ledgerlog.cli.completion"),
    "demo": lambda: import_module("ledgerlog.cli.demo"),
    "ledger": lambda: import_module("ledgerlog.cli.ledger"),
    "log": lambda: import_module("ledgerlog.cli.log"),
    "metadata": lambda: import_module("ledgerlog.cli.metadata"),
    "monitoring": lambda: import_module("ledgerlog.cli.monitoring"),
    "repair": lambda: import_module("ledgerlog.cli.repair"),
    "simulate": lambda: import_module("ledgerlog.cli.simulate"),
    "spark": lambda: import_module("ledgerlog.cli.spark"),
    "top": lambda: import_module("ledgerlog.cli.top"),
}
"""The module of each command. In the module, the command has the same name as here."""


class ReaderGone(Exception):
    """The reader of standard output has gone away."""


class LazyCommands(MutableMapping[str, click.Command]):
    """The commands by name.

    Each module is imported when its command is first used, so a command does not wait for the imports of the
    others. For example, ``ledgerlog log list`` does not import the Spark commands or the benchmarks.
    """

    def __init__(self, modules: dict[str, Callable[[], ModuleType]]) -> None:
        self._modules = modules
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            self._loaded[name] = _refusing_uri(getattr(self._modules[name](), name))
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        raise TypeError("commands are not taken away")

    def __contains__(self, name: object) -> bool:
        return name in self._modules or name in self._loaded

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules | self._loaded)

    def __len__(self) -> int:
        return len(self._modules | self._loaded)


def _refusing_uri(command: click.Command) -> click.Command:
    """Return the command. If it or a command below it has no ``--uri``, it refuses the global ``--uri``."""
    if isinstance(command, click.Group):
        for each in command.commands.values():
            _refusing_uri(each)
    elif command.callback is not None and all(parameter.name != "uri" for parameter in command.params):
        callback = command.callback

        @wraps(callback)
        def refusing(*args: Any, **options: Any) -> Any:
            ctx = click.get_current_context()
            if ctx.find_root().params.get("uri") is not None:
                raise click.UsageError(f"'{ctx.command_path}' takes no --uri: leave it out", ctx)
            return callback(*args, **options)

        command.callback = refusing
    return command


class CommandLine(click.Group):
    """The root group. Its ``main`` catches every expected exception."""

    def main(self, *args: Any, **extra: Any) -> Any:
        open_standard_streams()
        extra["standalone_mode"] = False
        extra["prog_name"] = "ledgerlog"  # Help shows this name even under ``python -m ledgerlog``.
        code = self._exit_code(args, extra)
        try:
            sys.stdout.flush()
        except OSError:
            # The fault was reported already. The interpreter would flush once more and change the exit code
            # to 120.
            _discard_stdout()
        sys.exit(code)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            with telling_of_output():
                sys.stdout.flush()
        except BrokenPipeError as error:
            # Raise another type: click would turn a BrokenPipeError into exit code 1, which means failure.
            raise ReaderGone from error
        return result

    def _exit_code(self, args: Sequence[Any], extra: dict[str, Any]) -> int:
        try:
            code = super().main(*args, **extra)
        except click.UsageError as error:
            error.show()
            return 2
        except click.ClickException as error:
            return _complain(error.format_message())
        except LedgerLogError as error:
            return _complain(complaint(error))
        except Interrupted as error:
            _complain(str(error))
            return error.exit_code
        except (KeyboardInterrupt, click.Abort):
            _complain("interrupted")
            return 128 + signal.SIGINT
        except ReaderGone:
            _discard_stdout()
            return 128 + signal.SIGPIPE
        except OSError as error:
            return _complain(os_complaint(error))
        return code if isinstance(code, int) else 0


def _complain(line: str) -> int:
    click.echo(f"ledgerlog: {shown(line)}", err=True)
    return 1


def _discard_stdout() -> None:
    """Redirect standard output to nowhere, so that the interpreter's last flush cannot fail."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # Standard output is not a file: another program calls this in its own process.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


@click.group(
    cls=CommandLine,
    commands=LazyCommands(COMMANDS),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="ledgerlog")
@click.option("--uri", help="The cluster, for every command that takes --uri.  [env: LEDGERLOG_URI]")
@click.option(
    "-v",
    "--verbose",
    count=True,
    help="Log progress to standard error. Give it twice for more. 'repair run' and 'console' always do it.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    help="The format of the log: text for people, or one JSON object per line. With json, warnings are "
    "logged even without -v.",
)
def cli(verbose: int, log_format: str, uri: str | None) -> None:
    """Work with a replicated, durable log: its logs, the ledgers below them, bookies and clusters; and
    measure them."""
    del uri  # ``UriOption`` of a command reads it from the context.
    root = logging.getLogger()
    if verbose:
        log_to_stderr(logging.INFO if verbose == 1 else logging.DEBUG, log_format)
    elif log_format == "json":
        log_to_stderr(logging.WARNING, log_format)
    elif not root.handlers:
        # The module that handles a fault reports it in one line. Without a handler, Python prints warnings.
        root.addHandler(logging.NullHandler())


def main() -> None:
    """Run the ``ledgerlog`` command."""
    cli()
