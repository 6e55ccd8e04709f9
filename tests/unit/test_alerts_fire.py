"""Each alert fires once its trouble has lasted long enough, and not before: asked of Prometheus itself.

``promtool`` comes with Prometheus. It computes the rules over series that a test makes up. Where it is not
installed, these tests are skipped; ``test_alerts`` checks the names in the rules everywhere.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

RULES = files("ledgerlog.metrics").joinpath("alerts.yml").read_text(encoding="utf-8")
BY_NAME = {rule["alert"]: rule for rule in yaml.safe_load(RULES)["groups"][0]["rules"]}

pytestmark = pytest.mark.skipif(shutil.which("promtool") is None, reason="Prometheus is not installed")

BEGINS_MIN = 120
"""When the trouble of a case begins, in minutes."""
LASTS_MIN = 400


@attrs.frozen
class Case:
    """Series that make an alert fire."""

    alert: str
    series: Mapping[str, tuple[str, str]]
    """By name and labels: the value before the trouble, and during it. ``+N``: it grows by N a minute."""
    sees_after_min: int = 1
    """After how many minutes of trouble the rule sees it, at the latest."""
    labels: Mapping[str, str] = attrs.field(factory=lambda: {"instance": "b1", "job": "ledgerlog"})
    """The labels of the alert, besides its severity."""


def of_bookie(name: str, **labels: str) -> str:
    """Name a series of the bookie b1."""
    given = {"instance": "b1", "job": "ledgerlog", **labels}
    pairs = ", ".join(f'{key}="{value}"' for key, value in given.items())
    return f"{name}{{{pairs}}}"


def slow(name: str, quick_s: str, slow_s: str, **labels: str) -> dict[str, tuple[str, str]]:
    """A histogram: all goes into the quick bucket before the trouble, and into the slow one during it."""
    return {
        of_bookie(f"{name}_bucket", le=quick_s, **labels): ("+60", "+0"),
        of_bookie(f"{name}_bucket", le=slow_s, **labels): ("+60", "+60"),
        of_bookie(f"{name}_bucket", le="+Inf", **labels): ("+60", "+60"),
    }


def one(alert: str, name: str, before: str, during: str, **labels: str) -> Case:
    """A case of one series of the bookie b1."""
    own = {"instance": "b1", "job": "ledgerlog", **labels}
    return Case(alert, {of_bookie(name, **labels): (before, during)}, labels=own)


GIB = 2**30
CASES = (
    one("LedgerlogProcessGone", "up", "1", "0"),
    one("LedgerlogBookieNotRegistered", "ledgerlog_bookie_registered", "1", "0"),
    one("LedgerlogMetadataCutOff", "ledgerlog_metadata_connected", "1", "0"),
    attrs.evolve(
        one("LedgerlogSessionsLost", "ledgerlog_metadata_sessions_lost_total", "2", "+1"), sees_after_min=4
    ),
    Case(
        "LedgerlogDiskFilling",
        {
            of_bookie("ledgerlog_bookie_disk_free_bytes", path="/d"): (f"{2 * GIB}", f"{GIB}"),
            of_bookie("ledgerlog_bookie_disk_bytes", path="/d"): (f"{10 * GIB}", f"{10 * GIB}"),
        },
        labels={"instance": "b1", "job": "ledgerlog", "path": "/d"},
    ),
    one("LedgerlogDiskFull", "ledgerlog_bookie_disk_full", "0", "1"),
    one("LedgerlogBookieReadOnly", "ledgerlog_bookie_read_only", "0", "1"),
    attrs.evolve(one("LedgerlogLimbo", "ledgerlog_bookie_ledgers_in_limbo", "0", "3"), sees_after_min=31),
    one("LedgerlogRot", "ledgerlog_bookie_rotten_runs", "0", "1"),
    Case("LedgerlogRot", {of_bookie("ledgerlog_bookie_runs_restored_total"): ("4", "5")}),
    one("LedgerlogRotStays", "ledgerlog_bookie_rotten_runs", "0", "1"),
    Case("LedgerlogSlowSync", slow("ledgerlog_bookie_sync_seconds", "0.005", "0.5"), sees_after_min=6),
    one("LedgerlogReadsFail", "ledgerlog_bookie_refused_total", "3", "4", reason="io_error"),
    one("LedgerlogConnectionsRefused", "ledgerlog_bookie_connections_refused_total", "0", "+1"),
    Case("LedgerlogNoAuditor", {of_bookie("ledgerlog_repair_auditor"): ("1", "0")}, labels={}),
    Case("LedgerlogNoAuditor", {of_bookie("ledgerlog_repair_auditor"): ("1", "stale")}, labels={}),
    Case(
        "LedgerlogUnderReplicated",
        {of_bookie("ledgerlog_repair_under_replicated_ledgers"): ("0", "2")},
        labels={},
    ),
    Case("LedgerlogBookieLost", {of_bookie("ledgerlog_repair_absent_bookies"): ("0", "1")}, labels={}),
    Case("LedgerlogRepairPaused", {of_bookie("ledgerlog_repair_paused"): ("0", "1")}, labels={}),
    Case("LedgerlogSlowAppends", slow("ledgerlog_client_append_seconds", "0.01", "5.0"), sees_after_min=6),
    Case(
        "LedgerlogAppendsWait",
        {
            of_bookie("ledgerlog_log_records_outstanding", log="orders"): ("7", "100"),
            of_bookie("ledgerlog_log_window_records", log="orders"): ("100", "100"),
        },
        labels={"instance": "b1", "job": "ledgerlog", "log": "orders"},
    ),
    Case(
        "LedgerlogLag",
        {
            of_bookie("ledgerlog_log_next_offset", log="orders"): ("+1000", "+1000"),
            of_bookie("ledgerlog_client_cursor_offset", log="orders", cursor="bill"): ("+1000", "+0"),
        },
        sees_after_min=101,
        labels={"log": "orders", "cursor": "bill"},
    ),
    one("LedgerlogUnknownOutcomes", "ledgerlog_client_unknown_records_total", "0", "12", log="orders"),
    Case(
        "LedgerlogNoLeader",
        {of_bookie("ledgerlog_log_epoch", log="orders"): ("7", "stale")},
        labels={"log": "orders"},
    ),
    one("LedgerlogLeadershipLost", "ledgerlog_client_leaderships_lost_total", "1", "2"),
    one("LedgerlogTakeoversFail", "ledgerlog_client_takeovers_failed_total", "0", "+1"),
    one("LedgerlogListGrows", "ledgerlog_log_segments", "20", "8001", log="orders"),
)


def minutes(duration: str) -> int:
    """Return the minutes of a ``for``."""
    return int(duration[:-1]) * {"m": 1, "h": 60}[duration[-1]]


def values(before: str, during: str) -> str:
    """Write a series as promtool wants it: its value a minute."""
    grown = 0

    def part(what: str, count: int) -> str:
        nonlocal grown
        if what == "stale":
            return "stale"
        if not what.startswith("+"):
            grown = int(what)
            return f"{grown}x{count - 1}"
        step = int(what)
        first = grown
        grown += step * count
        return f"{first + step}+{step}x{count - 1}"

    return f"{part(before, BEGINS_MIN)} {part(during, LASTS_MIN)}"


def promtool(tmp_path: Path, tests: list[dict[str, Any]]) -> str:
    """Compute the rules over series; return what is not as expected."""
    (tmp_path / "alerts.yml").write_text(RULES)
    cases = tmp_path / "cases.yml"
    cases.write_text(json.dumps({"rule_files": ["alerts.yml"], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        ["promtool", "test", "rules", str(cases)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    path = tmp_path / "alerts.yml"
    path.write_text(RULES)
    subprocess.run(["promtool", "check", "rules", str(path)], check=True, capture_output=True, timeout=60)


def test_every_alert_has_a_case() -> None:
    assert {case.alert for case in CASES} == BY_NAME.keys()


def test_a_log_that_another_process_leads_has_a_leader(tmp_path: Path) -> None:
    """And an hour after its last writer has left, nobody expects one."""
    gone = {"series": of_bookie("ledgerlog_log_epoch", log="orders"), "values": values("7", "stale")}
    other = 'ledgerlog_log_epoch{instance="b2", job="ledgerlog", log="orders"}'
    checks = [
        {"eval_time": f"{at}m", "alertname": "LedgerlogNoLeader", "exp_alerts": []}
        for at in (BEGINS_MIN + 10, BEGINS_MIN + 61)
    ]
    follows = {"series": other, "values": f"_x{BEGINS_MIN} 8+0x{LASTS_MIN}"}
    assert not promtool(
        tmp_path, [{"interval": "1m", "input_series": [gone, follows], "alert_rule_test": checks}]
    )
    assert not promtool(tmp_path, [{"interval": "1m", "input_series": [gone], "alert_rule_test": checks[1:]}])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.alert)
def test_an_alert_fires_when_its_trouble_has_lasted_and_not_before(case: Case, tmp_path: Path) -> None:
    rule = BY_NAME[case.alert]
    lasts_min = minutes(rule.get("for", "0m"))
    labels = {**case.labels, "severity": rule["labels"]["severity"]}
    annotations = {
        key: re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)
        for key, text in rule["annotations"].items()
    }
    quiet = {"alertname": case.alert, "exp_alerts": []}
    checks = [{**quiet, "eval_time": f"{BEGINS_MIN - 1}m"}]
    if lasts_min > 1:
        checks.append({**quiet, "eval_time": f"{BEGINS_MIN + lasts_min - 1}m"})
    checks.append(
        {
            "alertname": case.alert,
            "eval_time": f"{BEGINS_MIN + case.sees_after_min + lasts_min}m",
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}],
        }
    )
    series = [{"series": name, "values": values(*given)} for name, given in case.series.items()]
    failed = promtool(tmp_path, [{"interval": "1m", "input_series": series, "alert_rule_test": checks}])
    assert not failed, failed


def test_a_cluster_without_trouble_fires_nothing(tmp_path: Path) -> None:
    series = {name: given[0] for case in CASES for name, given in case.series.items()}
    checks = [{"eval_time": f"{BEGINS_MIN}m", "alertname": name, "exp_alerts": []} for name in BY_NAME]
    given = [{"series": name, "values": values(before, before)} for name, before in series.items()]
    assert not promtool(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": checks}])
