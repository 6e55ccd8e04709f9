"""The rooms of the architecture stay apart: a checker that reads imports, and the proof that it works.

The checker parses every module of the packages with ``ast`` and imports none of them. So it takes a path, and
also works on a broken tree that a test writes. Each rule below has such a tree.

**What counts as an import.** Every ``import`` and ``from ... import`` counts, wherever it stands: at the top,
inside a function, or under ``if TYPE_CHECKING:``. So do ``importlib.import_module("...")`` and
``__import__("...")`` with a literal name. Imports for types count because an annotation that names a room
above is knowledge of that room too: you could not read, type or move the module without it.

A dynamic import of a computed name cannot be read, so it is refused. The package ``ledgerlog`` itself is the
exception: another test compares the table that it imports from with its imports for types
(``test_public_surface``). ``from package import name`` is an import of ``package.name`` if that is a module,
and of ``package`` otherwise. The ``__init__`` of the packages above an imported module does not count: Python
runs it, but the importing module does not know it.

**The rules.**

1. *Arrows.* Each module lies in one room of ``ROOMS`` (the longest name that matches) and imports
   only from that room and from the rooms listed there. A module without a room is an error, so
   whoever makes a new folder must give it a place in the table.
2. *No cycles* between modules; function-level imports and imports for types count.
3. *Purity.* Modules in a folder named ``core``, and in the rooms of ``PURE_ROOMS``, reach no clock, file,
   socket, thread, random source or logger, and import only pure modules.
4. *Capabilities.* Only the modules that own a capability import its modules (``CAPABILITIES``).
5. *Nowhere.* pickle and its like, yaml, ``eval``, ``exec``: bytes from a disk or a peer are never code.
6. *print* is for the command line.
7. *Lost answers.* No ``except`` names MetadataOutcomeUnknown. Only ``ledgerlog.meta.settle`` does, because
   it knows what to do then.

To let a room import something, extend a table here and write the reason next to the line.
"""

from __future__ import annotations

import ast
from collections.abc import Container, Iterator, Mapping
from functools import cache
from pathlib import Path

import attrs
import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = ("ledgerlog", "bookie", "pyspark_ledgerlog", "pyspark_ledgeraudit")

# --- the tables -----------------------------------------------------------------------------------
# A name in a table stands for that module and all modules below it. Exceptions: "ledgerlog" and "bookie"
# stand only for the two package __init__ modules. A name with a star at its end stands for every module that
# begins so. If a room lies inside another room (an entry point), only a table entry with its full name opens
# it.

VOCABULARY = (
    "ledgerlog.redact",
    "ledgerlog.errors",
    "ledgerlog.limits",
    "ledgerlog.counts",
    "ledgerlog.model",
)
CONCURRENCY = ("ledgerlog.concurrency", "ledgerlog.event_log")  # What every shell may use.
BELOW_LEDGER = (
    *VOCABULARY,
    *CONCURRENCY,
    "ledgerlog.optional_packages",
    "ledgerlog.wire",
    "ledgerlog.net",
    "ledgerlog.meta",
    "ledgerlog.versions",
)
BELOW_LOG = (*BELOW_LEDGER, "ledgerlog.ledger")
BELOW_TOOLS = (*BELOW_LOG, "ledgerlog.archive", "ledgerlog.log")
FROM_BOOKIE = (
    *VOCABULARY,
    *CONCURRENCY,
    "ledgerlog.wire",
    "ledgerlog.meta",
    "ledgerlog.versions",
    "ledgerlog.net.transport",
    "ledgerlog.net.turns",  # A connection takes turns by frames as its stream does by bytes.
    "ledgerlog.net.tcp",
    "ledgerlog.net.tls",
    "ledgerlog.net.prover",
    "ledgerlog.metrics.families",
)
BOOKIE = ("bookie", "bookie.core", "bookie.storage", "bookie.server")

ROOMS: dict[str, tuple[str, ...]] = {
    # room: what it may import besides itself
    # The secret parts of a URI; the text of every error passes through it.
    "ledgerlog.redact": (),
    "ledgerlog.errors": ("ledgerlog.redact",),
    "ledgerlog.limits": (),
    # What the parts of a process count for whoever watches it.
    "ledgerlog.counts": (),
    # Nurseries, gathering and racing, watermarks, paces. They lie just above the vocabulary, so all may use
    # them.
    "ledgerlog.concurrency": VOCABULARY,
    # Lines in the log that machines can rely on.
    "ledgerlog.event_log": (),
    # Whether the packages of an extra are installed, and how to install them.
    "ledgerlog.optional_packages": (),
    # Makes directories whose entries survive a power cut.
    "ledgerlog.durable_directories": (),
    # Which event loop the caller runs in.
    "ledgerlog.loops": ("ledgerlog.errors",),
    # The first step of both commands.
    "ledgerlog.standard_streams": (),
    # What both commands show of long work.
    "ledgerlog.progress_bar": (),
    # How both commands react to signals. Their nursery must not wrap the errors that a command raises.
    "ledgerlog.signals": CONCURRENCY,
    # The options of both commands that name credentials.
    "ledgerlog.credential_options": VOCABULARY,
    "ledgerlog.model": ("ledgerlog.redact", "ledgerlog.errors", "ledgerlog.limits"),
    "ledgerlog.wire": VOCABULARY,
    # What this process speaks; it reads an environment variable, which the pure wire must not.
    "ledgerlog.versions": (*VOCABULARY, "ledgerlog.wire"),
    "ledgerlog.net": (*VOCABULARY, *CONCURRENCY, "ledgerlog.wire", "ledgerlog.versions"),
    "ledgerlog.meta": (
        *VOCABULARY,
        *CONCURRENCY,
        "ledgerlog.durable_directories",
        "ledgerlog.optional_packages",  # SASL's.
    ),
    # Who a process is: its secrets, and what the store says of how the cluster is closed.
    "ledgerlog.proving": (
        *VOCABULARY,
        *CONCURRENCY,
        "ledgerlog.durable_directories",
        "ledgerlog.meta",
        "ledgerlog.net",
    ),
    # Spans around what a program does with records. The version names the tracer.
    "ledgerlog.tracing": ("ledgerlog", "ledgerlog.model"),
    "ledgerlog.ledger": BELOW_LEDGER,
    # Archived parts of logs, as files. Readers of logs read through it.
    "ledgerlog.archive": BELOW_LEDGER,
    "ledgerlog.log": (*BELOW_LOG, "ledgerlog.archive"),
    # The jobs that make archives. Repair's checks tell them which ledgers are not fully replicated.
    "ledgerlog.archive.jobs": (*BELOW_TOOLS, "ledgerlog.repair"),
    # Leadership of anything, not only of logs.
    "ledgerlog.election": BELOW_TOOLS,
    # The table of metrics; pure, so the storage node may name them.
    "ledgerlog.metrics.families": ("ledgerlog.counts",),
    # Reads what cores and shells count.
    "ledgerlog.metrics": (*BELOW_LEDGER, "ledgerlog.ledger", "ledgerlog.metrics.families"),
    # The administration port: HTTP, and who may ask what.
    "ledgerlog.admin": (
        *VOCABULARY,
        *CONCURRENCY,
        "ledgerlog.meta",
        "ledgerlog.net.transport",
        "ledgerlog.net.prover",
        "ledgerlog.metrics",
        "ledgerlog.metrics.families",
    ),
    # The cluster on a web page and in a terminal: it looks at everything, and changes what an admin may.
    "ledgerlog.console": (
        *BELOW_TOOLS,
        "ledgerlog.election",
        "ledgerlog.repair",
        "ledgerlog.admin",
        "ledgerlog.metrics.families",
    ),
    # State machines on logs: they elect, append, read, and store snapshots.
    "ledgerlog.machine": (*BELOW_TOOLS, "ledgerlog.election", "ledgerlog.durable_directories"),
    # What callers outside of trio's loop have trio do.
    "ledgerlog.crossing": BELOW_TOOLS,
    # The same API without await, for threads that have no event loop.
    "ledgerlog.blocking": (
        *BELOW_TOOLS,
        "ledgerlog.loops",
        "ledgerlog.election",
        "ledgerlog.metrics.families",
        "ledgerlog.cluster",
        "ledgerlog.crossing",
    ),
    # The same API for asyncio.
    "ledgerlog.aio": (
        *BELOW_TOOLS,
        "ledgerlog.loops",
        "ledgerlog.election",
        "ledgerlog.machine",
        "ledgerlog.metrics.families",
        "ledgerlog.cluster",
        "ledgerlog.crossing",
    ),
    # The auditor is elected.
    # Forgotten ledgers come back into the logs that they continue.
    "ledgerlog.repair": (*BELOW_LOG, "ledgerlog.election", "ledgerlog.log", "ledgerlog.metrics.families"),
    # Logs in Spark. Its processes have no event loop of their own, so it uses the portal.
    "ledgerlog.spark": (
        *BELOW_TOOLS,
        "ledgerlog",
        "ledgerlog.cluster",
        "ledgerlog.proving",
        "ledgerlog.blocking",
        "ledgerlog.archive.jobs",
        "ledgerlog.repair",  # An audit may make tasks of its findings.
    ),
    # Spark finds the sources by these names.
    "pyspark_ledgerlog": ("ledgerlog.spark",),
    "pyspark_ledgeraudit": ("ledgerlog.spark",),
    # Bookies inside the calling process, for memory: and file:, and the streams to them.
    "ledgerlog.embedded": (*FROM_BOOKIE, "ledgerlog.net.local", *BOOKIE),
    # Both start whole systems, with auto-recovery, jobs of archives and bookies. The command also runs
    # simulations.
    "ledgerlog.testing": (
        *BELOW_TOOLS,
        "ledgerlog",
        "ledgerlog.cluster",
        "ledgerlog.election",
        "ledgerlog.machine",
        "ledgerlog.repair",
        "ledgerlog.archive.jobs",
        "ledgerlog.embedded",
        *BOOKIE,
    ),
    "ledgerlog.cli": (
        *BELOW_TOOLS,
        "ledgerlog.durable_directories",
        "ledgerlog.standard_streams",
        "ledgerlog.progress_bar",
        "ledgerlog.signals",
        "ledgerlog.credential_options",
        "ledgerlog.proving",
        "ledgerlog",
        "ledgerlog.cluster",
        "ledgerlog.election",
        "ledgerlog.repair",
        "ledgerlog.admin",
        "ledgerlog.console",
        "ledgerlog.metrics",
        "ledgerlog.metrics.families",
        "ledgerlog.archive.jobs",
        "ledgerlog.spark",
        "ledgerlog.embedded",
        "ledgerlog.testing",
        "ledgerlog.aio",
        *BOOKIE,
        "bookie.server.main",
    ),
    "ledgerlog.__main__": ("ledgerlog.cli",),
    # The public names.
    "ledgerlog": (
        *VOCABULARY,
        "ledgerlog.ledger",
        "ledgerlog.log",
        "ledgerlog.election",
        "ledgerlog.machine",
        "ledgerlog.metrics.families",
        "ledgerlog.cluster",
    ),
    # connect(): the whole client, and for memory: and file: (lazily) the bookies next to it.
    "ledgerlog.cluster": (
        *BELOW_TOOLS,
        "ledgerlog.loops",
        "ledgerlog.election",
        "ledgerlog.metrics",
        "ledgerlog.metrics.families",
        "ledgerlog.proving",
    ),
    "bookie.core": (*VOCABULARY, "ledgerlog.wire"),
    "bookie.storage": (
        *VOCABULARY,
        *CONCURRENCY,
        "ledgerlog.durable_directories",
        "ledgerlog.optional_packages",  # The stores of the index.
        "ledgerlog.wire",
        "ledgerlog.meta",
        "bookie.core",
    ),
    "bookie.server": (*FROM_BOOKIE, "bookie.core", "bookie.storage", "ledgerlog.admin", "ledgerlog.metrics"),
    # The node must not know the client. The entry point hands it what it needs of one: reading and recovering
    # ledgers (limbo repair) and hosted auto-recovery.
    "bookie.server.main": (
        *FROM_BOOKIE,
        "ledgerlog.admin",
        "ledgerlog.metrics",
        "ledgerlog.durable_directories",
        "ledgerlog.standard_streams",
        "ledgerlog.progress_bar",
        "ledgerlog.signals",
        "ledgerlog.credential_options",
        "ledgerlog.proving",
        "ledgerlog.ledger",
        "ledgerlog.repair",
        "bookie",
        "bookie.core",
        "bookie.storage",
        "bookie.server",
    ),
    "bookie.__main__": ("bookie.server.main",),
    "bookie": (),
}

LAZY_ARROWS: tuple[tuple[str, str], ...] = (
    # The table forbids these. They are allowed inside a function only: a program that connects to a real
    # cluster never loads the storage node.
    ("ledgerlog.cluster", "ledgerlog.embedded"),
)

PURE_ROOMS = (  # besides every folder named core
    "ledgerlog.metrics.families",
    "ledgerlog.redact",
    "ledgerlog.errors",
    "ledgerlog.limits",
    "ledgerlog.counts",
    "ledgerlog.model",
    "ledgerlog.wire",
)

IMPURE = frozenset(
    {
        # The loop and concurrency.
        "trio",
        "asyncio",
        "threading",
        "_thread",
        "queue",
        "concurrent",
        "multiprocessing",
        "subprocess",
        "signal",
        # Clocks and chance.
        "time",
        "random",
        "secrets",
        "uuid",
        # Files and the operating system.
        "os",
        "io",
        "pathlib",
        "tempfile",
        "shutil",
        # The network.
        "socket",
        "select",
        "selectors",
        "ssl",
        "http",
        "urllib",
        # External systems and the user.
        "sqlite3",
        "inotify_simple",
        "kazoo",
        "plyvel",
        "rocksdict",
        "pyspark",
        "logging",
        "warnings",
        "click",
        "rich",
    }
)
IMPURE_CALLS = frozenset({"open", "input", "print"})

STARTERS = ("ledgerlog.cli", "ledgerlog.testing", "ledgerlog.embedded", "bookie.server.main")
"""Modules that make the real capabilities and hand them in."""

CAPABILITIES: dict[str, tuple[str, ...]] = {
    # capability: the modules that own it
    "pyspark": ("ledgerlog.spark", "pyspark_ledgerlog", "pyspark_ledgeraudit"),
    "kazoo": ("ledgerlog.meta.zookeeper",),
    "sqlite3": ("ledgerlog.meta.sqlite*",),
    "ssl": ("ledgerlog.net", "ledgerlog.meta.zookeeper"),
    # It makes certificates for trials. TLS itself does without.
    "cryptography": ("ledgerlog.cli",),
    "inotify_simple": ("ledgerlog.meta.sqlite_changes",),
    "plyvel": ("bookie.storage.index.leveldb",),
    "rocksdict": ("bookie.storage.index.rocksdb",),
    "prometheus_client": ("ledgerlog.metrics.prometheus",),
    "h11": ("ledgerlog.admin.http",),
    "starlette": ("ledgerlog.console.web",),
    "textual": ("ledgerlog.console.terminal",),
    "hypercorn": ("ledgerlog.console.serving",),
    # Only the modules that read and make archives, the simulator's place for them, and Spark's side, which
    # has pyarrow anyway.
    "pyarrow": (
        "ledgerlog.archive",
        "ledgerlog.testing.archivers",
        "ledgerlog.testing.archive_store",
        "ledgerlog.spark",
    ),
    "os": (
        "ledgerlog.versions",  # The environment variable of the next version.
        "ledgerlog.archive.destinations",
        "ledgerlog.net",
        "ledgerlog.blocking.portal",
        "ledgerlog.aio.bridge",
        "ledgerlog.machine.directory",
        "ledgerlog.durable_directories",
        "ledgerlog.meta.sqlite*",
        "ledgerlog.meta.backup_file",
        # The environment variables that name credentials.
        "ledgerlog.cluster",
        "ledgerlog.credential_options",
        # It makes clusters, whose ids are random.
        "ledgerlog.meta.uri",
        "ledgerlog.meta.zookeeper",
        "ledgerlog.spark",
        "ledgerlog.standard_streams",
        "bookie.storage",
        *STARTERS,
    ),
    "threading": (
        "ledgerlog.net",
        "ledgerlog.meta.sqlite*",
        "ledgerlog.meta.zookeeper",
        "ledgerlog.blocking.portal",
        # The number of the thread that calls.
        "ledgerlog.blocking.reading",
        "ledgerlog.crossing.loop",
        "ledgerlog.spark",
        "bookie.storage",
        *STARTERS,
    ),
    # It cuts a connection of kazoo's that a stop would wait for.
    "socket": ("ledgerlog.net", "ledgerlog.meta.zookeeper", *STARTERS),
    # A client's wall clock, random choices and keys are one object, which the simulator replaces.
    "random": ("ledgerlog.net", "ledgerlog.ledger.environment", *STARTERS),
    # Ledger keys, and the session names in the metadata stores, which must differ between processes.
    "secrets": ("ledgerlog.ledger.environment", "ledgerlog.meta", *STARTERS),
    "uuid": ("ledgerlog.ledger.environment", "ledgerlog.meta", *STARTERS),
    # SQLite's sessions use a clock that processes share; ZooKeeper's use one that goes on during sleep.
    "time": (
        "ledgerlog.net",
        "ledgerlog.meta.sqlite*",
        "ledgerlog.meta.zookeeper",
        "ledgerlog.ledger.environment",
        "bookie.storage",
        *STARTERS,
    ),
    "subprocess": ("ledgerlog.cli", "ledgerlog.testing", "ledgerlog.spark"),
    "signal": ("ledgerlog.signals", "ledgerlog.cli", "ledgerlog.testing", "bookie.server.main"),
    # There is one event loop, and it is trio's. Only the face for asyncio, its benchmark, and the terminal,
    # which textual draws, know another one. The simulator refuses it.
    "asyncio": (
        "ledgerlog.aio",
        "ledgerlog.cli.bench_aio",
        "ledgerlog.console.terminal",
        "ledgerlog.testing.deterministic",
    ),
    "multiprocessing": (),
}

NOWHERE = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "yaml"})
NOWHERE_CALLS = frozenset({"eval", "exec"})
PRINTERS = ("ledgerlog.cli",)

LOST_ANSWER, SETTLER = "MetadataOutcomeUnknown", "ledgerlog.meta.settle"


# --- the checker ----------------------------------------------------------------------------------


@attrs.frozen
class Import:
    target: str
    line: int
    in_function: bool


@attrs.frozen
class Module:
    name: str
    imports: tuple[Import, ...]
    builtin_uses: tuple[tuple[str, int], ...]
    dynamic_imports: tuple[int, ...]
    caught: tuple[int, ...]


@attrs.frozen
class Violation:
    rule: str
    module: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: [{self.rule}] {self.message}"


def is_within(module: str, name: str) -> bool:
    """Return whether a name of the tables covers the module."""
    if name.endswith("*"):
        return module.startswith(name[:-1])
    return module == name or ("." in name and module.startswith(f"{name}."))


def room_of(module: str) -> str | None:
    return max((room for room in ROOMS if is_within(module, room)), key=len, default=None)


def is_core(module: str) -> bool:
    """Return whether the path says that the module is a pure machine."""
    return "core" in module.split(".")


def is_pure(module: str) -> bool:
    return is_core(module) or any(is_within(module, room) for room in PURE_ROOMS)


def may_import(module: str, imported: Import) -> bool:
    room, target_room = room_of(module), room_of(imported.target)
    if is_pure(module) and not is_pure(imported.target):
        return False
    if target_room is None or room is None or room == target_room:
        return True  # A module without a room is reported once, by another check.
    if imported.in_function and (module, imported.target) in LAZY_ARROWS:
        return True
    # A name that is shorter than the target's room does not open that room (an entry point).
    return any(is_within(imported.target, name) and len(name) >= len(target_room) for name in ROOMS[room])


class _ImportReader(ast.NodeVisitor):
    def __init__(self, package: str, known: frozenset[str]) -> None:
        self._package = package
        self._known = known
        self._functions = 0
        self.imports: list[Import] = []
        self.builtin_uses: list[tuple[str, int]] = []
        self.dynamic_imports: list[int] = []
        self.caught: list[int] = []

    def _add(self, target: str, line: int) -> None:
        self.imports.append(Import(target=target, line=line, in_function=self._functions > 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = node.module or ""
        if node.level:
            anchor = self._package.split(".")
            anchor = anchor[: len(anchor) - node.level + 1]
            base = ".".join([*anchor, base] if base else anchor)
        for alias in node.names:
            name = f"{base}.{alias.name}"
            self._add(name if name in self._known else base, node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        if (isinstance(function, ast.Attribute) and function.attr == "import_module") or (
            isinstance(function, ast.Name) and function.id in ("import_module", "__import__")
        ):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                self._add(name.value, node.lineno)
            else:
                self.dynamic_imports.append(node.lineno)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        for part in ast.walk(node.type) if node.type is not None else ():
            name = part.id if isinstance(part, ast.Name) else getattr(part, "attr", "")
            if name == LOST_ANSWER:
                self.caught.append(node.lineno)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and node.id in IMPURE_CALLS | NOWHERE_CALLS:
            self.builtin_uses.append((node.id, node.lineno))

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    visit_FunctionDef = _visit_function
    visit_AsyncFunctionDef = _visit_function
    visit_Lambda = _visit_function


def read_tree(root: Path) -> dict[str, Module]:
    """Return every module of the packages below ``root``, by dotted name, with its imports resolved."""
    sources: dict[str, str] = {}
    packages = set()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            sources[name] = path.read_text(encoding="utf-8")
            if path.name == "__init__.py":
                packages.add(name)
    return read_sources(sources, packages)


def read_sources(sources: Mapping[str, str], packages: Container[str] = PACKAGES) -> dict[str, Module]:
    """Return the modules with these sources. ``packages``: the names of those that are an ``__init__``."""
    known = frozenset(sources)
    modules = {}
    for name, source in sources.items():
        reader = _ImportReader(name if name in packages else name.rpartition(".")[0], known)
        reader.visit(ast.parse(source, filename=name))
        modules[name] = Module(
            name=name,
            imports=tuple(reader.imports),
            builtin_uses=tuple(reader.builtin_uses),
            dynamic_imports=tuple(reader.dynamic_imports),
            caught=tuple(reader.caught),
        )
    return modules


def check(root: Path) -> list[Violation]:
    """Return all violations in the packages below ``root``, in a stable order."""
    return check_modules(read_tree(root))


def check_modules(modules: Mapping[str, Module]) -> list[Violation]:
    found: list[Violation] = []
    for module in modules.values():
        found += _check_module(module)
    found += _check_cycles(modules)
    return found


def _check_module(module: Module) -> Iterator[Violation]:
    name = module.name
    pure = is_pure(name)
    if room_of(name) is None:
        yield Violation("rooms", name, 1, "lies in no room: give it a place in ROOMS")
    for imported in module.imports:
        top = imported.target.partition(".")[0]
        if top in PACKAGES:
            if not may_import(name, imported):
                message = f"{room_of(name)} may not import {imported.target}"
                yield Violation("arrows", name, imported.line, message)
            continue
        if top in NOWHERE:
            yield Violation("nowhere", name, imported.line, f"{top} is not used in this house")
        if pure and top in IMPURE:
            yield Violation("purity", name, imported.line, f"a pure room imports {top}")
        elif top in CAPABILITIES and not any(is_within(name, owner) for owner in CAPABILITIES[top]):
            owners = ", ".join(CAPABILITIES[top]) or "nobody"
            yield Violation("capabilities", name, imported.line, f"{top} belongs to {owners}")
    for builtin, line in module.builtin_uses:
        if builtin in NOWHERE_CALLS:
            yield Violation("nowhere", name, line, f"{builtin} is not used in this house")
        elif builtin == "print":
            if not any(is_within(name, printer) for printer in PRINTERS):
                yield Violation("print", name, line, "print outside the command line")
        elif pure:
            yield Violation("purity", name, line, f"a pure room uses {builtin}")
    for line in module.dynamic_imports if name != "ledgerlog" else ():
        yield Violation("arrows", name, line, "an import of a computed name cannot be checked")
    for line in module.caught if name != SETTLER else ():
        yield Violation("lost answers", name, line, f"except {LOST_ANSWER}: {SETTLER} does that")


def _check_cycles(modules: Mapping[str, Module]) -> Iterator[Violation]:
    """Return one violation for each cycle that a depth-first walk closes, naming the modules on it."""
    done: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> Iterator[Violation]:
        for imported in modules[name].imports:
            if imported.target in trail:
                cycle = [*trail[trail.index(imported.target) :], imported.target]
                yield Violation("cycles", name, imported.line, " -> ".join(cycle))
            elif imported.target in modules and imported.target not in done:
                yield from walk(imported.target, (*trail, imported.target))
        done.add(name)

    for name in modules:
        if name not in done:
            yield from walk(name, (name,))


# --- the house ------------------------------------------------------------------------------------


@cache
def house() -> dict[str, Module]:
    return read_tree(REPOSITORY)


def test_every_module_of_both_packages_keeps_to_its_room() -> None:
    found = check_modules(house())
    assert not found, "\n" + "\n".join(str(violation) for violation in found)


def test_the_checker_reads_the_real_tree() -> None:
    modules = house()
    assert {"ledgerlog", "ledgerlog.errors", "ledgerlog.meta.store", "bookie"} <= modules.keys()
    assert "ledgerlog.errors" in {imported.target for imported in modules["ledgerlog.meta.store"].imports}


def test_every_name_in_the_tables_is_well_formed() -> None:
    for room, allowed in ROOMS.items():
        for name in (room, *allowed):
            assert name.partition(".")[0] in PACKAGES
        for name in allowed:
            assert room_of(name) is not None, f"{room} may import {name}, which lies in no room"
    for pure in PURE_ROOMS:
        assert pure in ROOMS


# --- the checker bites ----------------------------------------------------------------------------


def plant(root: Path, sources: Mapping[str, str]) -> Path:
    """Write modules by dotted name below ``root``. A package can be read without an ``__init__``."""
    for name, source in sources.items():
        target = root.joinpath(*name.split("."))
        path = target / "__init__.py" if name in PACKAGES or target.is_dir() else target.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
    return root


def rules(root: Path) -> set[str]:
    return {violation.rule for violation in check(root)}


def specimen(room: str) -> str:
    """Return the name of a module that lies in the room."""
    return room if room in PACKAGES or room.endswith((".main", ".__main__")) else f"{room}.specimen"


def test_a_tree_that_keeps_to_the_rules_is_accepted(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "ledgerlog.errors": "",
            "ledgerlog.model.ids": "import attrs\nfrom ledgerlog.errors import X\n",
            "ledgerlog.log.core.chain": "from ledgerlog import errors\nfrom ledgerlog.model.ids import Y\n",
            "ledgerlog.net.transport": "import socket\n",
            "ledgerlog.meta.zookeeper": "import kazoo.client\n",
            "ledgerlog.cluster": "def f():\n    from ledgerlog.embedded import g\n",
            "ledgerlog.embedded": "from bookie.server import server\n",
            "ledgerlog.cli.main": "print(1)\n",
            "bookie.storage.disk.disk": "import os\n",
            "bookie.storage.index.leveldb": "import os\nimport plyvel\n",
            "bookie.server.server": "import trio\nfrom ledgerlog.net import transport\n",
            "bookie.server.main": "from ledgerlog.ledger.cluster import f\nfrom . import server\n",
        },
    )
    assert check(tmp_path) == []


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_imports_the_rooms_it_names_and_no_other(room: str) -> None:
    importer = specimen(room)
    for target_room in ROOMS:
        target = specimen(target_room)
        if target_room == room:
            continue
        found = check_modules(read_sources({target: "", importer: f"import {target}\n"}))
        refused = "arrows" in {violation.rule for violation in found}
        assert refused == (target_room not in ROOMS[room]), f"{importer} -> {target}"


@pytest.mark.parametrize(
    "source",
    [
        "import ledgerlog.ledger.cluster\n",
        "from ledgerlog.ledger import cluster\n",
        "from ...ledger import cluster\n",
        "from ...ledger.cluster import f\n",
        "def f():\n    import ledgerlog.ledger.cluster\n",
        "f = lambda: __import__('ledgerlog.ledger.cluster')\n",
        "import importlib\nimportlib.import_module('ledgerlog.ledger.cluster')\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ledgerlog.ledger.cluster import f\n",
        "import importlib\nname = 'ledgerlog.ledger.cluster'\nimportlib.import_module(name)\n",
    ],
)
def test_an_import_is_seen_in_every_form_it_can_take(tmp_path: Path, source: str) -> None:
    plant(tmp_path, {"ledgerlog.cluster": "", "ledgerlog.ledger.core.writer": source})
    assert rules(tmp_path) == {"arrows"}


def test_the_client_may_reach_embedded_bookies_only_from_a_function_of_one_module(tmp_path: Path) -> None:
    eager = {"ledgerlog.embedded": "", "ledgerlog.cluster": "import ledgerlog.embedded\n"}
    elsewhere = {
        "ledgerlog.embedded": "",
        "ledgerlog.ledger.writer": "def f():\n    import ledgerlog.embedded\n",
    }
    directly = {"bookie.server.x": "", "ledgerlog.cluster": "def f():\n    import bookie.server.x\n"}
    for number, sources in enumerate((eager, elsewhere, directly)):
        assert rules(plant(tmp_path / str(number), sources)) == {"arrows"}


def test_a_bookie_knows_transport_and_tcp_but_not_the_rest_of_the_network_room(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "ledgerlog.net.tcp": "",
            "ledgerlog.net.pool": "",
            "bookie.server.server": "from ledgerlog.net import tcp\nfrom ledgerlog.net import pool\n",
        },
    )
    (violation,) = check(tmp_path)
    assert (violation.rule, violation.line) == ("arrows", 2)


@pytest.mark.parametrize(
    ("core", "target", "is_allowed"),
    [
        ("ledgerlog.log.core.chain", "ledgerlog.model.ids", True),
        ("ledgerlog.log.core.chain", "ledgerlog.log.core.attach", True),
        ("ledgerlog.repair.core.audit", "ledgerlog.ledger.core.copies", True),
        ("ledgerlog.ledger.core.copies", "ledgerlog.repair.core.audit", False),
        ("ledgerlog.log.core.chain", "ledgerlog.log.writer", False),
        ("ledgerlog.log.core.chain", "ledgerlog.meta.settle", False),
        ("bookie.core.boot", "bookie.storage.engine.engine", False),
    ],
)
def test_a_core_imports_what_is_pure_of_its_own_part_and_of_parts_below(
    tmp_path: Path, core: str, target: str, is_allowed: bool
) -> None:
    plant(tmp_path, {target: "", core: f"import {target}\n"})
    assert rules(tmp_path) == (set() if is_allowed else {"arrows"})


def test_a_module_without_a_room_is_refused(tmp_path: Path) -> None:
    plant(tmp_path, {"ledgerlog.utils": ""})
    assert rules(tmp_path) == {"rooms"}


@pytest.mark.parametrize(
    "back",
    [
        "import ledgerlog.model.a\n",
        "def f():\n    from ledgerlog.model.a import g\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import a\n",
    ],
)
def test_a_cycle_between_modules_is_refused(tmp_path: Path, back: str) -> None:
    plant(
        tmp_path,
        {
            "ledgerlog.model.a": "from ledgerlog.model.b import x\n",
            "ledgerlog.model.b": "from ledgerlog.model import c\n",
            "ledgerlog.model.c": back,
        },
    )
    (violation,) = check(tmp_path)
    assert violation.rule == "cycles"
    assert violation.message.count(" -> ") == 3


def test_a_module_that_imports_itself_through_its_package_is_a_cycle(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "ledgerlog.model.a": "from ledgerlog.model import x\n",
            "ledgerlog.model": "from ledgerlog.model.a import x\n",
        },
    )
    assert rules(tmp_path) == {"cycles"}


@pytest.mark.parametrize("room", [*PURE_ROOMS, "ledgerlog.ledger.core", "bookie.core"])
def test_a_pure_room_may_not_reach_the_world(tmp_path: Path, room: str) -> None:
    for number, name in enumerate(sorted(IMPURE)):
        root = plant(tmp_path / str(number), {f"{room}.specimen": f"def f():\n    import {name}\n"})
        assert rules(root) == {"purity"}, name
    for builtin in sorted(IMPURE_CALLS - {"print"}):
        assert rules(plant(tmp_path / builtin, {f"{room}.specimen": f"{builtin}('x')\n"})) == {"purity"}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_a_capability_is_imported_by_its_owners_alone(tmp_path: Path, capability: str) -> None:
    owners = CAPABILITIES[capability]
    for number, room in enumerate({room for room in ROOMS if not is_pure(room)}):
        module = specimen(room)
        owned = any(is_within(module, owner) for owner in owners)
        root = plant(tmp_path / str(number), {module: f"from {capability} import x\n"})
        assert rules(root) == (set() if owned else {"capabilities"}), module
    for owner in owners:
        root = plant(tmp_path / f"owner {owner.rstrip('*')}", {owner.rstrip("*"): f"import {capability}.x\n"})
        assert check(root) == []


@pytest.mark.parametrize("module", ["ledgerlog.cli.main", "ledgerlog.model.ids", "bookie.storage.disk.disk"])
def test_code_from_bytes_is_refused_everywhere(tmp_path: Path, module: str) -> None:
    for name in sorted(NOWHERE):
        assert rules(plant(tmp_path / name, {module: f"import {name}\n"})) == {"nowhere"}
    for builtin in sorted(NOWHERE_CALLS):
        assert rules(plant(tmp_path / builtin, {module: f"{builtin}('1')\n"})) == {"nowhere"}


def test_a_method_that_happens_to_be_called_eval_is_not_the_builtin(tmp_path: Path) -> None:
    plant(tmp_path, {"ledgerlog.ledger.x": "def f(redis):\n    return redis.eval('1')\n"})
    assert check(tmp_path) == []


def test_print_is_refused_outside_the_command_line(tmp_path: Path) -> None:
    plant(tmp_path, {"ledgerlog.ledger.x": "f = print\n", "ledgerlog.cli.x": "print(1)\n"})
    (violation,) = check(tmp_path)
    assert (violation.rule, violation.module) == ("print", "ledgerlog.ledger.x")


@pytest.mark.parametrize(
    "clause",
    [
        "except MetadataOutcomeUnknown:",
        "except MetadataOutcomeUnknown as lost:",
        "except (MetadataUnavailable, MetadataOutcomeUnknown):",
        "except (KeyError, (errors.MetadataOutcomeUnknown, OSError)):",
        "except* errors.MetadataOutcomeUnknown:",
        "except (*CONFLICTS, MetadataOutcomeUnknown):",
    ],
)
def test_a_lost_answer_is_caught_by_its_owner_alone(tmp_path: Path, clause: str) -> None:
    source = f"def f():\n    try:\n        g()\n    {clause}\n        pass\n"
    plant(tmp_path, {"ledgerlog.ledger.x": source, "ledgerlog.meta.settle": source})
    (violation,) = check(tmp_path)
    assert (violation.rule, violation.module, violation.line) == ("lost answers", "ledgerlog.ledger.x", 4)


def test_a_lost_answer_may_be_raised_anywhere(tmp_path: Path) -> None:
    source = "def f():\n    try:\n        g()\n    except OSError:\n        raise MetadataOutcomeUnknown\n"
    plant(tmp_path, {"ledgerlog.meta.x": source})
    assert check(tmp_path) == []
