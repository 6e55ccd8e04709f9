"""Principals: their text, and what a certificate says about them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerlog.errors import InvalidArgument, Unauthenticated
from ledgerlog.model.principal import (
    CERTIFICATE_URIS_MAX,
    Principal,
    PrincipalKind,
    named_in_certificate,
)

BILLING = Principal("client", "billing")
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:\-]{0,127}", fullmatch=True)


@given(kind=st.sampled_from(PrincipalKind), name=names)
def test_the_text_and_the_certificate_of_a_principal_say_who_it_is(kind: PrincipalKind, name: str) -> None:
    principal = Principal(kind, name)
    assert Principal.parse(str(principal)) == principal
    for cluster in ("*", "c1"):
        assert named_in_certificate([principal.certificate_uri(cluster)], "c1") == principal


@pytest.mark.parametrize(
    "text",
    ["", "billing", "client/", "client/a b", "client/a/b", "root/x", "Client/x", "client/" + "x" * 129],
)
def test_what_is_not_a_principal_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        Principal.parse(text)


def test_every_bookie_id_names_a_principal() -> None:
    assert str(Principal("bookie", "host-1.example:3181")) == "bookie/host-1.example:3181"


def test_a_certificate_for_another_cluster_names_nobody_here() -> None:
    with pytest.raises(Unauthenticated, match="for cluster c2, but this is cluster c1"):
        named_in_certificate([BILLING.certificate_uri("c2")], "c1")
    with pytest.raises(Unauthenticated, match="for cluster c1"):
        named_in_certificate([BILLING.certificate_uri("c1")], None)


def test_the_name_for_this_cluster_goes_before_the_name_for_any() -> None:
    other = Principal("admin", "ann")
    uris = [other.certificate_uri(), BILLING.certificate_uri("c1"), BILLING.certificate_uri("c2")]
    assert named_in_certificate(uris, "c1") == BILLING
    assert named_in_certificate(uris, "c3") == other


def test_a_certificate_that_names_two_principals_for_a_cluster_is_refused() -> None:
    uris = [BILLING.certificate_uri("c1"), Principal("bookie", "b1").certificate_uri("c1")]
    with pytest.raises(Unauthenticated, match="names 2 principals"):
        named_in_certificate(uris, "c1")
    assert named_in_certificate([uris[0], uris[0]], "c1") == BILLING


def test_uris_of_others_are_ignored_and_none_of_ours_is_an_error() -> None:
    assert named_in_certificate(["spiffe://x/y", BILLING.certificate_uri()], "c1") == BILLING
    for uris in ([], ["https://example.org"]):
        with pytest.raises(Unauthenticated, match="names no principal"):
            named_in_certificate(uris, "c1")


@pytest.mark.parametrize(
    "uri",
    [
        "ledgerlog://",
        "ledgerlog://c1",
        "ledgerlog://c 1/client/x",
        "LEDGERLOG://c1/client/",
        "ledgerlog:///client/x",
    ],
)
def test_a_malformed_name_of_our_form_is_refused_even_beside_a_good_one(uri: str) -> None:
    with pytest.raises(Unauthenticated, match="malformed"):
        named_in_certificate([BILLING.certificate_uri("c1"), uri], "c1")


def test_the_number_of_names_is_bounded() -> None:
    many = [Principal("client", f"c{n}").certificate_uri(f"c{n}") for n in range(CERTIFICATE_URIS_MAX + 1)]
    with pytest.raises(Unauthenticated, match="more than"):
        named_in_certificate(many, "c1")


def test_only_an_id_can_stand_for_the_cluster_in_a_certificate() -> None:
    for wrong in ("", "a/b", "a b", "x" * 65):
        with pytest.raises(InvalidArgument):
            BILLING.certificate_uri(wrong)
