"""Run the ``ledgerlog`` command with ``python -m ledgerlog``."""

from __future__ import annotations

from ledgerlog.cli.main import main

main()
