"""``python -m bookie`` is the ``bookie`` command."""

from __future__ import annotations

from bookie.server.main import main

main(prog_name="bookie")
