"""``ledgerlog console`` and ``ledgerlog top`` as processes: they start, show something, and end on a
signal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

LEDGERLOG = (sys.executable, "-P", "-m", "ledgerlog")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A closed cluster without bookies."""
    found = f"sqlite:{tmp_path / 'm.sqlite'}"
    subprocess.run([*LEDGERLOG, "metadata", "init", "--uri", found], check=True, capture_output=True)
    return found


@contextmanager
def running(*command: str, terminal: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for the body, on a terminal or with pipes. It is killed if the body does not end it."""
    own = (subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE) if terminal is None else (terminal,) * 3
    environment = {**os.environ, "TERM": "xterm-256color"}
    child = subprocess.Popen(
        [*LEDGERLOG, *command], stdin=own[0], stdout=own[1], stderr=own[2], env=environment
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def read_until(file: IO[bytes], wanted: bytes) -> bytes:
    """Read until something is there."""
    found, end_s = b"", time.monotonic() + PATIENCE_S
    while wanted not in found:
        ready, _, _ = select.select([file], [], [], max(0.0, end_s - time.monotonic()))
        more = os.read(file.fileno(), 65536) if ready else b""
        assert more, found[-2000:]
        found += more
    return found


def test_the_console_serves_its_page_and_ends_well_on_a_signal(uri: str) -> None:
    with running("console", "--uri", uri, "--listen", "127.0.0.1:0", "--json") as child:
        assert child.stdout is not None
        assert child.stderr is not None
        url = json.loads(read_until(child.stdout, b"\n"))["console"]
        ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        with ask(f"{url}/", timeout=PATIENCE_S) as page:
            assert b"/static/console.js" in page.read()
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(f"{url}/watch?kind=cluster", timeout=PATIENCE_S)
        with refused.value:
            assert refused.value.code == 401
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 0
        assert all(b" INFO " in line for line in child.stderr.read().splitlines())


def _upgrade(settings: str) -> bytes:
    lines = [
        "GET / HTTP/1.1",
        "Host: 127.0.0.1",
        "Connection: upgrade, http2-settings",
        "Upgrade: h2c",
        f"HTTP2-Settings: {settings}",
    ]
    return "\r\n".join([*lines, "", ""]).encode()


def test_no_request_of_a_stranger_ends_the_console(uri: str) -> None:
    """hypercorn passed these errors on, and the console ended."""
    with running("console", "--uri", uri, "--listen", "127.0.0.1:0", "--json") as child:
        assert child.stdout is not None
        url = json.loads(read_until(child.stdout, b"\n"))["console"]
        address = "127.0.0.1", int(url.rsplit(":", 1)[1])
        for settings in ("A", "AAAA", "AAIAAAAJ"):
            with socket.create_connection(address, timeout=PATIENCE_S) as stranger, suppress(OSError):
                stranger.sendall(_upgrade(settings))
                while stranger.recv(65536):
                    pass
        ask = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
        with ask(f"{url}/", timeout=PATIENCE_S) as page:
            assert b"/static/console.js" in page.read()
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE_S) == 0


def test_top_draws_a_screen_and_leaves_the_terminal_as_it_was_on_a_signal(uri: str) -> None:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    before = termios.tcgetattr(slave)
    with os.fdopen(master, "rb", buffering=0) as screen:
        try:
            with running("top", "--uri", uri, terminal=slave) as child:
                read_until(screen, b"0 of 0 bookies are writable")
                assert termios.tcgetattr(slave) != before
                child.send_signal(signal.SIGTERM)
                drawn = read_until(screen, b"interrupted by SIGTERM")
                assert child.wait(PATIENCE_S) == 128 + signal.SIGTERM
                assert b"\x1b[?1049l" in drawn, "the screen from before is back"
                assert termios.tcgetattr(slave) == before
        finally:
            os.close(slave)
