"""From the source of asynchronous classes to the source of a face.

Each public member of an asynchronous class becomes one of the face, by its kind. For ``blocking``:

    @property, public attribute     the same of the inner object
    async def info(...) -> Info     def: the loop's thread runs it
    def statistics() -> Counts      the same of the inner object, if the object is still open
    ... -> Log                      what is returned is wrapped in the face's own ``Log``
    ... -> AbstractAsyncContextManager[LogWriter]
                                    ``Entered``, which enters it in the loop's thread
    __repr__                        the inner object's, with the name of the face

If a class is an async context manager itself, what returns it enters it, too. A member that the hand-written
base class has is left to that; one that ``Mirror.left_out`` names is left out. A member of any other kind is
refused, so that somebody decides. Only the sources are read: nothing of the library is imported.
"""

from __future__ import annotations

import ast
import builtins
import copy
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import zip_longest
from pathlib import Path

import attrs

ROOT = Path(__file__).resolve().parents[2]
_WIDTH = 110
_MANAGER = "AbstractAsyncContextManager"
_PLAIN_MANAGER = "AbstractContextManager"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Undecided(Exception):
    """The generator cannot tell what a face makes of something; a plan, or the class, has to say it."""


@attrs.frozen
class Mirror:
    """One asynchronous class, and what a face makes of it."""

    original: str
    """Module and class: ``ledgerlog.log.log:Log``."""
    base: str = ""
    """Module and class of what is written by hand; without it the face's ``Face``."""
    through: str = ""
    """Module and function that an entered inner object passes through, if the face holds something else."""
    left_out: Mapping[str, str] = attrs.field(factory=dict)
    """By reason, the names of the public members that the face does not have."""
    calls: Mapping[str, str] = attrs.field(factory=dict)
    """By member that waits, the method of the base class that makes the call instead of ``_run``. It gets the
    same arguments."""
    entered: Mapping[str, str] = attrs.field(factory=dict)
    """By member that gives a context, module and class of what enters it instead of ``Plan.entered``."""
    notes: Mapping[str, str] = attrs.field(factory=dict)
    """By member ("" is the class), what the face adds to the docstring."""

    @property
    def name(self) -> str:
        return self.original.partition(":")[2]

    @property
    def names_left_out(self) -> frozenset[str]:
        return frozenset(" ".join(self.left_out.values()).split())


@attrs.frozen
class Plan:
    """One face."""

    name: str
    file: str
    """What is generated, below the root of the repository."""
    support: str
    """The module of the two classes below, which are written by hand."""
    is_async: bool
    mirrors: tuple[Mirror, ...]
    classes_left_out: Mapping[str, str]
    """Public asynchronous classes without a counterpart, each with the reason."""
    words: tuple[tuple[str, str], ...]
    """Patterns in docstrings and what this face says instead, in this order. A space matches a line's end."""
    foreign: str
    """A pattern that no docstring may match after that."""
    stand_ins: Mapping[str, str] = attrs.field(factory=dict)
    """By type of a parameter, the class of the face whose objects callers give instead. For example, a
    protocol of a lower part and the class that carries it out. The face passes the inner object on."""
    face: str = "Face"
    """The class that holds an asynchronous object."""
    entered: str = "Entered"
    """The class that enters an asynchronous context."""


# --- reading the asynchronous classes -------------------------------------------------------------


@attrs.frozen
class Source:
    """A class in its module."""

    module: str
    node: ast.ClassDef
    names: Mapping[str, str]
    """The names that its module defines or imports, and the modules that they come from."""

    @classmethod
    def of(cls, where: str) -> Source:
        module, _, name = where.partition(":")
        tree = _parse(ROOT / (module.replace(".", "/") + ".py"))
        (node,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
        own = {each.name: module for each in tree.body if isinstance(each, ast.ClassDef | Function)}
        assigned = {
            target.id: module
            for each in tree.body
            if isinstance(each, ast.Assign)
            for target in each.targets
            if isinstance(target, ast.Name)
        }
        imported = {
            name.asname or name.name: each.module
            for each in tree.body
            if isinstance(each, ast.ImportFrom) and each.module
            for name in each.names
            if name.asname is None
        }
        return cls(module, node, own | assigned | imported)

    def members(self) -> dict[str, Function]:
        """The methods, and each attribute as if it were a property. One of unknown type has no annotation."""
        found: dict[str, Function] = {}
        for each, following in _pairs(self.node.body):
            if isinstance(each, Function):
                if each.name in found:
                    raise Undecided(f"{self.node.name}.{each.name} is there twice: an overload, or a setter")
                if each.name == "__init__":
                    found |= _attributes_of(each)
                found[each.name] = each
            elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                found[each.target.id] = _property(each.target.id, each.annotation, following)
        return found


def _attributes_of(init: Function) -> dict[str, Function]:
    """What ``__init__`` sets: ``self.metadata = metadata`` has the type of the parameter."""
    types = {each.arg: each.annotation for each in (*init.args.args, *init.args.kwonlyargs)}
    found: dict[str, Function] = {}
    for each, following in _pairs(init.body):
        match each:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name("self"), attr=name)], value=value):
                annotation = types.get(value.id) if isinstance(value, ast.Name) else None
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name("self"), attr=name)):
                annotation = each.annotation
            case _:
                continue
        found[name] = _property(name, annotation, following)
    return found


def _property(name: str, annotation: ast.expr | None, following: ast.stmt | None) -> Function:
    (node,) = ast.parse(f"@property\ndef {name}(self): pass").body
    assert isinstance(node, ast.FunctionDef)
    node.returns = annotation
    match following:
        case ast.Expr(ast.Constant(str())):
            node.body = [following]
    return node


def _pairs(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, ast.stmt | None]]:
    """Each statement with the one that follows it, which may be an attribute's docstring."""
    return zip_longest(body, body[1:])


@cache
def _parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


# --- writing a face -------------------------------------------------------------------------------


def generate(plan: Plan) -> str:
    """The source of a face, formatted."""
    return _formatted(_Face(plan).source(), plan.file)


class _Face:
    """What is written so far."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._sources = {mirror.name: Source.of(mirror.original) for mirror in plan.mirrors}
        self._mirrors = {mirror.name: mirror for mirror in plan.mirrors}
        self._imports: set[str] = set()
        self._async, self._await = ("async ", "await ") if plan.is_async else ("", "")

    def source(self) -> str:
        classes = [self._class(mirror) for mirror in self._plan.mirrors]
        return "\n".join(
            [
                f'"""The classes of ``ledgerlog.{self._plan.name}``. Made by ``make faces``: do not edit.',
                "\nChange the asynchronous classes, or ``tools/faces/plans.py``, and make the file anew."
                + '"""',
                "from __future__ import annotations",
                *sorted(self._imports),
                f"__all__ = {sorted(self._mirrors)!r}",
                *classes,
            ]
        )

    def _class(self, mirror: Mirror) -> str:
        source = self._sources[mirror.name]
        variables = _type_variables(source.node)
        if variables is None or (variables and not mirror.base):
            raise Undecided(f"{mirror.original} has a base class: what it inherits would be left out")
        members = source.members()
        if gone := mirror.names_left_out - members.keys():
            raise Undecided(f"{mirror.original} has no {', '.join(sorted(gone))} to be left out")
        by_hand: frozenset[str] = frozenset()
        if mirror.base:
            base = self._import(mirror.base)
            by_hand = frozenset(Source.of(mirror.base).members()) - {"__init__"}
            if variables:
                home = mirror.base.partition(":")[0]
                base += f"[{', '.join(self._import(f'{home}:{each}') for each in variables)}]"
        else:
            face = self._import(f"{self._plan.support}:{self._plan.face}")
            base = f"{face}[{self._inner(mirror.name)}]"
        parts = [f"class {mirror.name}({base}):", self._doc(mirror, "", source.node, indent=4)]
        for name, node in members.items():
            if name == "__repr__" and name not in by_hand:
                parts.append(
                    f"    def __repr__(self) -> str:\n        return f'<{self._plan.name} {{self._inner!r}}>'"
                )
            elif not name.startswith("_") and name not in mirror.names_left_out | by_hand:
                parts.append(self._member(mirror, name, node))
        return "\n\n".join(parts)

    def _member(self, mirror: Mirror, name: str, node: Function) -> str:
        source, what = self._sources[mirror.name], f"{mirror.original}.{name}"
        node, faces = self._with_stand_ins(node)
        decorators = [ast.unparse(each) for each in node.decorator_list]
        if decorators == ["asynccontextmanager"]:
            node, decorators = _as_giver_of_a_context(node, what), []
        if node.returns is None or decorators not in ([], ["property"]):
            raise Undecided(f"{what} has no annotation, or a decorator that means nothing here")
        is_awaited = isinstance(node, ast.AsyncFunctionDef)
        if faces:
            self._import(f"{self._plan.support}:inner_of")
        value, passed = f"self._inner.{name}", _passed(node, what, faces)
        if name in mirror.calls:
            value = f"{self._await}self.{mirror.calls[name]}({passed})"
        elif is_awaited:
            work = f"lambda: {value}({passed})" if passed else value
            if self._is_context(node.returns):
                made = f"{self._import('ledgerlog.crossing.loop:making')}({work})"
                value = f"*{self._await}self._portal.enter({made})"
            else:
                value = f"{self._await}self._run({work})"
        elif not decorators:
            value = f"{value}({passed})"
        enters = mirror.entered.get(name, f"{self._plan.support}:{self._plan.entered}")
        returns, body = self._given(source, node.returns, value, is_awaited, what, enters)
        if not is_awaited and not decorators and body == [f"return {value}"]:
            body = ["self._check_open()", *body]
        annotations = [each.annotation for each in (*node.args.args, *node.args.kwonlyargs)]
        for each in (*annotations, *node.args.defaults, *node.args.kw_defaults):
            if each is not None and not (isinstance(each, ast.Name) and each.id in self._sources):
                self._learn(source, each)
        head = [
            *(f"@{each}" for each in decorators),
            f"{self._async if is_awaited else ''}def {name}({ast.unparse(node.args)}) -> {returns}:",
        ]
        doc = self._doc(mirror, name, node, indent=8)
        return "\n".join(
            [
                *(f"    {line}" for line in head),
                *([doc] if doc else []),
                *(f"        {line}" for line in body),
            ]
        )

    def _with_stand_ins(self, node: Function) -> tuple[Function, frozenset[str]]:
        """Return the member with the face's own types, and the parameters that take faces."""
        node, faces = copy.deepcopy(node), set()
        for each in (*node.args.args, *node.args.kwonlyargs):
            match each.annotation:
                case ast.Name(name) if name in self._plan.stand_ins:
                    each.annotation = ast.Name(self._plan.stand_ins[name])
                    faces.add(each.arg)
        return node, frozenset(faces)

    def _given(
        self, source: Source, annotation: ast.expr, value: str, is_awaited: bool, what: str, enters: str
    ) -> tuple[str, list[str]]:
        """What a member returns in the face, and the statements that return it."""
        match annotation:
            case ast.Constant(value=None):
                return "None", [value]
            case ast.Name(name) if name in self._sources:
                if self._is_context(annotation) and not is_awaited:
                    raise Undecided(f"{what} gives what has to be entered, and does not wait")
                check = [] if is_awaited else ["self._check()"]
                return name, [*check, f"return {name}(self._portal, {value})"]
            case ast.Subscript(ast.Name(manager), ast.Name(name)) if (
                manager == _MANAGER and name in self._sources and not is_awaited
            ):
                mirror = self._mirrors[name]
                if mirror.through:
                    value = f"{self._import(mirror.through)}({value})"
                given = self._import(f"contextlib:{_MANAGER if self._plan.is_async else _PLAIN_MANAGER}")
                return f"{given}[{name}]", [f"return {self._import(enters)}(self._portal, {value}, {name})"]
        words = ast.unparse(annotation)
        for each in ast.walk(annotation):
            if isinstance(each, ast.Name) and (
                each.id in self._sources or each.id == _MANAGER or each.id.startswith("Async")
            ):
                raise Undecided(f"{what} gives {words}: write it by hand in a base class, or leave it out")
        self._learn(source, annotation)
        return words, [f"return {value}"]

    def _is_context(self, annotation: ast.expr) -> bool:
        """Whether a class of the faces is an async context manager itself."""
        match annotation:
            case ast.Name(name) if name in self._sources:
                return "__aenter__" in self._sources[name].members()
        return False

    # --- names ---

    def _inner(self, name: str) -> str:
        """The asynchronous class, under a name that is not the face's."""
        self._imports.add(f"from {self._sources[name].module} import {name} as Async{name}")
        return f"Async{name}"

    def _import(self, where: str) -> str:
        module, _, name = where.partition(":")
        self._imports.add(f"from {module} import {name}")
        return name

    def _learn(self, source: Source, expression: ast.expr) -> None:
        """Import what an annotation or a default names."""
        for each in ast.walk(expression):
            if isinstance(each, ast.Name):
                if each.id in source.names:
                    self._import(f"{source.names[each.id]}:{each.id}")
                elif not hasattr(builtins, each.id):
                    raise Undecided(f"{source.module} does not say where {each.id} is from")

    # --- docstrings ---

    def _doc(self, mirror: Mirror, name: str, node: ast.ClassDef | Function, *, indent: int) -> str:
        text, what = ast.get_docstring(node) or "", f"{mirror.name}.{name}".rstrip(".")
        for pattern, instead in self._plan.words:
            text = re.sub(pattern.replace(" ", r"\s+"), instead, text)
        if found := re.search(self._plan.foreign, text):
            raise Undecided(
                f"the docstring of {what} says {found[0]!r}: extend Plan.words, or say it otherwise"
            )
        for owner, member in re.findall(r"``(?:(\w+)\.)?(\w+)(?:\(.*?\))?``", text):
            if member in self._mirrors.get(owner or mirror.name, mirror).names_left_out:
                raise Undecided(
                    f"the docstring of {what} names {member}, which is left out: extend Plan.words"
                )
        text = "\n\n".join(filter(None, [text.strip(), mirror.notes.get(name, "")]))
        if "\\" in text or '"""' in text:
            raise Undecided(f"the docstring of {what} has a backslash, or quotes")
        return textwrap.indent(f'"""{_filled(text, _WIDTH - indent - 6)}"""', " " * indent) if text else ""


def _as_giver_of_a_context(node: Function, what: str) -> Function:
    """What ``@asynccontextmanager`` makes of an async generator: a method that gives a context."""
    match node.returns:
        case ast.Subscript(ast.Name("AsyncIterator"), given):
            pass
        case _:
            raise Undecided(f"{what} is a context of nobody knows what")
    giver = ast.FunctionDef(
        name=node.name,
        args=node.args,
        body=node.body,
        decorator_list=[],
        returns=ast.Subscript(ast.Name(_MANAGER), given),
    )
    return ast.fix_missing_locations(giver)


def _type_variables(node: ast.ClassDef) -> list[str] | None:
    """The ``M`` of ``class C(Generic[M])``, and none of ``class C``; None for a class with other bases."""
    match node.bases:
        case []:
            return []
        case [ast.Subscript(ast.Name("Generic"), ast.Name(name))]:
            return [name]
        case _:
            return None


def _passed(node: Function, what: str, faces: frozenset[str]) -> str:
    """The arguments of a call that passes all parameters on; of ``faces``, the inner objects."""
    arguments = node.args
    if arguments.vararg or arguments.kwarg or arguments.posonlyargs:
        raise Undecided(f"{what} takes any number of arguments, or some without a name")

    def value(name: str) -> str:
        return f"inner_of({name}, '{name}')" if name in faces else name

    names = [value(each.arg) for each in arguments.args[1:]]
    return ", ".join([*names, *(f"{each.arg}={value(each.arg)}" for each in arguments.kwonlyargs)])


_ENTRY = re.compile(r"( +)\w+( \(.*?\))?: |( *)- ")
"""An entry of a section (``    name: what it is``) or of a list (``- what``)."""


def _filled(text: str, width: int) -> str:
    """The text with its paragraphs, entries of sections and lists filled anew. Examples stay as they are."""
    blocks: list[tuple[int | None, list[str]]] = []
    for line in text.splitlines():
        indent, entry = len(line) - len(line.lstrip()), _ENTRY.match(line)
        if line and not entry and blocks and blocks[-1][0] == indent:
            blocks[-1][1].append(line.strip())
        elif entry:
            blocks.append((indent + (4 if entry[1] else 2), [line]))
        else:
            blocks.append((0 if line and not indent else None, [line]))
    return "\n".join(
        "\n".join(lines)
        if hanging is None
        else textwrap.fill(
            " ".join(lines),
            width,
            subsequent_indent=" " * hanging,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for hanging, lines in blocks
    )


def _formatted(source: str, file: str) -> str:
    for arguments in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        ran = subprocess.run(
            [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", file, "-"],
            input=source,
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=True,
        )
        source = ran.stdout
    return source
