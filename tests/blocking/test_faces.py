"""The classes of a face are what the generator makes of the asynchronous ones, and none is forgotten."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import attrs
import pytest

import ledgerlog
from tools.faces import generator
from tools.faces.generator import ROOT, Mirror, Plan, Undecided, generate
from tools.faces.plans import AIO, BLOCKING, PLANS

EACH_PLAN = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)


@EACH_PLAN
def test_the_file_of_a_face_is_what_the_generator_makes(plan: Plan) -> None:
    kept = (ROOT / plan.file).read_text(encoding="utf-8")
    assert generate(plan) == kept, "an asynchronous class has changed: run `make faces`"


@EACH_PLAN
def test_each_public_member_is_in_the_face_or_left_out_for_a_reason(plan: Plan) -> None:
    face = importlib.import_module(f"ledgerlog.{plan.name}")
    for mirror in plan.mirrors:
        original = getattr(ledgerlog, mirror.name)
        public = {name for name in dir(original) if not name.startswith("_")}
        offered = set(dir(getattr(face, mirror.name)))
        assert not public - offered - mirror.names_left_out, mirror.name
        assert not offered & mirror.names_left_out, mirror.name
        assert all(mirror.left_out), "a reason has words"


@EACH_PLAN
def test_each_public_asynchronous_class_has_a_face_or_a_reason(plan: Plan) -> None:
    asynchronous = {name for name in ledgerlog.__all__ if waits(getattr(ledgerlog, name))}
    decided = {mirror.name for mirror in plan.mirrors} | plan.classes_left_out.keys()
    assert asynchronous - decided == set()
    assert all(plan.classes_left_out.values()), "a reason has words"


def waits(thing: object) -> bool:
    return inspect.isclass(thing) and any(
        inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)
        for name, member in vars(thing).items()
        if not name.startswith("_")
    )


def test_what_waits_in_the_library_waits_in_its_face_for_asyncio() -> None:
    tree = ast.parse(generate(AIO))
    for mirror in AIO.mirrors:
        (face,) = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == mirror.name)
        original = generator.Source.of(mirror.original).members()
        for method in face.body:
            if isinstance(method, generator.Function) and method.name not in {"__repr__", *mirror.entered}:
                assert type(method) is type(original[method.name])
                wanted = ast.dump(original[method.name].args)
                for stand_in, face in AIO.stand_ins.items():
                    wanted = wanted.replace(f"Name(id='{stand_in}',", f"Name(id='{face}',")
                assert ast.dump(method.args) == wanted
                awaited = any(isinstance(each, ast.Await) for each in ast.walk(method))
                assert awaited is isinstance(method, ast.AsyncFunctionDef)


# --- the rules, on classes of their own ------------------------------------------------------------

SHIP = '''
from __future__ import annotations
from contextlib import AbstractAsyncContextManager
from collections.abc import AsyncIterator, Mapping
from sea.port import Port

LIMIT = 3


class Ship:
    """A ship that tasks share."""

    def __init__(self, name: str) -> None:
        self.name = name
        """What it is called."""

    async def load(self, boxes: int, *, most: int = LIMIT) -> Mapping[str, int]:
        """Wait for ``boxes``."""

    async def sink(self) -> None:
        """Go down."""

    def weigh(self, port: Port) -> int:
        return 3

    def mate(self) -> Mate:
        """Who helps."""

    def sail(self, *, far: bool = False) -> AbstractAsyncContextManager[Mate]:
        """The mate, in an ``async with``."""

    async def hail(self, first: Sailor, *, then: Sailor) -> None:
        """Call them."""
#MORE


class Mate:
    """One."""

    def shout(self) -> bytes:
        """Loudly."""
'''


def made(monkeypatch: pytest.MonkeyPatch, folder: Path, more: str = "", **changed: object) -> str:
    """What a face of ``SHIP`` looks like if the class ends with ``more``."""
    (folder / "sea").mkdir()
    more = "\n".join(f"    {line}" for line in more.splitlines())
    for name in ("port", "quay_base"):
        (folder / "sea" / f"{name}.py").touch()
    (folder / "sea" / "ship.py").write_text(SHIP.replace("#MORE", more), encoding="utf-8")
    monkeypatch.setattr(generator, "ROOT", folder)
    plan = Plan(
        name="quay",
        file="sea/quay.py",
        support="sea.quay_base",
        is_async=False,
        mirrors=(Mirror("sea.ship:Ship", **changed), Mirror("sea.ship:Mate")),
        classes_left_out={},
        words=((r"\ban ``async with", "a ``with"), (r"\btasks share", "threads share")),
        foreign=r"\basync\b|\btasks?\b",
        stand_ins={"Sailor": "Mate"},
    )
    return generate(plan)


def test_each_kind_of_member_becomes_one_of_the_face(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = made(monkeypatch, tmp_path, notes={"sink": "Swim then."})
    assert source.partition("__all__")[0] == (
        '"""The classes of ``ledgerlog.quay``. Made by ``make faces``: do not edit.\n\n'
        'Change the asynchronous classes, or ``tools/faces/plans.py``, and make the file anew."""\n\n'
        "from __future__ import annotations\n\n"
        "from collections.abc import Mapping\n"
        "from contextlib import AbstractContextManager\n\n"
        "from sea.port import Port\n"
        "from sea.quay_base import Entered, Face, inner_of\n"
        "from sea.ship import LIMIT\n"
        "from sea.ship import Mate as AsyncMate\n"
        "from sea.ship import Ship as AsyncShip\n\n"
    )
    assert source.partition("class ")[2] == (
        "Ship(Face[AsyncShip]):\n"
        '    """A ship that threads share."""\n\n'
        "    @property\n"
        "    def name(self) -> str:\n"
        '        """What it is called."""\n'
        "        return self._inner.name\n\n"
        "    def load(self, boxes: int, *, most: int = LIMIT) -> Mapping[str, int]:\n"
        '        """Wait for ``boxes``."""\n'
        "        return self._run(lambda: self._inner.load(boxes, most=most))\n\n"
        "    def sink(self) -> None:\n"
        '        """Go down.\n\n'
        '        Swim then."""\n'
        "        self._run(self._inner.sink)\n\n"
        "    def weigh(self, port: Port) -> int:\n"
        "        self._check_open()\n"
        "        return self._inner.weigh(port)\n\n"
        "    def mate(self) -> Mate:\n"
        '        """Who helps."""\n'
        "        self._check()\n"
        "        return Mate(self._portal, self._inner.mate())\n\n"
        "    def sail(self, *, far: bool = False) -> AbstractContextManager[Mate]:\n"
        '        """The mate, in a ``with``."""\n'
        "        return Entered(self._portal, self._inner.sail(far=far), Mate)\n\n"
        "    def hail(self, first: Mate, *, then: Mate) -> None:\n"
        '        """Call them."""\n'
        "        self._run(\n"
        "            lambda: self._inner.hail(\n"
        '                inner_of(first, "first"), then=inner_of(then, "then")\n'
        "            )\n        )\n\n\n"
        "class Mate(Face[AsyncMate]):\n"
        '    """One."""\n\n'
        "    def shout(self) -> bytes:\n"
        '        """Loudly."""\n'
        "        self._check_open()\n"
        "        return self._inner.shout()\n"
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("async def crew(self) -> list[Mate]:\n    pass", "write it by hand"),
        ("async def crew(self) -> AsyncIterator[bytes]:\n    yield b''", "write it by hand"),
        ("def moor(self) -> AbstractAsyncContextManager[Port]:\n    pass", "write it by hand"),
        ("def signal(self, *flags: str) -> None:\n    pass", "any number of arguments"),
        ("@staticmethod\ndef built() -> int:\n    return 7", "a decorator"),
        ("def age(self):\n    return 7", "no annotation"),
        ("def age(self) -> Years:\n    return 7", "where Years is from"),
        ("async def wait(self) -> None:\n    '''For several\n    tasks.'''", "says 'tasks'"),
        ("async def wait(self) -> None:\n    '''As ``sink`` does.'''", "names sink, which is left out"),
    ],
)
def test_what_the_generator_cannot_decide_it_refuses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: str, why: str
) -> None:
    with pytest.raises(Undecided, match=why):
        made(monkeypatch, tmp_path, more, left_out={"it only happens": "sink"})


def test_what_is_gone_is_not_left_out_any_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Undecided, match="no masts, sails to be left out"):
        made(monkeypatch, tmp_path, left_out={"the wind": "sails sink masts"})


def test_an_attribute_of_unknown_type_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sea").mkdir()
    code = "class Yard:\n    def __init__(self) -> None:\n        self.ship = object()\n"
    (tmp_path / "sea" / "yard.py").write_text(code, encoding="utf-8")
    monkeypatch.setattr(generator, "ROOT", tmp_path)
    with pytest.raises(Undecided, match="ship has no annotation"):
        generate(attrs.evolve(BLOCKING, mirrors=(Mirror("sea.yard:Yard"),)))


def test_sections_and_lists_of_a_docstring_keep_their_shape() -> None:
    text = """\
Read from the log, one record at a time,
until it ends.

Args:
    start (int): Where to begin,
        and no earlier.
    until: Where to end.

- one point that is rather
  long
- another

    example(  1)
    example(  2)"""
    assert generator._filled(text, 200) == text.replace("time,\n", "time, ").replace(
        "begin,\n        and", "begin, and"
    ).replace("rather\n  long", "rather long")
    narrow = generator._filled(text, 24).splitlines()
    assert narrow[4:9] == [
        "Args:",
        "    start (int): Where",
        "        to begin, and no",
        "        earlier.",
        "    until: Where to end.",
    ]
    assert max(map(len, narrow)) <= 24
