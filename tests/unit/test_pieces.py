"""Joined bytes: splitting, and one contract for the twins that compute the CRC-32C of each piece.

If there is a C compiler, these tests compile the C twin twice: with the processor's instruction for CRC-32C,
and with tables, as for processors without this instruction. So the tests do not depend on the installation or
on ``LEDGERLOG_PURE``.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from array import array
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from google_crc32c import extend
from hypothesis import given
from hypothesis import strategies as st

import hatch_build
from ledgerlog.wire.pieces import (
    IS_COMPILED,
    each_piece,
    piece_checksums,
    piece_checksums_compiled,
    piece_checksums_in_python,
    split_pieces,
)

ROOT = Path(__file__).resolve().parents[2]
TWINS = ("python", "compiled", "compiled by tables")
Twin = Callable[..., "array[int]"]

piece_lists = st.one_of(
    st.lists(st.binary(max_size=40), max_size=30),
    # Pieces of equal size. Around some of these sizes, a twin takes another path.
    st.tuples(st.sampled_from([0, 1, 7, 8, 767, 768, 769, 3_071, 3_072, 4_096]), st.integers(1, 9)).flatmap(
        lambda each: st.lists(
            st.binary(min_size=each[0], max_size=each[0]), min_size=each[1], max_size=each[1]
        )
    ),
)
seed_numbers = st.one_of(st.integers(0, 2**32 - 1), st.integers(2**32 - 40, 2**32 - 1))


def can_compile() -> bool:
    """Whether there are a C compiler and Python's headers."""
    try:
        hatch_build.find_compiler()
    except hatch_build.CompilingFailed:
        return False
    return Path(sysconfig.get_paths()["include"], "Python.h").is_file()


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("ledgerlog.wire._pieces", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=TWINS)
def twin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Twin:
    if request.param == "python":
        return piece_checksums_in_python
    if not can_compile():
        pytest.skip("no C compiler, or no headers of Python")
    target = tmp_path_factory.mktemp("compiled") / "_pieces.abi3.so"
    options = ["-Wall", "-Wextra", "-Werror"]
    if request.param == "compiled by tables":
        options.append("-DWITHOUT_HARDWARE")
    hatch_build.build(ROOT / hatch_build.SOURCE, target, *options)
    compiled = load(target).piece_checksums
    return lambda *arguments: array("I", compiled(*arguments))


def lengths_of(parts: list[bytes]) -> array[int]:
    return array("I", map(len, parts))


def checksums_one_by_one(seed: int, parts: list[bytes]) -> list[int]:
    return [extend((seed + index) % 2**32, part) for index, part in enumerate(parts)]


# --- the contract ---------------------------------------------------------------------------------


def test_a_piece_has_the_checksum_of_the_standard(twin: Twin) -> None:
    # From RFC 3720, B.4, and the check value of catalogues of CRCs.
    for data, expected in (
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ):
        assert list(twin(0, data, array("I", [len(data)]))) == [expected]


@given(parts=piece_lists, seed=seed_numbers)
def test_each_piece_has_its_own_checksum_from_its_own_seed(twin: Twin, parts: list[bytes], seed: int) -> None:
    expected = checksums_one_by_one(seed, parts)
    lengths, joined = lengths_of(parts), b"".join(parts)
    assert list(twin(seed, joined, lengths)) == expected
    assert list(twin(seed, memoryview(joined), lengths)) == expected
    assert list(twin(seed, memoryview(bytearray(joined)), lengths)) == expected


@given(parts=piece_lists, random_=st.randoms(use_true_random=False))
def test_seeds_may_be_any_numbers(twin: Twin, parts: list[bytes], random_: random.Random) -> None:
    seeds = array("I", [random_.getrandbits(32) for _ in parts])
    expected = [extend(seed, part) for seed, part in zip(seeds, parts, strict=True)]
    assert list(twin(seeds, b"".join(parts), lengths_of(parts))) == expected


@given(parts=piece_lists, data_at=st.integers(0, 9), numbers_at=st.integers(0, 3))
def test_data_may_begin_anywhere_in_memory(
    twin: Twin, parts: list[bytes], data_at: int, numbers_at: int
) -> None:
    joined = b"".join(parts)
    whole = memoryview(b"?" * data_at + joined + b"??")
    view = whole[data_at : data_at + len(joined)]
    assert list(twin(3, view, lengths_of(parts))) == checksums_one_by_one(3, parts)
    padded = memoryview(b"?" * numbers_at + lengths_of(parts).tobytes())
    if numbers := padded[numbers_at:]:
        assert list(twin(3, joined, numbers.cast("I"))) == checksums_one_by_one(3, parts)


@pytest.mark.parametrize("size", [3_072 * 4 - 1, 100_003, 1_500_000])
def test_large_pieces(twin: Twin, size: int) -> None:
    parts = [random.Random(size).randbytes(size), b"x", random.Random(1).randbytes(size // 3)]
    assert list(twin(9, b"".join(parts), lengths_of(parts))) == checksums_one_by_one(9, parts)


@pytest.mark.parametrize(
    ("lengths", "data"),
    [([], b"a"), ([1], b""), ([0], b"a"), ([1, 1], b"abc"), ([3, 1], b"abc"), ([2**32 - 1, 2], b"a")],
)
def test_bytes_that_are_left_over_or_missing_are_refused(twin: Twin, lengths: list[int], data: bytes) -> None:
    with pytest.raises(ValueError, match=f"do not add up to the {len(data)} bytes"):
        twin(0, data, array("I", lengths))


@given(lengths=st.lists(st.one_of(st.integers(0, 40), st.integers(0, 2**32 - 1)), max_size=9), data=st.data())
def test_lengths_that_do_not_add_up_are_refused(twin: Twin, lengths: list[int], data: st.DataObject) -> None:
    payload = data.draw(st.binary(max_size=100).filter(lambda some: len(some) != sum(lengths)))
    with pytest.raises(ValueError, match=f"do not add up to the {len(payload)} bytes"):
        twin(0, payload, array("I", lengths))


def test_as_many_seeds_as_pieces_are_needed(twin: Twin) -> None:
    for seeds in ([], [1], [1, 2, 3]):
        with pytest.raises(ValueError, match=f"{len(seeds)} seeds for 2 pieces"):
            twin(array("I", seeds), b"abc", array("I", [1, 2]))


@pytest.mark.parametrize("seed", [-1, 2**32, 2**64, 2**100])
def test_a_seed_that_is_no_number_of_32_bits_is_refused(twin: Twin, seed: int) -> None:
    with pytest.raises(ValueError, match="a seed must be an unsigned 32-bit number"):
        twin(seed, b"abc", array("I", [3]))


@pytest.mark.parametrize("twin", TWINS[1:], indirect=True)
def test_the_compiled_twin_refuses_other_arrays(twin: Twin) -> None:
    for wrong in (array("i", [3]), array("H", [3, 0]), array("f", [3]), b"\3\0\0\0"):
        with pytest.raises(ValueError, match="lengths must be an array of unsigned 32-bit numbers"):
            twin(0, b"abc", wrong)
        with pytest.raises(ValueError, match="seeds must be an array of unsigned 32-bit numbers"):
            twin(wrong, b"abc", array("I", [3]))
    grid = memoryview(bytes(16)).cast("I", [2, 2])
    with pytest.raises(ValueError, match="lengths must be an array"):
        twin(0, b"", grid)
    for wrong in (None, "abc", 1.5):
        with pytest.raises(TypeError):
            twin(wrong, b"abc", array("I", [3]))
        with pytest.raises(TypeError):
            twin(0, wrong, array("I", [3]))
        with pytest.raises(TypeError):
            twin(0, b"abc", wrong)
    with pytest.raises(BufferError):
        twin(0, memoryview(b"abcdef")[::2], array("I", [3]))
    with pytest.raises(TypeError, match="takes seeds, data and lengths"):
        twin(0, b"abc")


@pytest.mark.parametrize("twin", TWINS[1:], indirect=True)
def test_the_compiled_twin_keeps_no_buffer(twin: Twin) -> None:
    data, lengths, seeds = bytearray(b"abc"), array("I", [1, 2]), array("I", [1, 2])
    twin(seeds, data, lengths)
    with pytest.raises(ValueError, match="do not add up"):
        twin(seeds, data, array("I", [1, 1]))
    with pytest.raises(ValueError, match="seeds for"):
        twin(array("I"), data, lengths)
    with pytest.raises(TypeError):
        twin(seeds, data, None)
    data.append(1)  # These raise BufferError if the buffer is still in use.
    lengths.append(1)
    seeds.append(1)


# --- which twin is used ---------------------------------------------------------------------------


def used_with(pure: str | None, *, first: str = "") -> str:
    """Return whether a new interpreter uses the compiled twin, with this value of ``LEDGERLOG_PURE``. It runs
    the code ``first`` before it imports the twins."""
    environment = {name: value for name, value in os.environ.items() if name != "LEDGERLOG_PURE"}
    if pure is not None:
        environment["LEDGERLOG_PURE"] = pure
    code = f"{first}\nfrom ledgerlog.wire import pieces; print(pieces.IS_COMPILED)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        check=True,
        capture_output=True,
        encoding="utf-8",
    )
    return done.stdout.strip()


def test_the_environment_switches_the_compiled_twin_off() -> None:
    assert used_with("1") == "False"
    assert used_with(None) == used_with("") == str(is_installed())


@pytest.mark.parametrize(
    ("constants", "is_used"), [("CONTRACT=1, ", True), ("CONTRACT=0, ", False), ("", False)]
)
def test_a_module_of_an_older_source_is_not_used(constants: str, is_used: bool) -> None:
    fake = f"types.SimpleNamespace({constants}IS_SWITCHED_OFF=0)"
    first = f"import sys, types; sys.modules['ledgerlog.wire._pieces'] = {fake}"
    assert used_with(None, first=first) == str(is_used)


def is_installed() -> bool:
    return importlib.util.find_spec("ledgerlog.wire._pieces") is not None


def test_continuous_integration_has_the_compiled_twin_if_there_is_a_compiler() -> None:
    if os.environ.get("CI") and can_compile():
        assert is_installed(), "reinstall with: pip install -e ."


def test_the_twin_in_use_may_get_the_pieces_too() -> None:
    chosen = piece_checksums_compiled if IS_COMPILED else piece_checksums_in_python
    assert piece_checksums is chosen
    parts = [b"a", b"", b"bcd"]
    for given_too in (None, parts):
        found = piece_checksums(7, b"".join(parts), lengths_of(parts), given_too)
        assert list(found) == checksums_one_by_one(7, parts)


# --- installing -----------------------------------------------------------------------------------


def run_hook(version: str, root: Path) -> tuple[dict[str, Any], list[str]]:
    """Let the build hook prepare a wheel. Return what it tells the builder, and its warnings."""
    warnings: list[str] = []
    hook = SimpleNamespace(root=str(root), app=SimpleNamespace(display_warning=warnings.append))
    data: dict[str, Any] = {"force_include": {}}
    hatch_build.CustomBuildHook.initialize(hook, version, data)
    if hasattr(hook, "_temporary"):
        assert all(Path(made).is_file() for made in data["force_include"])
        hatch_build.CustomBuildHook.finalize(hook, version, data, "")
    return data, warnings


@pytest.fixture
def source_tree(tmp_path: Path) -> Path:
    source = tmp_path / hatch_build.SOURCE
    source.parent.mkdir(parents=True)
    shutil.copyfile(ROOT / hatch_build.SOURCE, source)
    return tmp_path


def test_a_wheel_has_the_compiled_module_and_says_for_which_platform(
    source_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not can_compile():
        pytest.skip("no C compiler, or no headers of Python")
    monkeypatch.delenv("LEDGERLOG_PURE", raising=False)
    monkeypatch.setenv("_PYTHON_HOST_PLATFORM", "manylinux_2_17-x86.64")
    data, warnings = run_hook("standard", source_tree)
    assert list(data.pop("force_include").values()) == [hatch_build.BUILT]
    assert data == {"pure_python": False, "tag": "cp311-abi3-manylinux_2_17_x86_64"}
    assert not warnings
    assert not (source_tree / hatch_build.BUILT).exists()


@pytest.mark.parametrize("version", ["standard", "editable"])
@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("LEDGERLOG_PURE", "1", "LEDGERLOG_PURE is set"),
        ("CC", "no-such-compiler -m64", "there is no C compiler 'no-such-compiler'"),
        ("CC", "false", "false -O2"),
    ],
)
def test_nothing_is_compiled_if_it_is_not_wanted_or_fails(
    source_tree: Path, monkeypatch: pytest.MonkeyPatch, version: str, name: str, value: str, why: str
) -> None:
    monkeypatch.delenv("LEDGERLOG_PURE", raising=False)
    monkeypatch.setenv(name, value)
    older = source_tree / hatch_build.BUILT
    older.write_bytes(b"the module of an older source")
    data, (warning,) = run_hook(version, source_tree)
    assert data == {"force_include": {}}
    assert why in warning or not can_compile()
    assert older.exists() == (version != "editable")
    assert len(list(older.parent.iterdir())) == 1 + older.exists()


def test_a_module_that_cannot_be_written_is_no_error_of_installing(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.touch()
    with pytest.raises(hatch_build.CompilingFailed):
        hatch_build.build(ROOT / hatch_build.SOURCE, place / "_pieces.abi3.so")


# --- splitting ------------------------------------------------------------------------------------


@given(parts=piece_lists)
def test_pieces_are_split_where_they_were_joined(parts: list[bytes]) -> None:
    joined, lengths = b"".join(parts), lengths_of(parts)
    assert split_pieces(joined, lengths) == parts
    assert split_pieces(memoryview(joined), lengths) == parts
    assert split_pieces(b"", array("I")) == []


def test_pieces_come_one_by_one_as_they_come_together() -> None:
    for seed in range(200):
        random_ = random.Random(seed)
        size = random_.choice([0, 1, 100, 1_024, 5_000, 70_000])
        count = random_.randrange(40)
        sizes = [size] * count if seed % 2 else random_.choices([0, 1, size, 33_000], k=count)
        lengths = array("I", sizes)
        data = random_.randbytes(sum(lengths))
        assert list(each_piece(data, lengths)) == split_pieces(data, lengths)
        assert list(each_piece(memoryview(bytearray(data)), lengths)) == split_pieces(data, lengths)
