"""``bookie run`` as a real process: it serves, stops, dies, starts again, and refuses what it must refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

import attrs
import pytest
import trio
from click.testing import CliRunner

from bookie.server.main import main as bookie_command
from ledgerlog.cli.main import cli
from ledgerlog.errors import LedgerLogError
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.model import layout
from ledgerlog.model.bookie import BookieInfo, Cookie
from ledgerlog.model.ledger import LedgerMetadata
from ledgerlog.model.quorum import Replication
from ledgerlog.net.tcp import TcpNetwork
from ledgerlog.wire.entries import Entries, decode_entries_untrusted, encode_add
from ledgerlog.wire.frame import REPLY, Frame, FrameBuffer, Kind, Status, encode_head
from ledgerlog.wire.hello import Hello, encode_hello
from tests.commands import Ran, run_command
from tests.index_kinds import KINDS_HERE
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

KEY = b"k" * 16
L = 7


_BOOKIE = [sys.executable, "-m", "bookie"]


@attrs.define
class Place:
    """Where the processes of a test live."""

    root: Path

    @property
    def metadata(self) -> Path:
        return self.root / "metadata.sqlite"

    @property
    def data(self) -> Path:
        return self.root / "b1"

    def with_cluster(self) -> Self:
        """The place, after its metadata store got a cluster with the ledger that tests write."""
        made = CliRunner().invoke(cli, ["metadata", "init", "--open", "--uri", f"sqlite:{self.metadata}"])
        assert made.exit_code == 0, made.output
        ledger = LedgerMetadata.create(
            ledger_id=L,
            replication=Replication(1, 1, 1),
            ensemble=["b1"],
            key=KEY,
            token=bytes(8),
            created_ms=0,
        )

        async def make() -> None:
            async with open_sqlite_store(self.metadata) as store:
                await store.create(layout.ledger_path(L), ledger.encode())

        trio.run(make)
        return self

    def command(self, *options: str) -> list[str]:
        return [
            *(*_BOOKIE, "run", str(self.data)),
            *("--metadata", f"sqlite:{self.metadata}", *options),
        ]

    @asynccontextmanager
    async def bookie(self, *options: str) -> AsyncIterator[Process]:
        process = await trio.lowlevel.open_process(
            self.command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            yield Process(process)
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                for stream in (process.stdout, process.stderr):
                    assert stream is not None
                    await stream.aclose()

    async def run(self, *options: str) -> tuple[int, str]:
        """Run a bookie that ends by itself. Return its exit code and the last line of its standard error."""
        command = self.command(*options)
        with trio.fail_after(PATIENCE_S):
            if command[:3] == _BOOKIE:
                done = await run_command("bookie", *command[3:])
            else:  # A program that sets its limits, or its signals, starts the bookie.
                started = await trio.run_process(
                    command, capture_stdout=True, capture_stderr=True, check=False
                )
                done = Ran(started.returncode, started.stdout, started.stderr.decode())
        lines = done.stderr.splitlines()
        return done.status, lines[-1] if lines else ""


@attrs.define
class Process:
    process: trio.Process
    log: bytes = b""
    """The lines of its standard error that ``logged`` has read."""

    async def line(self) -> str:
        """The next line of its standard output."""
        assert self.process.stdout is not None
        data = b""
        with trio.fail_after(PATIENCE_S):
            while not data.endswith(b"\n"):
                part = await self.process.stdout.receive_some()
                assert part, f"it ended: {await self.errors()}"
                data += part
        return data.decode().rstrip("\n")

    async def errors(self) -> str:
        assert self.process.stderr is not None
        with trio.fail_after(PATIENCE_S):
            return b"".join([part async for part in self.process.stderr]).decode()

    async def logged(self, text: bytes) -> None:
        """Wait until the log has ``text``."""
        assert self.process.stderr is not None
        with trio.fail_after(PATIENCE_S):
            while text not in self.log:
                part = await self.process.stderr.receive_some()
                assert part, f"it ended: {self.log.decode()}"
                self.log += part

    async def address(self, bookie_id: str = "b1") -> str:
        line = await self.line()
        assert line.startswith(f"bookie {bookie_id} serving on 127.0.0.1:"), line
        return line.rpartition(" ")[2]

    async def wait(self) -> int:
        with trio.fail_after(PATIENCE_S):
            return await self.process.wait()


class Client:
    """Just enough for one segment."""

    @classmethod
    async def connect(cls, address: str, instance: str | None = None) -> Client:
        client = cls()
        client.stream = await TcpNetwork().connect(address)
        client.buffer = FrameBuffer()
        client.frames = []
        await client.stream.send_all([encode_hello(Hello("b1", instance))])
        frame = await client.receive()
        assert frame.header.status == Status.OK
        return client

    async def receive(self) -> Frame:
        with trio.fail_after(PATIENCE_S):
            while not self.frames:
                count = await self.stream.receive_into(self.buffer.writable())
                assert count, "the bookie closed the connection"
                self.buffer.received(count)
                self.frames = [
                    Frame(frame.header, memoryview(bytes(frame.raw))) for frame in self.buffer.take_frames()
                ]
        return self.frames.pop(0)

    async def add(self, first: int, payloads: list[bytes]) -> None:
        entries = Entries.build(L, first, payloads)
        await self.stream.send_all(encode_add(entries, lac=first - 1, lafr=-1, key=KEY, recovery=False))

    async def acknowledged(self) -> int:
        header = (await self.receive()).header
        assert header.kind == Kind.ADD | REPLY, header
        return header.request

    async def read(self, first: int, last: int) -> tuple[int, list[bytes]]:
        await self.stream.send_all(
            [
                encode_head(
                    Kind.READ, count=1, request=1, ledger_id=L, first=first, last=last, argument=1 << 20
                )
            ]
        )
        frame = await self.receive()
        entries = decode_entries_untrusted(frame)
        assert entries.first_damaged() is None
        return frame.header.status, entries.payloads()

    def close(self) -> None:
        self.stream.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).with_cluster()


async def registered(place: Place) -> BookieInfo | None:
    async with open_sqlite_store(place.metadata) as store:
        node = await store.get(layout.writable_path("b1"))
        return None if node is None else BookieInfo.decode_untrusted(node.value, "b1")


async def fill(address: str, count: int = 50) -> None:
    """``count`` acknowledged entries, each in a block of its own."""
    client = await Client.connect(address)
    for entry in range(count):
        await client.add(entry, [b"payload %d" % entry])
        assert await client.acknowledged() == entry + 1
    client.close()


async def check_filled(address: str, count: int = 50) -> None:
    client = await Client.connect(address)
    status, payloads = await client.read(0, count - 1)
    assert status == Status.OK
    assert payloads == [b"payload %d" % entry for entry in range(count)]
    client.close()


async def test_it_serves_and_says_so_and_stops_cleanly_on_a_signal(place: Place) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        async with place.bookie("--id", "b1", "--label", "rack=r1", "--label", "zone=z") as bookie:
            address = await bookie.address()
            info = await registered(place)
            assert info is not None
            assert (info.address, info.labels) == (address, {"rack": "r1", "zone": "z"})
            if number == signal.SIGTERM:
                await fill(address)
                said = await run_command(
                    "ledgerlog", "metadata", "placement", "--uri", f"sqlite:{place.metadata}"
                )
                assert b"rack z/r1: b1\n" in said.stdout
            else:
                await check_filled(address)
            bookie.process.send_signal(number)
            assert await bookie.wait() == 0
            assert "Traceback" not in await bookie.errors()
        assert await registered(place) is None


async def test_it_goes_on_after_signals_that_mean_nothing_to_it(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        address = await bookie.address()
        for number in (signal.SIGUSR1, signal.SIGUSR2):
            bookie.process.send_signal(number)
        await fill(address)
        bookie.process.terminate()
        assert await bookie.wait() == 0


class Nohup(Place):
    def command(self, *options: str) -> list[str]:
        return ["nohup", *super().command(*options)]


@pytest.fixture
def place_under_nohup(tmp_path: Path) -> Nohup:
    return Nohup(tmp_path).with_cluster()


async def test_it_goes_on_after_a_hangup_where_that_is_ignored(place_under_nohup: Nohup) -> None:
    async with place_under_nohup.bookie("--id", "b1") as bookie:
        address = await bookie.address()
        bookie.process.send_signal(signal.SIGHUP)
        await fill(address)
        bookie.process.terminate()
        assert await bookie.wait() == 0


async def test_with_json_it_says_so_in_json(place: Place) -> None:
    async with place.bookie("--id", "b1", "--json") as bookie:
        said = json.loads(await bookie.line())
        assert said["id"] == "b1"
        client = await Client.connect(said["address"], said["instance"])
        client.close()


async def test_no_file_of_a_bookie_whose_standard_streams_were_closed_takes_their_place(place: Place) -> None:
    process = await trio.lowlevel.open_process(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *place.command("--id", "b1")]
    )
    try:
        with trio.fail_after(PATIENCE_S):
            while (info := await registered(place)) is None:  # noqa: ASYNC110 (another process)
                await trio.sleep(0.05)
        await fill(info.address)
        for descriptor in range(3):
            assert os.readlink(f"/proc/{process.pid}/fd/{descriptor}") == os.devnull
        process.terminate()
        with trio.fail_after(PATIENCE_S):
            assert await process.wait() == 0
    finally:
        process.kill()
        await process.wait()


async def test_an_id_is_generated_at_format_time_and_kept(place: Place) -> None:
    async with place.bookie("--json") as bookie:
        first = json.loads(await bookie.line())
    assert re.fullmatch("bookie-[0-9a-f]{8}", first["id"])
    async with place.bookie("--json") as bookie:
        again = json.loads(await bookie.line())
    assert (again["id"], again["instance"]) == (first["id"], first["instance"])


async def test_killed_in_the_midst_of_writing_it_comes_back_at_once_with_all_that_was_acknowledged(
    place: Place,
) -> None:
    acknowledged = 0
    for round_number in range(3):
        async with place.bookie("--id", "b1") as bookie:
            address = await bookie.address()
            info = await registered(place)
            assert info is not None
            # It must be registered at once, and not only when the dead process's session is over.
            assert info.address == address
            client = await Client.connect(address, info.instance)
            status, payloads = await client.read(0, 2**40)
            assert status == (Status.OK if round_number else Status.NO_SUCH_LEDGER)
            assert len(payloads) >= acknowledged
            assert payloads == [b"payload %d" % entry for entry in range(len(payloads))]
            start = len(payloads)
            for entry in range(start, start + 400):
                await client.add(entry, [b"payload %d" % entry])
            while acknowledged < start + 50 + 70 * round_number:
                acknowledged = start + await client.acknowledged()
            bookie.process.send_signal(signal.SIGKILL)
            assert await bookie.wait() == -signal.SIGKILL
            client.close()


async def test_a_second_process_on_the_directory_is_refused_and_told_who_has_it(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        address = await bookie.address()
        code, error = await place.run("--id", "b1")
        assert code == 1
        assert error == f"bookie: StorageLocked: {place.data} is in use by process {bookie.process.pid}"
        await fill(address)


async def test_an_emptied_directory_is_refused(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        await fill(await bookie.address())
    shutil.rmtree(place.data)
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert error.startswith(
        f"bookie: CookieMismatch: {place.data} is empty, but the metadata store knows bookie b1"
    )


async def test_a_directory_of_another_bookie_is_refused(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        await bookie.address()
    code, error = await place.run("--id", "b2")
    assert code == 1
    assert "belongs to bookie b1, not to b2" in error


async def test_a_damaged_journal_is_refused_and_the_place_is_named(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        await fill(await bookie.address())
        bookie.process.kill()
        await bookie.wait()
    segment = next(
        path for path in sorted((place.data / "journal").iterdir()) if b"payload 20" in path.read_bytes()
    )
    offset = segment.read_bytes().index(b"payload 20")
    with segment.open("r+b") as file:
        file.seek(offset)
        file.write(b"Payload 20")
    code, error = await place.run("--id", "b1")
    assert code == 1
    found = re.match(r"bookie: StorageCorrupt: (\S+) at byte (\d+)", error)
    assert found is not None, error
    assert found[1] == str(segment)
    assert offset - 4096 <= int(found[2]) <= offset

    done = await run_command("bookie", "inspect", "journal", str(place.data), "--json")
    assert done.status == 1
    items = [json.loads(line) for line in done.stdout.splitlines()]
    assert str(segment) in next(item["damage"] for item in items if "damage" in item)


async def test_a_damaged_directory_is_refused_and_the_command_that_salvages_it_is_named(place: Place) -> None:
    place.data.mkdir()
    (place.data / "cookie").write_bytes(b"no cookie")
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert f"'bookie repair {place.data}' salvages it" in error
    done = await run_command("bookie", "rebuild-index", str(place.data))
    assert f"'bookie repair {place.data}' salvages it" in done.stderr
    done = await run_command("bookie", "repair", str(place.data), "--metadata", f"sqlite:{place.metadata}")
    assert done.status == 1
    assert "salvages it" not in done.stderr


async def test_a_lost_index_is_refused_and_can_be_made_again_from_the_journal(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        await fill(await bookie.address())
        bookie.process.terminate()
        assert await bookie.wait() == 0
    shutil.rmtree(place.data / "index")
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert error.startswith(f"bookie: StorageCorrupt: {place.data}/index: the index is missing")
    assert f"`bookie rebuild-index {place.data}`" in error
    with trio.fail_after(PATIENCE_S):
        done = await run_command("bookie", "rebuild-index", str(place.data), "--json")
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout)["runs"] == 50
    async with place.bookie("--id", "b1") as bookie:
        await check_filled(await bookie.address())


@pytest.mark.skipif(len(KINDS_HERE) < 2, reason="one of the stores has no wheel for this Python")
async def test_a_bookie_serves_from_rocksdb_and_is_converted_by_the_command_that_a_refusal_names(
    place: Place,
) -> None:
    async with place.bookie("--id", "b1", "--index", "rocksdb") as bookie:
        await fill(await bookie.address())
        bookie.process.kill()
        await bookie.process.wait()
    async with place.bookie("--id", "b1") as bookie:
        await check_filled(await bookie.address())
        bookie.process.terminate()
        assert await bookie.wait() == 0
    code, error = await place.run("--id", "b1", "--index", "leveldb")
    assert code == 1
    assert error.count("\n") <= 1
    assert error.startswith(
        f"bookie: StorageError: {place.data}/index is an index of RocksDB, and LevelDB is"
    )
    named = re.search(r"`bookie (rebuild-index \S+ --index leveldb)`", error)
    assert named is not None, error
    with trio.fail_after(PATIENCE_S):
        done = await run_command("bookie", *named[1].split(), "--json")
        assert done.status == 0, done.stderr
        shown = await run_command("bookie", "inspect", "index", str(place.data), "--json")
    assert json.loads(shown.stdout.splitlines()[0])["kind"] == "leveldb"
    async with place.bookie("--id", "b1", "--index", "leveldb") as bookie:
        await check_filled(await bookie.address())


async def repair(place: Place) -> Ran:
    metadata = f"sqlite:{place.metadata}"
    with trio.fail_after(PATIENCE_S):
        return await run_command("bookie", "repair", str(place.data), "--json", "--metadata", metadata)


async def test_a_directory_in_use_is_not_repaired(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        address = await bookie.address()
        await fill(address)
        done = await repair(place)
        assert done.status == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("bookie: StorageLocked: ")
        await check_filled(address)


async def test_a_directory_of_nobody_is_not_repaired(place: Place) -> None:
    place.data.mkdir()
    done = await repair(place)
    assert done.status == 1
    (line,) = done.stderr.splitlines()
    assert "has no cookie" in line


@pytest.mark.parametrize(("kind", "at_start"), [("MANIFEST-*", True), ("CURRENT", False)])
async def test_a_damaged_file_of_the_index_is_repaired(place: Place, kind: str, at_start: bool) -> None:
    async with place.bookie("--id", "b1") as bookie:
        await fill(await bookie.address())
    for path in (place.data / "index").glob(kind):
        path.write_bytes(b"damage " * 20)
    code, _ = await place.run("--id", "b1")
    assert code == 1
    if at_start:
        async with place.bookie("--id", "b1", "--repair") as bookie:
            await check_filled(await bookie.address())
        return
    done = await repair(place)
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout) == {"repaired": True, "runs": 50, "set_aside": []}
    async with place.bookie("--id", "b1") as bookie:
        await check_filled(await bookie.address())
        bookie.process.terminate()
        assert await bookie.wait() == 0
    done = await repair(place)
    assert json.loads(done.stdout) == {"repaired": False}


async def test_a_lost_cookie_is_restored(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        await fill(await bookie.address())
        bookie.process.terminate()
        assert await bookie.wait() == 0
    (place.data / "cookie").unlink()
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert "'bookie repair' restores the cookie" in error
    done = await repair(place)
    assert done.status == 0, done.stderr
    assert json.loads(done.stdout) == {"repaired": True, "cookie": "restored"}
    async with place.bookie("--id", "b1") as bookie:
        await check_filled(await bookie.address())


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Write into a file that another process has mapped into its memory."""
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.skipif(
    "leveldb" not in KINDS_HERE,
    reason="RocksDB may replace damaged tables before it reads them; test_healed_index has both stores",
)
async def test_a_bookie_finds_damage_in_its_index_and_makes_the_index_again(place: Place) -> None:
    """In the tables that LevelDB has on the disk, while it has them open."""
    for _ in range(2):  # LevelDB writes tables when it opens its log.
        async with place.bookie("--id", "b1") as bookie:
            await fill(await bookie.address())
            bookie.process.terminate()
            assert await bookie.wait() == 0
    config = place.root / "config.toml"
    config.write_text("scrub_interval_s = 0.1\n")
    async with place.bookie("--id", "b1", "--config", str(config)) as bookie:
        address = await bookie.address()
        tables = list((place.data / "index").glob("*.ldb"))
        assert tables
        for table in tables:
            overwrite(table, 20, b"damage")
        await bookie.logged(b"the index was rebuilt; runs=50")
        await bookie.logged(b"it serves again")
        await check_filled(address)
        bookie.process.terminate()
        assert await bookie.wait() == 0


async def test_a_clients_own_fault_is_no_traceback(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        address = await bookie.address()
        stream = await TcpNetwork().connect(address)
        await stream.send_all([b"GET / HTTP/1.1\r\nHost: bookie\r\n\r\n" + b"x" * 100])
        with trio.fail_after(PATIENCE_S):
            try:
                while await stream.receive_into(memoryview(bytearray(100))):
                    pass
            except LedgerLogError:
                pass
        stream.close()
        await fill(address)
        bookie.process.terminate()
        assert await bookie.wait() == 0
        errors = await bookie.errors()
        assert "cut off: a frame of" in errors
        assert "Traceback" not in errors


async def test_a_second_signal_does_not_wait_for_clients(place: Place) -> None:
    async with place.bookie("--id", "b1") as bookie:
        client = await Client.connect(await bookie.address())
        await client.add(0, [b"x" * 1000 for _ in range(4_000)])
        await client.acknowledged()
        for number in range(20):  # Replies that nobody reads keep it from finishing.
            await client.stream.send_all(
                [encode_head(Kind.READ, count=1, request=number, ledger_id=L, last=3_999, argument=1 << 20)]
            )
        assert bookie.process.stderr is not None
        bookie.process.terminate()
        said = b""
        with trio.fail_after(PATIENCE_S):
            while b"stopping" not in said:
                said += await bookie.process.stderr.receive_some()
            bookie.process.terminate()
            assert await bookie.wait() in (0, 1)
        client.close()
    async with place.bookie("--id", "b1") as bookie:
        client = await Client.connect(await bookie.address())
        _, payloads = await client.read(0, 9)
        assert len(payloads) == 10
        client.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--id", "no blanks"], "is not a bookie id"),
        (["--listen", "nowhere"], "is not an address"),
        (["--listen", "0.0.0.0:0"], "give --advertise"),
        (["--label", "rack"], "is not NAME=VALUE"),
        (["--label", "a=1", "--label", "a=2"], "is given twice"),
        (
            ["--config", "CONFIG:segment_byte = 5"],
            "there is no option 'segment_byte'; the options are segment_bytes",
        ),
        (["--config", "/nonexistent.toml"], "No such file"),
        (["--metadata", "zookeeper:x"], "there is no scheme"),
        (["--metadata", "file:x"], "a bookie needs sqlite:PATH"),
    ],
)
def test_wrong_usage_is_exit_2_and_touches_nothing(place: Place, options: list[str], why: str) -> None:
    for index, option in enumerate(options):
        if option.startswith("CONFIG:"):
            options = [*options]
            options[index] = str(place.root / "config.toml")
            (place.root / "config.toml").write_text(option.removeprefix("CONFIG:"))
    # This bookie runs in this process. The next test does the same with a bookie process.
    done = CliRunner().invoke(bookie_command, place.command(*options)[3:])
    assert done.exit_code == 2
    assert why in " ".join(done.output.split())
    assert not place.data.exists()


def test_a_directory_that_cannot_be_made_is_one_line_and_no_traceback(place: Place) -> None:
    (place.root / "file").write_bytes(b"")
    words = ["cookie", "fix", str(place.root / "file" / "data"), "--metadata", f"sqlite:{place.metadata}"]
    done = CliRunner().invoke(bookie_command, words)
    assert done.exit_code == 1
    assert done.output.splitlines() == [
        f"bookie: InvalidArgument: {place.root}/file/data cannot be made: Not a directory"
    ]


async def test_wrong_usage_of_a_process_is_exit_2_as_well(place: Place) -> None:
    code, error = await place.run("--label", "rack")
    assert (code, "is not NAME=VALUE" in error) == (2, True)


async def test_a_configuration_is_used(place: Place) -> None:
    (place.root / "config.toml").write_text("segment_bytes = 8_388_608\ndisk_full_retry_s = 2\n")
    async with place.bookie("--id", "b1", "--config", str(place.root / "config.toml")) as bookie:
        await fill(await bookie.address())
    sizes = {path.stat().st_size for path in (place.data / "journal").iterdir()}
    assert sizes == {8_388_608}


async def test_without_assertions_it_does_not_start(place: Place) -> None:
    command = place.command("--id", "b1")
    with trio.fail_after(PATIENCE_S):
        done = await trio.run_process(
            [command[0], "-O", *command[1:]], capture_stderr=True, check=False, capture_stdout=True
        )
    assert done.returncode == 1
    assert b"start Python without -O" in done.stderr
    assert done.stdout == b""


async def test_a_stopped_directory_can_be_looked_into_and_a_running_one_not(place: Place) -> None:
    async def look(*words: str) -> tuple[int, list[dict[str, object]], str]:
        done = await run_command("bookie", *words, str(place.data), "--json")
        items = [json.loads(line) for line in done.stdout.splitlines()]
        return done.status, items, done.stderr

    async with place.bookie("--id", "b1") as bookie:
        await fill(await bookie.address())
        code, _, error = await look("inspect", "journal")
        assert code == 1
        assert f"in use by process {bookie.process.pid}" in error
        bookie.process.terminate()
        assert await bookie.wait() == 0
    code, (cookie,), _ = await look("cookie", "show")
    assert code == 0
    async with open_sqlite_store(place.metadata) as store:
        node = await store.get(layout.cookie_path("b1"))
        assert node is not None
    there = Cookie.decode_untrusted(node.value, "b1")
    assert (cookie["id"], cookie["instance"], cookie["cluster"]) == ("b1", there.instance, there.cluster)
    code, segments, _ = await look("inspect", "journal")
    assert code == 0
    assert sum(int(str(segment["entries"])) for segment in segments) == 50
    code, logs, _ = await look("inspect", "entries")
    assert (code, logs) == (0, []), "nothing was moved yet"
    code, (head, ledger), _ = await look("inspect", "index")
    assert code == 0
    assert head["instance"] == there.instance
    assert ledger == {
        "ledger": L,
        "is_fenced": False,
        "is_deleted": False,
        "last_add_confirmed": 48,
        "last_add_fully_replicated": -1,
        "last_entry": 49,
    }
    shutil.rmtree(place.data)
    code, _, error = await look("cookie", "show")
    assert code == 1
    assert "is not a directory" in error
    os.mkdir(place.data)
    code, _, error = await look("cookie", "show")
    assert code == 1
    assert "is not a bookie's directory: it has no cookie" in error


async def test_a_bookie_is_not_started_where_there_is_no_cluster(tmp_path: Path) -> None:
    """If a mistyped path made an empty store, its bookies would seem to have forgotten everything."""
    place = Place(tmp_path)
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert f"there is no cluster at sqlite:{place.metadata}" in error
    assert f"'ledgerlog metadata init --uri sqlite:{place.metadata}'" in error
    assert not os.listdir(tmp_path), "nothing was made"
    place.metadata.mkdir()
    code, error = await place.run("--id", "b1")
    assert code == 1
    assert f"{place.metadata} is a directory, and it has no metadata.sqlite" in error
