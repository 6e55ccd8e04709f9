"""An S3 server on this machine: moto's, as a process of its own, behind a gate that tests close.

pyarrow and pyiceberg talk to the gate. While the gate is shut, the server is dead for them: connections end,
and new ones are refused. While it is stuck, the server takes connections and answers nothing. Its objects
outlive both, as those of a real server do.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from pyarrow import fs

KEY_ID = "AKIAOFTESTS"
SECRET = "secret/of+tests"
REGION = "us-east-1"


class Gate:
    """Forwards connections to a port of this machine, until it is shut or stuck.

    Attributes:
        port: Where the gate listens.
        requests: The first lines of the requests that it saw, in the order in which they arrived.
    """

    def __init__(self, behind: int) -> None:
        self._behind = behind
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._goes_on = threading.Event()
        self._listener: socket.socket | None = None
        self.port = 0
        self.requests: list[str] = []
        self.open()

    def open(self) -> None:
        """Listen at the port of the gate. Forward what waits."""
        self._goes_on.set()
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port))
            self.port = self._listener.getsockname()[1]
            self._in_thread(self._accept, self._listener)

    def stick(self) -> None:
        """Take connections and bytes, and forward nothing."""
        self._goes_on.clear()

    def shut(self) -> None:
        """End all connections, and refuse new ones."""
        listener, self._listener = self._listener, None
        for each in [*self._connections, *([listener] if listener else [])]:
            _end(each)
        self._goes_on.set()

    def end(self) -> None:
        """Shut the gate for good, and wait until every connection has ended."""
        self.shut()
        for thread in self._threads:
            thread.join()

    def _in_thread(self, work: Callable[..., None], *args: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self, listener: socket.socket) -> None:
        with listener, suppress(OSError):
            while True:
                self._in_thread(self._serve, listener.accept()[0])

    def _serve(self, near: socket.socket) -> None:
        with near, socket.create_connection(("127.0.0.1", self._behind)) as far:
            self._connections |= {near, far}
            back = self._in_thread(self._forward, far, near)
            self._forward(near, far)
            back.join()
            self._connections -= {near, far}

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                lines = data.split(b"\r\n")
                self.requests += [line.decode("latin-1") for line in lines if line.endswith(b" HTTP/1.1")]
                self._goes_on.wait()
                target.sendall(data)
        _end(source)
        _end(target)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class S3Server:
    """A running server. ``s3_server`` starts one."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self._url = f"http://127.0.0.1:{port}"
        self.gate = Gate(port)
        self._buckets = 0

    @property
    def endpoint(self) -> str:
        """Where clients reach the server, through the gate."""
        return f"http://127.0.0.1:{self.gate.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that uses the server."""
        return {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    def new_bucket(self) -> str:
        """Make a bucket, and return its name."""
        self._buckets += 1
        name = f"bucket-{self._buckets}"
        asked = urllib.request.Request(f"{self._url}/{name}", method="PUT")
        urllib.request.urlopen(asked).close()
        return name

    def files(self) -> fs.S3FileSystem:
        """Return the objects of the server, past the gate."""
        return fs.S3FileSystem(
            access_key=KEY_ID, secret_key=SECRET, region=REGION, endpoint_override=self._url
        )

    def keys(self, where: str) -> list[str]:
        """Return the keys of all objects below a URL, with the names of their buckets."""
        selector = fs.FileSelector(where.removeprefix("s3://"), recursive=True)
        return [info.path for info in self.files().get_file_info(selector) if info.is_file]


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Start a server, for the body of the ``with``."""
    command = [sys.executable, "-u", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            assert process.stdout is not None
            said = next(line for line in process.stdout if "Running on http" in line)
            drained = threading.Thread(target=process.stdout.read, daemon=True)
            drained.start()
            server = S3Server(process, int(said.split()[-1].rpartition(":")[2]))
            yield server
            server.gate.end()
        finally:
            process.kill()
        drained.join()
