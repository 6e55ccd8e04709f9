"""Roles, grants, and what they allow, without any waiting."""

from __future__ import annotations

import pytest

from bookie.core.access import LedgerFacts, judge, must_exist, needs_facts, right_for
from ledgerlog.errors import InvalidArgument, MetadataCorrupt
from ledgerlog.log.registry import ledger_labels
from ledgerlog.model.access import (
    ALL_RIGHTS,
    GRANTS_MAX,
    NO_RIGHTS,
    Grant,
    Grants,
    Right,
    Rights,
    Role,
    log_of_labels,
    rights_of,
)
from ledgerlog.model.codec import encode_record
from ledgerlog.model.layout import grants_path, principal_of
from ledgerlog.model.log import LogMetadata
from ledgerlog.model.principal import Principal
from ledgerlog.model.quorum import Replication
from ledgerlog.model.snapshots import snapshot_labels
from ledgerlog.wire.frame import RECOVERY, Header, Kind, Status

CLIENT = Principal("client", "billing")
KEY = b"k" * 16


def rights(*grants: Grant, principal: Principal = CLIENT, is_revoked: bool = False) -> Rights:
    record = Grants(str(principal), is_revoked=is_revoked)
    for grant in grants:
        record = record.granted(grant)
    return rights_of(principal, record)


def header(kind: Kind, *, flags: int = 0, key: bytes = KEY) -> Header:
    return Header(0, 0, kind, flags, 0, 0, 0, 7, 0, 0, -1, -1, 0, 0, key)


# --- rights -----------------------------------------------------------------------------------------


def test_a_client_without_a_record_may_do_nothing() -> None:
    assert rights_of(CLIENT, None) == NO_RIGHTS
    assert not any(NO_RIGHTS.allows_some(right) for right in Right)


def test_a_grant_holds_for_the_logs_whose_names_begin_with_its_prefix() -> None:
    writer = rights(Grant(Role.WRITER, "billing/"))
    assert writer.allows(Right.WRITE, "billing/invoices")
    assert writer.allows(Right.READ, "billing/invoices"), "a takeover reads"
    assert writer.allows(Right.RECOVER, "billing/invoices"), "a takeover fences"
    for other in ("billing", "billings/x", "shop/billing/", ""):
        assert not any(writer.allows(right, other) for right in Right), other
    reader = rights(Grant(Role.READER, "bill"))
    assert reader.allows(Right.READ, "billing/invoices")
    assert not reader.allows(Right.WRITE, "billing/invoices")
    assert not reader.allows(Right.RECOVER, "billing/invoices"), "a fence deposes a writer"


def test_the_empty_prefix_is_all_logs_and_the_ledgers_of_no_log() -> None:
    writer = rights(Grant(Role.WRITER))
    assert writer.allows(Right.WRITE, "")
    assert writer.everywhere == {Right.READ, Right.RECOVER, Right.WRITE}
    assert not writer.allows(Right.OPERATE, "")


def test_several_grants_add_up() -> None:
    both = rights(Grant(Role.READER, "a"), Grant(Role.WRITER, "a"), Grant(Role.READER, "b"))
    assert both.allows(Right.WRITE, "a1")
    assert both.allows(Right.READ, "b1")
    assert not both.allows(Right.WRITE, "b1")


def test_a_bookie_and_an_admin_have_their_role_by_themselves_unless_it_is_revoked() -> None:
    bookie, admin = Principal("bookie", "b1"), Principal("admin", "alice")
    assert rights_of(admin, None) == ALL_RIGHTS
    own = rights_of(bookie, None)
    assert own.everywhere == {Right.READ, Right.RECOVER, Right.OPERATE}
    assert not own.allows(Right.WRITE, "a"), "a bookie copies entries that exist"
    assert rights(principal=admin, is_revoked=True) == NO_RIGHTS
    assert rights(Grant(Role.READER, "a"), principal=bookie, is_revoked=True).allows(Right.READ, "a1")
    assert rights(Grant(Role.WRITER), principal=bookie).allows(Right.WRITE, "a")


def test_a_revoked_role_comes_back_by_a_grant_of_it() -> None:
    record = Grants("admin/alice").revoked(None)
    assert record.is_revoked
    assert record.granted(Grant(Role.ADMIN)) == Grants("admin/alice")
    assert Grants("admin/alice").revoked(Grant(Role.ADMIN)) == record
    assert record.granted(Grant(Role.READER)).is_revoked, "a smaller role leaves the larger one revoked"


def test_what_is_not_granted_cannot_be_revoked_and_the_error_says_what_is_granted() -> None:
    record = Grants("client/billing").granted(Grant(Role.WRITER, "billing/"))
    with pytest.raises(InvalidArgument, match=r"not granted reader 'a'; it is granted writer 'billing/'"):
        record.revoked(Grant(Role.READER, "a"))
    assert record.revoked(Grant(Role.WRITER, "billing/")).is_empty
    assert record.revoked(None).is_empty


def test_grants_are_bounded() -> None:
    record = Grants("client/billing")
    for number in range(GRANTS_MAX):
        record = record.granted(Grant(Role.READER, f"a{number}"))
    assert Grants.decode_untrusted(record.encode(), "client/billing") == record
    assert record.granted(Grant(Role.READER, "a7")) == record
    with pytest.raises(InvalidArgument, match="257 grants"):
        record.granted(Grant(Role.READER, "b"))


@pytest.mark.parametrize("prefix", ["a b", "a" * 256, "a\n", "é"])
def test_a_prefix_is_the_beginning_of_a_log_name(prefix: str) -> None:
    with pytest.raises(InvalidArgument, match="not the beginning of a log's name"):
        Grant(Role.READER, prefix)


def test_a_bookie_and_an_admin_have_no_prefix() -> None:
    with pytest.raises(InvalidArgument, match="the role admin has no prefix"):
        Grant(Role.ADMIN, "a")


# --- records ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"principal": "client/other"}, "another principal"),
        ({"grants": [["writer"]]}, "'grants'"),
        ({"grants": [["writer", 7]]}, "two texts"),
        ({"grants": [["owner", "a"]]}, "'owner'"),
        ({"grants": [["admin", "a"]]}, "no prefix"),
        ({"grants": [["writer", "b"], ["writer", "a"]]}, "not sorted"),
        ({"grants": [["writer", "a"], ["writer", "a"]]}, "not unique"),
        ({"revoked": 1}, "'revoked'"),
    ],
)
def test_a_damaged_record_is_refused_and_named(change: dict[str, object], says: str) -> None:
    fields = {"v": 1, "principal": "client/billing", "grants": [], "revoked": False, **change}
    with pytest.raises(MetadataCorrupt, match=f"grants of client/billing.*{says}"):
        Grants.decode_untrusted(encode_record(fields), "client/billing")


def test_the_path_of_a_record_spells_its_principal() -> None:
    assert grants_path("client/billing") == "access/grants/client%2Fbilling"
    assert principal_of("client%2Fbilling") == "client/billing"


def test_the_labels_of_a_ledger_name_its_log() -> None:
    log = LogMetadata.create(
        name="a/b", incarnation=3, created_ms=0, token=bytes(8), replication=Replication(1, 1, 1)
    )
    assert log_of_labels(ledger_labels(log, 1)) == "a/b"
    assert log_of_labels(snapshot_labels("a/b", 3)) == "a/b"
    assert log_of_labels({"purpose": b"a/b"}) == ""
    assert log_of_labels({"log-name": b"\xff"}) == "", "nobody's prefix but the empty one"


# --- decisions --------------------------------------------------------------------------------------


def test_a_recovery_flag_asks_for_another_right() -> None:
    assert right_for(Kind.ADD, 0) is Right.WRITE
    assert right_for(Kind.ADD, RECOVERY) is right_for(Kind.READ, RECOVERY) is Right.RECOVER
    assert right_for(Kind.FENCE, 0) is Right.RECOVER


def test_a_recovery_flag_means_nothing_on_a_request_that_has_none() -> None:
    for kind in {*Kind} - {Kind.HELLO, Kind.PROOF, Kind.REFUSED, Kind.ADD, Kind.READ}:
        assert right_for(kind, RECOVERY) is right_for(kind, 0)


def test_every_kind_of_request_needs_a_right() -> None:
    requests = {*Kind} - {Kind.HELLO, Kind.PROOF, Kind.REFUSED}
    assert {kind for kind in requests if right_for(kind, 0)} == requests


def test_who_may_do_everything_needs_the_store_only_for_what_is_remembered_anew() -> None:
    assert not needs_facts(ALL_RIGHTS, Right.WRITE, is_known=True)
    assert not needs_facts(ALL_RIGHTS, Right.READ, is_known=False)
    assert needs_facts(ALL_RIGHTS, Right.WRITE, is_known=False)
    assert needs_facts(ALL_RIGHTS, Right.RECOVER, is_known=False)
    assert must_exist(Right.RECOVER)


def test_who_may_do_something_on_some_logs_always_needs_the_ledgers_log() -> None:
    reader = rights(Grant(Role.READER, "a"))
    assert needs_facts(reader, Right.READ, is_known=True)
    assert not needs_facts(reader, Right.WRITE, is_known=False), "no ledger could allow it"


def test_a_ledger_that_does_not_exist_is_denied_only_to_adds_and_fences() -> None:
    """A reply that denies a ledger denies its entries, and only a bookie that looked may do that."""
    assert judge(ALL_RIGHTS, header(Kind.ADD), None) is Status.NO_SUCH_LEDGER
    assert judge(ALL_RIGHTS, header(Kind.FENCE), None) is Status.NO_SUCH_LEDGER
    assert judge(ALL_RIGHTS, header(Kind.READ, flags=RECOVERY), None) is Status.NOT_READY
    assert judge(ALL_RIGHTS, header(Kind.READ_LAC), None) is Status.NOT_READY


def test_the_first_touch_compares_the_key_with_the_metadata() -> None:
    facts = LedgerFacts(KEY, "a1")
    assert judge(ALL_RIGHTS, header(Kind.FENCE), facts) is None
    assert judge(ALL_RIGHTS, header(Kind.FENCE, key=b"x" * 16), facts) is Status.UNAUTHORIZED
    assert judge(ALL_RIGHTS, header(Kind.ADD, key=b"x" * 16), facts) is Status.UNAUTHORIZED
    assert judge(ALL_RIGHTS, header(Kind.READ, key=bytes(16)), facts) is None, "reads carry no key"


def test_a_right_on_another_log_is_none() -> None:
    reader = rights(Grant(Role.READER, "a"))
    assert judge(reader, header(Kind.READ), LedgerFacts(KEY, "a1")) is None
    assert judge(reader, header(Kind.READ), LedgerFacts(KEY, "b1")) is Status.PERMISSION_DENIED
    assert judge(reader, header(Kind.READ), LedgerFacts(KEY, "")) is Status.PERMISSION_DENIED
