"""``ledgerlog access grant``, ``revoke`` and ``list``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio
from click.testing import CliRunner

from ledgerlog.cli.main import cli
from ledgerlog.meta.sqlite import open_sqlite_store
from ledgerlog.model.layout import grants_path


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = f"sqlite:{tmp_path / 'metadata.sqlite'}"
    made = CliRunner().invoke(cli, ["metadata", "init", "--uri", uri])
    assert made.exit_code == 0, made.output
    return uri


def run(uri: str, *words: str, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["access", *words, "--uri", uri])
    assert done.exit_code == code, done.output
    return done.output


def listed(uri: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(uri, "list", "--json").splitlines()]


def test_grants_are_given_listed_and_taken_away(uri: str) -> None:
    assert run(uri, "list") == ""
    assert run(uri, "grant", "client/billing", "writer", "billing/") == "client/billing: writer 'billing/'\n"
    run(uri, "grant", "client/billing", "reader")
    run(uri, "revoke", "admin/alice")
    assert listed(uri) == [
        {"principal": "admin/alice", "roles": [], "own_role": "admin", "own_role_revoked": True},
        {
            "principal": "client/billing",
            "roles": [{"role": "reader", "prefix": ""}, {"role": "writer", "prefix": "billing/"}],
            "own_role": None,
            "own_role_revoked": False,
        },
    ]
    assert run(uri, "grant", "admin/alice", "admin") == "admin/alice: admin (by its kind)\n"
    assert run(uri, "revoke", "client/billing", "writer", "billing/") == "client/billing: reader ''\n"
    assert run(uri, "revoke", "client/billing") == "client/billing: no role\n"
    assert run(uri, "list") == "", "a record that says nothing is not listed"


def test_a_revocation_of_a_principal_without_a_role_fails(uri: str) -> None:
    run(uri, "grant", "client/billing", "reader")
    assert "client/biling has no role to take away" in run(uri, "revoke", "client/biling", code=1)
    assert [each["principal"] for each in listed(uri)] == ["client/billing"]
    run(uri, "revoke", "admin/alice")
    assert "admin/alice has no role to take away" in run(uri, "revoke", "admin/alice", code=1)


def test_what_cannot_be_granted_or_revoked_is_refused_with_the_reason(uri: str) -> None:
    assert "not a principal" in run(uri, "grant", "billing", "writer", code=2)
    assert "the role admin has no prefix" in run(uri, "grant", "client/a", "admin", "x", code=2)
    assert "is not granted writer 'x'" in run(uri, "revoke", "client/a", "writer", "x", code=1)
    assert "give no ROLE" in run(uri, "revoke", "client/a", "writer", "--reset", code=2)
    assert listed(uri) == []


def test_a_damaged_record_is_named_and_made_anew(uri: str) -> None:
    async def damage() -> None:
        async with open_sqlite_store(Path(uri.removeprefix("sqlite:"))) as store:
            await store.create(grants_path("client/a"), b"damaged")

    trio.run(damage)
    assert "damaged, so it gives no role: grants of client/a" in run(uri, "list")
    assert "--reset" in run(uri, "grant", "client/a", "writer", code=1)
    assert run(uri, "revoke", "client/a", "--reset") == "client/a: no role\n"
    assert run(uri, "grant", "client/a", "writer") == "client/a: writer ''\n"
