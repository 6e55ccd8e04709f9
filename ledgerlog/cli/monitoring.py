"""``ledgerlog monitoring``: alert rules for Prometheus, and a dashboard for Grafana."""

from __future__ import annotations

from importlib.resources import files

import click

__all__ = ["monitoring"]


@click.group()
def monitoring() -> None:
    """Print alert rules for Prometheus, and a dashboard for Grafana."""


@monitoring.command("alerts")
def monitoring_alerts() -> None:
    """Print the alert rules, for the rule_files of a Prometheus server."""
    _print("alerts.yml")


@monitoring.command("dashboard")
def monitoring_dashboard() -> None:
    """Print the dashboard, for Grafana's import."""
    _print("dashboard.json")


def _print(name: str) -> None:
    click.echo(files("ledgerlog.metrics").joinpath(name).read_text(encoding="utf-8"), nl=False)
