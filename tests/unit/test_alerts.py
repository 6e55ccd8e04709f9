"""The alert rules and the dashboard in the package name metrics that there are."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import yaml
from click.testing import CliRunner

from ledgerlog.cli.main import cli
from ledgerlog.metrics.families import FAMILIES, Family, MetricKind

ALERTS = files("ledgerlog.metrics").joinpath("alerts.yml").read_text(encoding="utf-8")
DASHBOARD = files("ledgerlog.metrics").joinpath("dashboard.json").read_text(encoding="utf-8")
BY_NAME = {family.name: family for family in FAMILIES}


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS)["groups"]
    return group["rules"]


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD)["panels"]
    shown = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [*(rule["expr"] for rule in rules()), *shown]


def family_of(name: str) -> Family:
    family = BY_NAME.get(name) or BY_NAME[re.sub(r"_(bucket|count|sum)\Z", "", name)]
    assert (family.kind is MetricKind.HISTOGRAM) == (name != family.name), f"{name} is no series"
    return family


def test_every_metric_that_an_alert_or_a_panel_names_is_one_that_a_process_has() -> None:
    names = {name for expr in expressions() for name in re.findall(r"\bledgerlog_\w+", expr)}
    assert len(names) > 30
    for name in names:
        family_of(name)


def test_a_rate_is_taken_of_what_only_grows_and_of_nothing_else() -> None:
    for expr in expressions():
        rated = {*re.findall(r"\b(?:rate|increase)\((ledgerlog_\w+)", expr)}
        for name in re.findall(r"\bledgerlog_\w+", expr):
            grows = family_of(name).kind is not MetricKind.GAUGE
            assert grows == (name in rated), f"{name} in {expr}"


def test_labels_of_a_metric_are_used_only_where_it_has_them() -> None:
    for rule in rules():
        known = {"instance", "job"}
        for name in re.findall(r"\bledgerlog_\w+", rule["expr"]):
            known |= {*family_of(name).labels}
        text = json.dumps(rule["annotations"])
        assert {*re.findall(r"\$labels\.(\w+)", text)} <= known, rule["alert"]


def test_every_alert_has_a_name_of_its_own_a_severity_and_a_summary() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len({*names}) == len(names)
    for rule in rules():
        assert re.fullmatch(r"Ledgerlog[A-Z]\w+", rule["alert"])
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_each_metric_with_an_alert_of_its_own_on_the_page_has_a_rule() -> None:
    named = {family_of(name).name for rule in rules() for name in re.findall(r"ledgerlog_\w+", rule["expr"])}
    left_to_people = {
        "ledgerlog_bookie_scrub_passes_total",
        "ledgerlog_bookie_segments_unindexed",
        "ledgerlog_bookie_requests_denied_total",
        "ledgerlog_client_ensemble_changes_total",
        "ledgerlog_client_recoveries_failed_total",
        "ledgerlog_repair_tasks",
    }
    assert {family.name for family in FAMILIES if family.alert} - named == left_to_people


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD)["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_a_command_prints_both() -> None:
    for name, text in (("alerts", ALERTS), ("dashboard", DASHBOARD)):
        assert CliRunner().invoke(cli, ["monitoring", name]).output == text
