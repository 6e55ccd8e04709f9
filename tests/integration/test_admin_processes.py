"""The administration port of real processes, over real sockets."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio
from prometheus_client.parser import text_string_to_metric_families
from running_cluster import ledgerlog_ok

from ledgerlog.cli.processes import Child, ChildProcesses, open_children
from tests.waiting import PATIENCE_S, until

LONE = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
Ask = Callable[..., Awaitable[tuple[int, str]]]


async def first_line(child: Child) -> dict[str, str]:
    assert child.stdout is not None
    line = b""
    with trio.fail_after(PATIENCE_S):
        while not line.endswith(b"\n"):
            more = await child.stdout.receive_some()
            assert more, child.how_it_ended()
            line += more
    return json.loads(line)


async def start(children: ChildProcesses, name: str, root: Path, *command: str) -> Ask:
    """Start a process with an administration port; return the function that asks it."""
    child = await children.start(
        name, [sys.executable, "-m", *command], pipe_out=True, log_path=root / f"{name}.log"
    )
    address = (await first_line(child))["admin"]

    def fetch(method: str, target: str, token: str | None) -> tuple[int, str]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://{address}{target}", method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    async def ask(method: str, target: str, token: str | None = None) -> tuple[int, str]:
        return await trio.to_thread.run_sync(fetch, method, target, token)

    return ask


async def test_processes_of_a_closed_cluster_are_watched_and_changed_with_tokens(tmp_path: Path) -> None:
    uri, secret = f"sqlite:{tmp_path / 'm.sqlite'}", tmp_path / "m.sqlite.secret"
    await ledgerlog_ok("metadata", "init", uri=uri)
    making = [sys.executable, "-m", "ledgerlog", "access", "token", "--secret-file", str(secret)]
    made = [
        (await trio.run_process([*making, *more], capture_stdout=True)).stdout.decode().strip()
        for more in ((), ("--change",))
    ]
    reading, changing = made
    async with open_children() as children:
        bookie = await start(
            children,
            "b1",
            tmp_path,
            *("bookie", "run", str(tmp_path / "b1"), "--metadata", uri, "--id", "b1", "--json"),
            *("--admin", "127.0.0.1:0", "--auto-recovery"),
        )
        assert (await bookie("GET", "/readyz")) == (200, "ready\n")
        assert (await bookie("GET", "/metrics"))[0] == 401
        await ledgerlog_ok("log", "create", "orders", *LONE, uri=uri)
        await ledgerlog_ok("log", "append", "orders", uri=uri, stdin=b"one\ntwo\n")
        status, text = await bookie("GET", "/metrics", reading)
        assert status == 200
        found = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
        assert found["ledgerlog_bookie_entries_added_total"] >= 1
        assert found["ledgerlog_metadata_connected"] == 1
        assert "ledgerlog_repair_tasks" in found
        told = json.loads(await ledgerlog_ok("bookie", "status", "b1", "--json", uri=uri))
        assert told["figures"]["entries"] == found["ledgerlog_bookie_entries_added_total"]
        people = await ledgerlog_ok("bookie", "status", "b1", uri=uri)
        assert b"entries that were added" in people

        configuration = (await bookie("GET", "/config", reading))[1]
        assert json.loads(configuration)["storage"]["scrub"] is True
        assert secret.read_text().split(":")[1].strip() not in configuration

        assert (await bookie("POST", "/read-only?on=true", reading))[0] == 403
        assert (await bookie("POST", "/read-only?on=true", changing)) == (200, "read-only\n")
        assert (await bookie("GET", "/readyz")) == (503, "read-only: an operator wants it\n")

        async def is_read_only() -> bool:
            return b"read-only" in await ledgerlog_ok("bookie", "list", uri=uri)

        await until(is_read_only)

        worker = await start(
            children,
            "worker",
            tmp_path,
            *("ledgerlog", "repair", "run", "--uri", uri, "--json", "--admin", "127.0.0.1:0"),
        )
        assert (await worker("GET", "/readyz")) == (200, "ready\n")
        assert "ledgerlog_repair_copied_bytes_total" in (await worker("GET", "/metrics", reading))[1]
        assert (await worker("POST", "/audit", reading))[0] == 403
        assert (await worker("POST", "/audit", changing))[0] in (202, 409)
    assert "by admin/cluster at client=127.0.0.1" in (tmp_path / "b1.log").read_text()
