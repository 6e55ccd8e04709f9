"""The build hook of the compiled part: it compiles ``ledgerlog/wire/_pieces.c`` if that is possible.

Installing never needs a compiler. If there is no compiler, or compiling fails, the hook prints the reason and
makes the pure wheel. Then ledgerlog uses the same functions in Python. pip shows the reason only with ``-v``.

The hook reads these environment variables:

- ``CC`` and ``CFLAGS``: the compiler and more options for it, as usual. Default: ``cc``.
- ``_PYTHON_HOST_PLATFORM``: the platform of the wheel, as in cross-compilations of Python. For example,
  ``CC=aarch64-linux-gnu-gcc _PYTHON_HOST_PLATFORM=linux-aarch64`` builds for arm64 on another machine.
- ``LEDGERLOG_PURE``: if it is set and not empty, the hook makes the pure wheel. An editable installation then
  removes a compiled module that was built earlier.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # Tests import ``build``, and do not need hatchling for it.
    BuildHookInterface = object

SOURCE = "ledgerlog/wire/_pieces.c"
BUILT = "ledgerlog/wire/_pieces.abi3.so"
ABI = "cp311-abi3"
"""The module uses only CPython's stable ABI, which 3.11 and every later version have."""


class CompilingFailed(Exception):
    """There is no compiled module. The message has the reason."""


def find_compiler() -> list[str]:
    """Return the command of the C compiler, with the options in ``CC``.

    Raises:
        CompilingFailed: There is no C compiler.
    """
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        raise CompilingFailed(f"there is no C compiler {command[0]!r}")
    return command


def build(source: Path, target: Path, *options: str) -> None:
    """Compile the module.

    Args:
        source: The C file.
        target: The shared library to make. An old one is replaced in one step, because processes may use it.
        options: More options for the compiler.

    Raises:
        CompilingFailed: There is no compiler, it fails, or this Python cannot load such a module.
    """
    if not sys.platform.startswith("linux"):
        raise CompilingFailed(f"it is not compiled on {sys.platform}")
    if sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise CompilingFailed("this Python has no stable ABI")
    include = sysconfig.get_paths()["include"]
    if not Path(include, "Python.h").is_file():
        raise CompilingFailed(f"Python's headers are not in {include}")
    flags = ["-O2", "-fPIC", "-shared", *shlex.split(os.environ.get("CFLAGS", "")), *options]
    unfinished = target.with_name(f"{target.name}.{os.getpid()}")
    command = [*find_compiler(), *flags, f"-I{include}", str(source), "-o", str(unfinished)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode:
            raise CompilingFailed(f"{shlex.join(command)} exited with {done.returncode}:\n{done.stderr}")
        unfinished.replace(target)
    except OSError as cause:
        raise CompilingFailed(f"{shlex.join(command)}: {cause}") from cause
    finally:
        _remove(unfinished)


def _remove(path: Path) -> None:
    # A read-only file system reports an error even if the file does not exist.
    with contextlib.suppress(OSError):
        path.unlink()


class CustomBuildHook(BuildHookInterface):
    """Adds the compiled module to a wheel, or puts it next to its source in an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        is_editable = version == "editable"
        try:
            if os.environ.get("LEDGERLOG_PURE"):
                raise CompilingFailed("LEDGERLOG_PURE is set")
            if is_editable:
                build(root / SOURCE, root / BUILT)
                return
            self._temporary = tempfile.TemporaryDirectory()
            made = Path(self._temporary.name, Path(BUILT).name)
            build(root / SOURCE, made)
        except CompilingFailed as why:
            self.app.display_warning(f"Without the compiled part, which is optional: {why}")
            if is_editable:
                _remove(root / BUILT)  # It may be the one of an older source.
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["force_include"][str(made)] = BUILT
        build_data["pure_python"] = False
        build_data["tag"] = f"{ABI}-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_temporary"):
            self._temporary.cleanup()
