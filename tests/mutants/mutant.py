"""What a mutant is: a small change to the product that breaks one rule of the protocol.

A mutant is a question to the tests: would they notice if this rule were broken? It names a *symbol* and a
change in the syntax tree of that symbol. So it does not go stale if code is formatted anew or moves to
another module:

    mutant(
        "negative_quorum_one_too_small",
        "A.0, T03",
        "Replication.negative_quorum",               # where
        "self.write_quorum - self.ack_quorum + 1",   # what stands there once: an expression, or statements
        "max(1, self.write_quorum - self.ack_quorum)",  # what takes its place
        "tests/unit/test_model_quorum.py",           # who must notice
    )

A symbol is a function, a class, a module-level name or a module. Write as much of its dotted name as makes it
the only one in the product: ``Replication.negative_quorum`` if there is one class of that name,
``quorum.Replication`` if there are two. An empty replacement removes the statements. A mutant is *stale* if
its symbol or its pattern is gone or is there twice, or if it uses a name that its module does not define.

Two kinds of answers are wanted (``Mutant.equivalent`` tells which):

* As a rule at least one of ``tests`` must fail. Put the quick ones first.
* An *equivalent* mutant breaks nothing that anybody could observe, or only costs time. ``equivalent`` is the
  reason, and ``tests`` (those that look hardest at the rule) must all pass in spite of it. We keep these
  because somebody tried them: if you ask "and if this were different?", you find the answer.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
_PRODUCT = ("ledgerlog", "bookie", "pyspark_ledgerlog", "pyspark_ledgeraudit")


class Stale(Exception):
    """The code that a mutant changes is not there any more, or not once."""


@attrs.frozen
class Change:
    """Within ``symbol``, the one expression or run of statements ``old`` becomes ``new``."""

    symbol: str
    old: str
    new: str

    @property
    def is_idle(self) -> bool:
        """Whether ``new`` is the same code as ``old``."""
        old, new = (ast.parse(textwrap.dedent(code).strip()) for code in (self.old, self.new))
        return ast.dump(old) == ast.dump(new)


@attrs.frozen
class Mutant:
    name: str
    rule: str
    """The rule of docs/PROTOCOL.md that it breaks."""
    changes: tuple[Change, ...]
    tests: tuple[str, ...]
    """Files or test ids."""
    equivalent: str | None = None
    """Why nothing can notice it; None if the tests must."""

    def patched(self, root: Path = ROOT) -> dict[str, str]:
        """The new text of each file that it changes, by the file's path below ``root``.

        Stale: a change does not fit the code, or the result does not compile."""
        replacements: dict[str, list[_Replacement]] = {}
        for change in self.changes:
            try:
                found = _find(change, root)
            except Stale as cause:
                raise Stale(f"{self.name}: {cause}") from cause
            replacements.setdefault(found.file, []).append(found)
        texts = {}
        for file, in_file in replacements.items():
            text = _source(root, file).text
            for each in sorted(in_file, key=lambda each: each.start, reverse=True):
                text = text[: each.start] + each.new + text[each.end :]
            try:
                unknown = _unknown_names(text, file)
            except SyntaxError as cause:
                raise Stale(f"{self.name}: {file} does not compile with this change: {cause}") from cause
            if unknown:
                raise Stale(f"{self.name}: {file} does not define {', '.join(sorted(unknown))}")
            texts[file] = text
        return texts


def mutant(
    name: str, rule: str, symbol: str, old: str, new: str, *tests: str, also: tuple[Change, ...] = ()
) -> Mutant:
    """A mutant that some of ``tests`` must notice. ``also``: more that has to change with it."""
    return Mutant(name, rule, (Change(symbol, old, new), *also), tests)


def equivalent(
    name: str,
    rule: str,
    symbol: str,
    old: str,
    new: str,
    *tests: str,
    because: str,
    also: tuple[Change, ...] = (),
) -> Mutant:
    """A mutant that nothing can notice. ``tests`` are those that look hardest."""
    return Mutant(name, rule, (Change(symbol, old, new), *also), tests, because)


def _unknown_names(text: str, file: str) -> set[str]:
    """The global names that a module uses and does not define. The first use of one ends any test."""
    compile(text, file, "exec", dont_inherit=True)
    module = symtable.symtable(text, file, "exec")
    defined = {each.get_name() for each in module.get_symbols() if each.is_assigned() or each.is_imported()}
    defined.update(dir(builtins), ("__file__",))
    used: set[str] = set()
    tables = [module]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        for each in table.get_symbols():
            if each.is_global() or table is module:
                (defined if each.is_declared_global() else used).add(each.get_name())
    return used - defined


# --- finding the place ----------------------------------------------------------------------------


@attrs.frozen
class _Replacement:
    file: str
    start: int
    end: int
    new: str


@attrs.frozen
class _Source:
    """A parsed file. Its offsets count characters; the positions of a syntax tree count bytes in a line."""

    file: str
    text: str
    tree: ast.Module
    line_starts: tuple[int, ...]

    @classmethod
    def read(cls, path: Path, file: str) -> _Source:
        text = path.read_text(encoding="utf-8")
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return cls(file, text, ast.parse(text), tuple(starts))

    def span(self, first: ast.stmt | ast.expr, last: ast.stmt | ast.expr) -> tuple[int, int]:
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        return self._offset(first.lineno, first.col_offset), self._offset(
            last.end_lineno, last.end_col_offset
        )

    def _offset(self, line: int, column: int) -> int:
        start = self.line_starts[line - 1]
        encoded = self.text[start : self.line_starts[line]].encode()
        return start + len(encoded[:column].decode())


def forget_sources() -> None:
    """Free the syntax trees of the product: a million objects, which the garbage collector would look through
    in every later test."""
    for remembered in (_source, _symbols, _defined, _shape):
        remembered.cache_clear()


@cache
def _source(root: Path, file: str) -> _Source:
    return _Source.read(root / file, file)


@cache
def _symbols(root: Path) -> dict[str, list[tuple[str, str]]]:
    """The full dotted names and files of all symbols, by the last part of their names."""
    found: dict[str, list[tuple[str, str]]] = {}
    for package in _PRODUCT:
        for path in sorted((root / package).rglob("*.py")):
            file = path.relative_to(root).as_posix()
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            for name in (module, *(f"{module}.{each}" for each, _ in _defined(root, file))):
                found.setdefault(name.rpartition(".")[2], []).append((name, file))
    return found


@cache
def _defined(root: Path, file: str) -> tuple[tuple[str, ast.AST], ...]:
    return tuple(_definitions(_source(root, file).tree))


def _definitions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Functions, classes and assigned names in ``node``, with their dotted names inside of the module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.Assign | ast.AnnAssign) and isinstance(node, ast.Module | ast.ClassDef):
            for target in child.targets if isinstance(child, ast.Assign) else [child.target]:
                if isinstance(target, ast.Name):
                    yield prefix + target.id, child
        elif isinstance(child, ast.stmt):
            yield from _definitions(child, prefix)


def _resolve(symbol: str, root: Path) -> tuple[_Source, list[ast.AST]]:
    """The file and the nodes of a symbol: several if an overload or a setter shares its name."""
    candidates = {
        (name, file)
        for name, file in _symbols(root).get(symbol.rpartition(".")[2], [])
        if f".{name}".endswith(f".{symbol}")
    }
    if len(candidates) != 1:
        names = ", ".join(sorted(name for name, _ in candidates)) or "none"
        raise Stale(f"{symbol} must name one symbol of the product; it names: {names}")
    ((name, file),) = candidates
    source = _source(root, file)
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    if name == module:
        return source, [source.tree]
    return source, [node for each, node in _defined(root, file) if f"{module}.{each}" == name]


def _find(change: Change, root: Path) -> _Replacement:
    source, nodes = _resolve(change.symbol, root)
    pattern = ast.parse(textwrap.dedent(change.old)).body
    is_expression = len(pattern) == 1 and isinstance(pattern[0], ast.Expr)
    matches: dict[tuple[int, int], str] = {}
    for node in nodes:
        for body in _bodies(node):
            for first, last in _runs(body, pattern):
                start, end = source.span(first, last)
                matches[start, end] = _indented(
                    change.new, first.col_offset, source.text.startswith("elif", start)
                )
    if is_expression and not matches:
        for node in nodes:
            for each in ast.walk(node):
                if isinstance(each, ast.expr) and _is_like(each, pattern[0].value):
                    matches[source.span(each, each)] = f"({change.new})"
    if len(matches) != 1:
        raise Stale(
            f"{change.symbol} in {source.file} has this {len(matches)} times, not once:\n{change.old}"
        )
    (((start, end), new),) = matches.items()
    return _Replacement(source.file, start, end, new)


def _indented(code: str, columns: int, is_elif: bool) -> str:
    """Statements for a place that begins at ``columns``, or that take the place of an ``elif``."""
    code = textwrap.dedent(code).strip("\n") or "pass"
    if is_elif:
        code = "else:\n" + textwrap.indent(code, "    ")
    return textwrap.indent(code, " " * columns).removeprefix(" " * columns)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Every list of statements in ``node``."""
    if isinstance(node, ast.Assign | ast.AnnAssign):
        yield [node]
    for each in ast.walk(node):
        for name in ("body", "orelse", "finalbody"):
            body = getattr(each, name, None)
            if isinstance(body, list):
                yield body


def _runs(body: list[ast.stmt], pattern: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    """The first and last statement of each place in ``body`` that is the same as ``pattern``."""
    for index in range(len(body) - len(pattern) + 1):
        run = body[index : index + len(pattern)]
        if all(_is_like(each, wanted) for each, wanted in zip(run, pattern, strict=True)):
            yield run[0], run[-1]


def _is_like(node: ast.AST, other: ast.AST) -> bool:
    """Whether two pieces of code are the same, whether they are read or assigned to."""
    return type(node) is type(other) and _shape(node) == _shape(other)


@cache
def _shape(node: ast.AST) -> str:
    return ast.dump(node).replace(", ctx=Store()", ", ctx=Load()").replace(", ctx=Del()", ", ctx=Load()")
