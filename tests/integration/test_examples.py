"""The examples do what they say."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

import ledgerlog
from ledgerlog.cli.processes import Child, open_children
from ledgerlog.testing import check_machine
from tests.integration.running_cluster import start_cluster
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.processes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


async def quickstart(directory: Path) -> str:
    ran = await trio.run_process(
        [sys.executable, str(EXAMPLES / "quickstart.py")], capture_stdout=True, cwd=directory
    )
    return ran.stdout.decode()


async def test_the_quickstart_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = await quickstart(tmp_path)
    assert first == "appended at 0, 1 and 2, in epoch 1\n0 first\n1 a\n2 b\n"
    second = await quickstart(tmp_path)
    assert second == "appended at 3, 4 and 5, in epoch 2\n0 first\n1 a\n2 b\n3 first\n4 a\n5 b\n"


def test_the_quickstart_is_the_program_of_the_readme() -> None:
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    program = (EXAMPLES / "quickstart.py").read_text(encoding="utf-8")
    for line in re.findall(r"```python\n(.*?)```", readme, re.DOTALL)[0].splitlines():
        if "await" in line or "async for" in line:
            code = line.partition("  #")[0].strip()
            assert code in program, code


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    async def ask(self, line: str) -> str:
        await self._stream.send_all(f"{line}\n".encode())
        answer = b""
        with trio.fail_after(PATIENCE_S):
            while not answer.endswith(b"\n"):
                answer += await self._stream.receive_some()
        return answer.decode().strip()


@asynccontextmanager
async def service(directory: Path) -> AsyncIterator[tuple[Child, str, Client]]:
    """The service as a process, its first lines, and a client of it."""
    async with open_children() as children:
        command = [sys.executable, str(EXAMPLES / "embedded_service.py"), str(directory / "data")]
        child = await children.start("service", command, pipe_out=True, log_path=directory / "stderr")
        assert child.stdout is not None
        said = b""
        with trio.fail_after(PATIENCE_S):
            while not said.endswith(b"\n"):
                more = await child.stdout.receive_some()
                assert more, (directory / "stderr").read_text()
                said += more
        words = said.decode().strip()
        stream = await trio.open_tcp_stream("127.0.0.1", int(words.rpartition(":")[2]))
        async with stream:
            yield child, words, Client(stream)


async def test_the_embedded_service_knows_after_a_kill_what_it_had_answered(tmp_path: Path) -> None:
    async with service(tmp_path) as (child, said, client):
        assert said.startswith("0 keys from 0 changes")
        assert await client.ask("GET colour") == "NONE"
        assert await client.ask("SET colour red") == "OK 0"
        assert await client.ask("SET colour dark blue") == "OK 1"
        assert await client.ask("SET size 7") == "OK 2"
        assert await client.ask("GET colour") == "dark blue"
        assert (await client.ask("NONSENSE")).startswith("ERROR")
        assert (await client.ask(f"SET size {'8' * ledgerlog.limits.RECORD_BYTES_MAX}")).startswith("ERROR: ")
        child.kill()
        await child.wait()
    async with service(tmp_path) as (_, said, client):
        assert said.startswith("2 keys from 3 changes")
        assert await client.ask("GET colour") == "dark blue"
        assert await client.ask("GET size") == "7"
        assert await client.ask("SET size 8") == "OK 3"
        assert await client.ask("KEYS") == "2"


@pytest.mark.parametrize("name", ["embedded_service", "failover", "quickstart", "tail"])
def test_an_example_is_shorter_than_a_hundred_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 100


async def test_the_failover_example_kills_two_leaders_and_the_third_process_goes_on(tmp_path: Path) -> None:
    ran = await trio.run_process(
        [sys.executable, str(EXAMPLES / "failover.py")], capture_stdout=True, capture_stderr=True
    )
    first, second, last = ran.stdout.decode().splitlines()
    names = []
    for line in (first, second):
        found = re.fullmatch(r"(\w+) killed; (\w+) wrote record \d+ after (\d+) ms", line)
        assert found is not None, line
        names += [found[1], found[2]]
    assert names[1] == names[2], "who led next was killed next"
    assert set(names) == {"anna", "bert", "cleo"}
    order = " then ".join(f"{name}," for name in (names[0], names[1])) + f" then {names[3]}"
    assert re.fullmatch(rf"\d+ records, written by {order}", last), last


async def test_the_tail_example_goes_on_where_it_ended(tmp_path: Path) -> None:
    async with open_children() as children:
        running = await start_cluster(children, tmp_path / "cluster")
        command = [sys.executable, str(EXAMPLES / "tail.py"), running.uri, "log", str(tmp_path / "place")]

        async def consume(count: int, place: str) -> list[str]:
            child = await children.start("tail", command, pipe_out=True, log_path=tmp_path / "tail.log")
            assert child.stdout is not None
            said = b""
            with trio.fail_after(PATIENCE_S):
                while said.count(b"\n") < count:
                    more = await child.stdout.receive_some()
                    assert more, (tmp_path / "tail.log").read_text()
                    said += more
                await until(lambda: (tmp_path / "place").read_text().strip() == place)
            await child.stop()
            return [line.split(maxsplit=1)[1] for line in said.decode().splitlines()]

        (tmp_path / "place").write_text("0")
        async with ledgerlog.connect(running.uri) as cluster:
            log = await cluster.create_log("log")
            async with log.writer() as writer:
                await writer.append_many([b"a", b"b"], atomic=True)
                assert await consume(2, "2") == ["0 a", "1 b"]
                await writer.append(b"c")
                assert await consume(1, "3") == ["2 c"]
                await writer.append_many([b"d", b"e"], atomic=True)
                await log.truncate(4)
                assert await consume(1, "5") == ["4 e"]
                assert "records 3 to 3 are gone" in (tmp_path / "tail.log").read_text()


@pytest.mark.parametrize("name", ["accounts", "kv"])
def test_an_example_of_a_state_machine_is_shorter_than_150_lines(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) < 150


async def test_the_accounts_example_remembers_cuts_its_log_off_and_repeats_no_request(tmp_path: Path) -> None:
    async def run(*words: str) -> tuple[int, str]:
        ran = await trio.run_process(
            [sys.executable, str(EXAMPLES / "accounts.py"), str(tmp_path / "bank"), *words],
            capture_stdout=True,
            capture_stderr=True,
            check=False,
        )
        return ran.returncode, ran.stdout.decode() + ran.stderr.decode()

    assert await run("deposit", "anna", "100") == (0, "100\n")
    for _ in range(3):
        assert await run("transfer", "anna", "bert", "30", "rent") == (0, "70\n")
    assert await run("transfer", "bert", "anna", "31") == (1, "refused: bert has 30\n")
    for total in (31, 32, 33):
        assert await run("deposit", "bert", "1") == (0, f"{total}\n")
    status, said = await run("balances")
    assert status == 0
    balances, history = said.rsplit("\n", 2)[0], said.splitlines()[-1]
    assert balances == "anna 70\nbert 33"
    found = re.fullmatch(r"from a snapshot of (\d+) events and (\d+) more", history)
    assert found is not None
    assert int(found[1]) >= 5
    assert int(found[2]) < 5


async def test_the_machines_of_the_examples_keep_the_rules_of_machines() -> None:
    sys.path.insert(0, str(EXAMPLES))
    try:
        kv, accounts = importlib.import_module("kv"), importlib.import_module("accounts")
        check_machine(
            kv.Store, [b'["SET", "a", "1"]', b'["CAS", "a", "1", "2"]', b'["CAS", "a", "1", "2"]', b"?"]
        )
        check_machine(
            accounts.Accounts,
            [b'{"deposit": 5, "to": "a"}', b'{"transfer": 3, "from": "a", "to": "b"}', b'{"transfer": 9}'],
        )
    finally:
        sys.path.remove(str(EXAMPLES))
        for name in ("kv", "accounts"):
            sys.modules.pop(name, None)
