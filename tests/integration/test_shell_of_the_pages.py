"""The lines of a shell on README.md and the pages of docs/ run as they stand there, each page in one bash.

A block of the language ``sh`` must end with status 0. In a block of the language ``console`` a line that
begins with ``$`` is a command, and the lines up to the next one are all that it prints. The pages of the
tutorial run in ``test_tutorial.py``. ``text`` is what no shell takes, such as the usage of a command.

Directories of a whole machine, such as /var/lib, are directories of the test; ports are free ones. What
serves goes on beside what follows, as in a second terminal, and so does ``--follow`` after its first line.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ledgerlog.cli.zookeeper import free_ports
from tests.commands import forking_process
from tests.integration.pages import ROOT, Block, all_pages, blocks, without_blocks
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.processes

PAGES = [page for page in all_pages() if not page.startswith("docs/tutorial/")]

NOT_RUN = {
    "README.md": {"runs the whole test suite": 1, "installs from a package index": 1},
    "CONTRIBUTING.md": {"runs the whole test suite": 1},
    "docs/ARCHIVE.md": {"installs from a package index": 1, "a store of objects": 2, "a second disk": 1},
    "docs/ASYNCIO.md": {"tests/integration/test_service_examples.py runs the two services": 1},
    "docs/CONSOLE.md": {"ZooKeeper servers": 2},
    "docs/METADATA.md": {"ZooKeeper servers": 1},
    "docs/OPERATIONS.md": {
        "ZooKeeper servers": 2,
        "waits until repair has copied what the bookie holds": 1,
        "it does not end": 1,
    },
    "docs/SECURITY.md": {"installs from a package index": 1},
    "docs/SPARK.md": {
        "installs from a package index": 1,
        "tests/spark/test_spark_standalone.py runs it on a cluster": 1,
    },
    "docs/deploy/README.md": {"systemd": 2, "docker": 1, "Kubernetes": 1},
    "docs/tutorial/1-first-log.md": {"installs from a package index": 1},
}
"""How many blocks of each page do not run, by the reason that the page gives."""

TERMINAL = """
set -eu -o pipefail
serve() {  # Go on when it says that it serves.
    local said line
    exec {said}< <(exec "$PYTHON" -m "$@" 2>>serving.txt)
    serving+=($! "$1")
    read -r line <&$said || { cat serving.txt >&2; return 1; }
    echo "$line"
}
stop() {  # All that serve and have this name.
    local index
    for ((index = 0; index < ${#serving[@]}; index += 2)); do
        [ "${serving[index + 1]}" = "$1" ] || continue
        kill "${serving[index]}" && wait "${serving[index]}" || true
        serving[index + 1]=stopped
    done
}
ledgerlog() {
    local said line
    case " $* " in
    *" cluster run "* | *" repair run "*) serve ledgerlog "$@" ;;
    *" --follow "*)
        exec {said}< <(exec "$PYTHON" -m ledgerlog "$@")
        read -r line <&$said
        echo "$line"
        kill $!
        ;;
    *) command ledgerlog "$@" ;;
    esac
}
bookie() {
    case " $* " in
    " run "*) serve bookie "$@" ;;
    *) command bookie "$@" ;;
    esac
}
serving=()
trap 'stop bookie; stop ledgerlog' EXIT
"""
COMMAND = """#!{python} -IS
import json, os, socket, sys
told, status = os.pipe()
order = [{module!r}, sys.argv[1:], os.getcwd(), dict(os.environ)]
socket.send_fds(socket.socket(fileno={orders}), [json.dumps(order).encode()], [0, 1, 2, status])
os.close(status)
ended = int(os.read(told, 16))
sys.exit(ended if ended >= 0 else 128 - ended)
"""
"""A command that ends. The process of ``tests.commands`` forks it, which costs a seventh of a start."""

_DONE = "\x1d"
_SYSTEM = re.compile(r"(?<![\w.$}])/(?=(?:archive|backup|etc|var)\b)")


def commands(block: Block) -> list[tuple[str, str | None]]:
    """Each with what it prints; None if the page does not say."""
    if block.language == "sh":
        return [(block.code, None)]
    return [
        (command, said) for command, said in re.findall(r"^\$ (.*\n)((?:(?!\$ ).*\n)*)", block.code, re.M)
    ]


def staged(code: str, stage: Path, ports: dict[str, int]) -> str:
    """The same code for a stage instead of a machine."""
    for named, free in ports.items():
        code = code.replace(f"127.0.0.1:{named}", f"127.0.0.1:{free}")
    return _SYSTEM.sub(f"{stage}/", code)


def run_in_order(shown: list[Block], stage: Path) -> None:
    """Run these blocks of a page in one shell, and compare what they print."""
    ports = dict(zip(("3181", "8080", "8081"), free_ports(3), strict=True))
    script, expected = [TERMINAL], []
    for block in shown:
        script.append(f"{staged(block.before, stage, ports)}\nprintf '{_DONE}'\n")
        expected.append(("", None, block))
        for command, said in commands(block):
            script.append(f"{staged(command, stage, ports)}\nprintf '{_DONE}'\n")
            expected.append((command, said, block))
    for folder in ("etc/ledgerlog", "var/lib/ledgerlog", "bin"):
        (stage / folder).mkdir(parents=True)
    orders = forking_process().fileno()
    for name in ("ledgerlog", "bookie"):
        command = stage / "bin" / name
        command.write_text(COMMAND.format(python=sys.executable, module=name, orders=orders))
        command.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEDGERLOG_")}
    environment |= {
        "PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{stage / 'bin'}:{os.environ['PATH']}",
    }
    shell = subprocess.Popen(
        ["bash", "-c", "".join(script)],
        cwd=stage,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=[orders],
    )
    try:
        out, err = shell.communicate(timeout=4 * PATIENCE_S)
    finally:
        if shell.poll() is None:
            os.killpg(shell.pid, signal.SIGKILL)
            shell.communicate()
    printed = out.split(_DONE)
    for (command, said, block), got in zip(expected, printed, strict=False):
        assert said is None or got == said, f"{block.page}:{block.line}: {command}"
    if shell.returncode != 0:
        command, _, block = expected[min(len(printed), len(expected)) - 1]
        pytest.fail(f"{block.page}:{block.line}: status {shell.returncode}\n{command}\n{printed[-1]}\n{err}")
    assert len(printed) == len(expected) + 1


@pytest.mark.limit_s(6 * PATIENCE_S)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.not_run is None for b in blocks(page, "sh", "console"))]
)
def test_the_shell_of_the_page_runs_in_order(page: str, tmp_path: Path) -> None:
    shown = [block for block in blocks(page, "sh", "console") if block.not_run is None]
    wanted = {name for name in ("curl", "openssl") if any(name in block.code for block in shown)}
    if absent := {name for name in wanted if shutil.which(name) is None}:
        pytest.skip(f"the page uses {', '.join(sorted(absent))}")
    run_in_order(shown, tmp_path)


def test_each_block_that_does_not_run_says_why() -> None:
    reasons = {
        page: dict(Counter(block.not_run for block in blocks(page) if block.not_run is not None))
        for page in all_pages()
    }
    assert {page: counts for page, counts in reasons.items() if counts} == NOT_RUN


@pytest.mark.parametrize("page", all_pages())
def test_each_block_of_code_says_its_language(page: str) -> None:
    languages = {"console", "json", "python", "sh", "sql", "text", "toml", "yaml"}
    assert [(b.line, b.language) for b in blocks(page) if b.language not in languages] == []
    indented = re.findall(r"^\n    (?! )\S.*", without_blocks(page), re.MULTILINE)
    assert indented == [], "fence it, and name its language"
