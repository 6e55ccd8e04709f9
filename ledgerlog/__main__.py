"""``python -m ledgerlog`` is the ``ledgerlog`` command."""

from __future__ import annotations

from ledgerlog.cli.main import main

main()
