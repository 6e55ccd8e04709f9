"""Mutants of how processes prove who they are with a shared secret."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_PROOF = "tests/unit/test_proof.py"
_SECRET = "tests/unit/test_secret.py"

MUTANTS = (
    mutant(
        "a_proof_of_the_client_passes_for_one_of_the_bookie",
        "identity",
        "BookieProof.on_proof",
        "_proof(self._secret, _BOOKIE, self._transcript)",
        "_proof(self._secret, _CLIENT, self._transcript)",
        _PROOF,
    ),
    mutant(
        "a_reflected_proof_is_accepted",
        "identity",
        "ClientProof.on_proof",
        "_proof(self._secret, _BOOKIE, self._transcript)",
        "_proof(self._secret, _CLIENT, self._transcript)",
        f"{_PROOF}::test_a_reflected_proof_convinces_nobody",
    ),
    mutant(
        "a_proof_does_not_cover_what_the_client_said",
        "identity",
        "proof._transcript",
        "_LABEL + _LENGTHS.pack(len(hello), len(reply)) + hello + reply",
        "_LABEL + _LENGTHS.pack(0, len(reply)) + reply",
        f"{_PROOF}::test_a_downgraded_hello_is_noticed",
        f"{_PROOF}::test_a_replayed_answer_of_the_bookie_convinces_nobody",
    ),
    mutant(
        "a_proof_does_not_cover_what_the_bookie_said",
        "identity",
        "proof._transcript",
        "_LABEL + _LENGTHS.pack(len(hello), len(reply)) + hello + reply",
        "_LABEL + _LENGTHS.pack(len(hello), 0) + hello",
        f"{_PROOF}::test_a_replayed_proof_of_the_client_is_refused",
        f"{_PROOF}::test_a_downgraded_answer_is_noticed",
    ),
    mutant(
        "a_wrong_proof_of_the_client_is_accepted",
        "identity",
        "BookieProof.on_proof",
        "not hmac.compare_digest(proof, _proof(self._secret, _CLIENT, self._transcript))",
        "False",
        f"{_PROOF}::test_a_guess_behind_a_fingerprint_that_was_heard_is_refused",
    ),
    mutant(
        "a_wrong_proof_may_be_followed_by_another",
        "identity",
        "BookieProof.on_proof",
        "self._step = _Step.FAILED",
        "",
        f"{_PROOF}::test_a_connection_has_one_attempt",
    ),
    mutant(
        "a_claim_counts_before_its_proof",
        "identity",
        "BookieProof.principal",
        "self._principal if self._step is _Step.PROVEN else None",
        "self._principal",
        _PROOF,
    ),
    mutant(
        "a_principal_is_verified_with_the_clusters_own_secret",
        "identity",
        "Secrets.of",
        "tuple(_hmac(value, f'principal {principal}') for value in self.values)",
        "self.values",
        f"{_SECRET}::test_the_secret_of_a_principal_is_an_hmac_of_its_text",
    ),
    mutant(
        "the_secret_of_one_principal_proves_every_other",
        "identity",
        "Secrets.of",
        "self.values if principal == self.holder else ()",
        "self.values",
        f"{_SECRET}::test_who_holds_the_secret_of_one_principal_is_that_one_and_knows_no_other",
    ),
    mutant(
        "a_secret_is_shown",
        "identity",
        "Secrets.__repr__",
        "fingerprint_of(value).hex()",
        "value.hex()",
        f"{_SECRET}::test_no_text_of_secrets_shows_one",
    ),
)
