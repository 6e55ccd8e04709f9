"""docs/METRICS.md is the table of metrics, and their names keep to Prometheus' rules."""

from __future__ import annotations

import re
from pathlib import Path

from ledgerlog.metrics.families import FAMILIES, Family, MetricKind

PAGE = Path(__file__).resolve().parents[2] / "docs" / "METRICS.md"
SECTIONS = (
    ("A bookie", "ledgerlog_bookie_"),
    ("A client", "ledgerlog_client_"),
    ("The logs that a process leads", "ledgerlog_log_"),
    ("Repair", "ledgerlog_repair_"),
    ("The metadata store", "ledgerlog_metadata_"),
)


def row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    cells = (f"`{family.name}`", family.kind.value, labels, family.meaning, family.alert)
    return f"| {' | '.join(cells)} |"


def test_the_page_has_each_metric_with_its_meaning_in_the_section_of_its_part_and_no_other() -> None:
    text = PAGE.read_text(encoding="utf-8")
    found = {
        title: [line for line in section.splitlines() if line.startswith("| `ledgerlog_")]
        for title, section in re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    }
    wanted = {
        title: [row(family) for family in FAMILIES if family.name.startswith(prefix)]
        for title, prefix in SECTIONS
    }
    assert {title: rows for title, rows in found.items() if rows} == wanted
    assert sum(map(len, wanted.values())) == len(FAMILIES)


def test_names_are_unique_and_keep_to_the_rules_of_prometheus() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert re.fullmatch(r"ledgerlog_[a-z]+(_[a-z0-9]+)+", family.name), family
        assert family.name.endswith("_total") == (family.kind is MetricKind.COUNTER), family
        assert family.name.endswith("_seconds") == (family.kind is MetricKind.HISTOGRAM), family
        assert family.meaning, family
        assert "|" not in family.meaning + family.alert, "it stands in a table"
