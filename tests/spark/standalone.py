"""A Spark cluster of real processes: a master and workers, started from pyspark's jars, on free ports.

The workers start executors as processes of their own when a driver registers. Each worker has another
loopback address, because Spark runs a speculative copy of a task only on another host. All processes end with
the body of the ``async with``. If the body fails, what they said is printed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pyspark
import trio

from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from ledgerlog.spark.session import find_java_home
from tests.integration.pages import ROOT
from tests.spark.conftest import preferred
from tests.waiting import until

SPARK_HOME = Path(pyspark.__file__).parent
MASTER_HOST = "127.0.0.1"
SMALL_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.memory": "500m",
    "spark.executor.memory": "500m",
    "spark.driver.extraJavaOptions": SMALL_JVM,
    "spark.executor.extraJavaOptions": SMALL_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "ERROR",
    "spark.master.rest.enabled": "false",
    "spark.ui.enabled": "false",
}
"""The settings of all drivers and executors, as conf/spark-defaults.conf of a cluster has them."""
_LINES_SHOWN = 60


@attrs.frozen
class StandaloneCluster:
    """A running cluster. ``standalone_cluster`` makes one."""

    master: str
    """The URL for ``--master``."""
    environment: dict[str, str]
    """The environment of a driver."""
    workers: list[Child]
    path: Path

    def executors(self) -> list[int]:
        """List the executors of all drivers."""
        return [pid for worker in self.workers for pid in executors_of(worker.pid)]

    def said(self) -> str:
        """Return the last lines of all processes, those of the executors included."""
        logs = [path for pattern in ("*.log", "work-*/**/std*") for path in sorted(self.path.glob(pattern))]
        parts = []
        for log in logs:
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LINES_SHOWN:]
            parts += [f"--- {log.relative_to(self.path)}", *lines]
        return "\n".join(parts)


@asynccontextmanager
async def standalone_cluster(
    path: Path,
    *,
    workers: int = 2,
    cores: int = 1,
    memory: str = "500m",
    settings: Mapping[str, str] = {},
    brings_pyspark: bool = False,
) -> AsyncIterator[StandaloneCluster]:
    """Start a master and workers below ``path``, and wait until the master says that all are registered.

    Args:
        path: The directory, which is made.
        workers: How many workers.
        cores: The cores of each worker.
        memory: The memory of each worker.
        settings: These are added to ``SETTINGS``.
        brings_pyspark: Whether Python processes take PySpark from Spark, as a zip file without compiled
            modules. Otherwise they take it from where it is installed, which starts them in a third of the
            time, and can import the tests.
    """
    _write_settings(path / "conf", {**SETTINGS, **settings})
    spark_home = SPARK_HOME if brings_pyspark else _without_pyspark(path / "home")
    home = find_java_home(os.environ)
    environment = {
        **os.environ,
        "PYTHONPATH": "" if brings_pyspark else str(ROOT),
        **({} if home is None else {"JAVA_HOME": str(home)}),
        "SPARK_HOME": str(spark_home),
        "SPARK_CONF_DIR": str(path / "conf"),
        "SPARK_SCALA_VERSION": "2.13",  # A Spark that is no release does not say it itself.
        "SPARK_LOCAL_IP": MASTER_HOST,
        "PATH": f"{spark_home / 'bin'}:{os.environ['PATH']}",
    }
    async with open_children() as children:
        log = path / "master.log"
        masters = [await _start(children, log, environment, "master.Master", "--port", "0")]
        master, page = await until(lambda: _addresses(log))
        of_worker = ("--cores", str(cores), "--memory", memory, master)
        started = [
            await _start(
                children,
                path / f"worker-{number}.log",
                {**environment, "SPARK_LOCAL_IP": f"127.0.0.{number}"},
                "worker.Worker",
                *("-d", f"{path}/work-{number}", *of_worker),
            )
            for number in range(2, 2 + workers)
        ]
        running = StandaloneCluster(master, environment, started, path)
        try:
            while await trio.to_thread.run_sync(_workers_alive, page) < workers:
                assert all(child.is_running for child in masters + started)
                await trio.sleep(0.1)
            yield running
        except BaseException:
            print(running.said())
            raise


async def _start(
    children: ChildProcesses, log: Path, environment: Mapping[str, str], main: str, *given: str
) -> Child:
    home = environment.get("JAVA_HOME")
    java = shutil.which("java") if home is None else f"{home}/bin/java"
    assert java is not None
    classes = f"{environment['SPARK_CONF_DIR']}:{SPARK_HOME}/jars/*"
    words = [java, "-Xmx128m", *SMALL_JVM.split(), "-cp", classes, f"org.apache.spark.deploy.{main}"]
    words += ["--host", environment["SPARK_LOCAL_IP"], "--webui-port", "0", *given]
    with preferred():
        return await children.start(log.stem, words, log_path=log, environment=environment)


def _without_pyspark(home: Path) -> Path:
    """Make the home of a Spark that has no PySpark."""
    home.mkdir()
    for name in ("bin", "jars"):
        (home / name).symlink_to(SPARK_HOME / name)
    return home


def _write_settings(path: Path, settings: Mapping[str, str]) -> None:
    path.mkdir(parents=True)
    lines = [f"{name} {value}\n" for name, value in settings.items()]
    (path / "spark-defaults.conf").write_text("".join(lines))


def _addresses(log: Path) -> tuple[str, str] | None:
    """Find the master's URL, and that of its page, in what it said."""
    said = log.read_text(encoding="utf-8")
    master = re.search(r"Starting Spark master at (spark://\S+)", said)
    page = re.search(r"Bound MasterWebUI to .* started at (http://\S+)", said)
    return None if master is None or page is None else (master[1], page[1])


def _workers_alive(page: str) -> int:
    with urllib.request.urlopen(f"{page}/json/") as answer:
        return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])


def executors_of(jvm: int) -> list[int]:
    """List the executors that a JVM started: a worker, or a driver that has its workers inside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == jvm and any(b"CoarseGrainedExecutorBackend" in word for word in words):
                found.append(int(entry.name))
    return found
