"""Tokens for the administration port."""

from __future__ import annotations

import pytest

from ledgerlog.errors import WireError
from ledgerlog.model.principal import Principal
from ledgerlog.model.token import TOKEN_CHARS_MAX, Token, TokenScope

WHO = Principal("client", "grafana:1")
TOKEN = Token(WHO, TokenScope.READ, 1_767_225_600)
SECRET = b"s" * 32


def test_a_token_says_what_was_put_into_it_and_is_proven_by_the_secret_alone() -> None:
    text = TOKEN.encode(SECRET)
    assert text.startswith("1/read/1767225600/client/grafana:1/")
    found, proof = Token.decode_untrusted(text)
    assert found == TOKEN
    assert found.is_proven(proof, [SECRET])
    assert found.is_proven(proof, [b"new" * 10, SECRET]), "the secret is being exchanged"
    assert not found.is_proven(proof, [b"t" * 32])
    assert not found.is_proven(proof, [])


def test_every_part_of_a_token_is_covered_by_its_proof() -> None:
    version, scope, expires, kind, name, proof = TOKEN.encode(SECRET).split("/")
    for changed in (
        (version, "change", expires, kind, name, proof),
        (version, scope, "1767225601", kind, name, proof),
        (version, scope, expires, "admin", name, proof),
        (version, scope, expires, kind, "grafana:2", proof),
        (version, scope, expires, kind, name, proof[:-1]),
        (version, scope, expires, kind, name, ""),
    ):
        found, given = Token.decode_untrusted("/".join(changed))
        assert not found.is_proven(given, [SECRET]), changed


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "2/read/1/client/x/00",
        "1/write/1/client/x/00",
        "1/read/-1/client/x/00",
        "1/read/01/client/x/00",
        "1/read/9999999999999/client/x/00",
        "1/read/1/nobody/x/00",
        "1/read/1/client//00",
        "1/read/1/client/x",
        "1/read/1/client/x/00/00",
        "1/read/1/client/x/\xe4",
        "1/read/1/client/x/" + "0" * TOKEN_CHARS_MAX,
    ],
)
def test_text_that_is_no_token_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        Token.decode_untrusted(text)
