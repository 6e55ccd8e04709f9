"""Mutants of the identity by certificates, and of streams over TLS."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_STREAM = "tests/shells/test_tls_network.py"
_BOOKIE = "tests/shells/test_tls_bookies.py"
_CONTRACT = "tests/contract/test_network_contract.py"
_PROCESSES = "tests/integration/test_tls_processes.py"
_ELECTION = "tests/election/test_election.py"

MUTANTS = (
    mutant(
        "a_client_believes_any_certificate_at_a_bookies_address",
        "SECURITY",
        "handshake",
        "_check_principal(stream, wanted.bookie_id)",
        "",
        _BOOKIE,
    ),
    mutant(
        "a_client_certificate_may_play_a_bookie",
        "SECURITY",
        "_check_principal",
        "principal not in (None, Principal(PrincipalKind.BOOKIE, bookie_id))",
        "principal is not None and principal.name != bookie_id",
        _BOOKIE,
    ),
    mutant(
        "a_bookie_asks_for_no_certificate",
        "SECURITY",
        "certificates._load_files",
        "context.verify_mode = ssl.CERT_REQUIRED",
        "context.verify_mode = ssl.CERT_OPTIONAL",
        f"{_STREAM}::test_a_client_without_a_certificate_is_refused",
    ),
    mutant(
        "older_versions_of_tls_are_spoken",
        "SECURITY",
        "certificates._context",
        "context.minimum_version = ssl.TLSVersion.TLSv1_3",
        "",
        f"{_STREAM}::test_older_versions_of_tls_are_refused",
    ),
    mutant(
        "a_certificate_of_another_cluster_is_believed",
        "SECURITY",
        "TlsStream._shake_to_the_end",
        "self._network.certificates.cluster",
        "None",
        _STREAM,
    ),
    mutant(
        "a_process_with_a_certificate_speaks_plainly",
        "SECURITY",
        "tls.network_of",
        "credentials.tls is None",
        "True",
        f"{_STREAM}::test_a_process_with_a_certificate_never_speaks_plainly",
    ),
    mutant(
        "a_bookie_serves_with_the_certificate_of_another",
        "SECURITY",
        "tls.bookie_of",
        "principal.kind is not PrincipalKind.BOOKIE or expected not in (None, principal.name)",
        "False",
        f"{_STREAM}::test_a_bookie_has_the_id_of_its_certificate",
    ),
    mutant(
        "a_renewed_certificate_of_somebody_else_is_taken",
        "SECURITY",
        "Certificates.reload",
        "loaded.principal != self._loaded.principal",
        "False",
        _STREAM,
    ),
    mutant(
        "changed_files_are_not_noticed",
        "SECURITY",
        "Certificates._look",
        "_stamp_of(self.tls) != self._stamp",
        "False",
        f"{_STREAM}::test_new_connections_use_the_files_that_are_there_then",
    ),
    mutant(
        "a_cut_connection_counts_as_its_end",
        "SECURITY",
        "TlsStream.receive_into",
        """raise ConnectionLost(
                f"the connection with {self.peer} broke: it ended without a TLS close message"
            )""",
        "return 0",
        f"{_STREAM}::test_a_stream_that_is_cut_off_is_broken_and_not_at_its_end",
    ),
    mutant(
        "an_alert_is_always_a_refusal",
        "SECURITY",
        "TlsStream._fail",
        "self._is_open and (self._is_server or self._has_heard)",
        "False",
        f"{_STREAM}::test_an_alert_after_both_were_sure_is_no_refusal",
    ),
    mutant(
        "a_handshake_has_no_deadline",
        "SECURITY",
        "TlsStream._shake_hands",
        "trio.move_on_at(self._deadline)",
        "trio.CancelScope()",
        f"{_STREAM}::test_accepting_waits_for_no_handshake_and_the_handshake_has_a_deadline",
    ),
    mutant(
        "bytes_that_wait_are_encrypted_again",
        "SECURITY",
        "TlsStream.send_nowait",
        "self._ahead = size",
        "self._ahead = 0",
        f"{_STREAM}::test_what_the_socket_does_not_take_is_bounded",
        _CONTRACT,
    ),
    mutant(
        "records_behind_a_full_buffer_wait_for_more_bytes",
        "SECURITY",
        "TlsStream._decrypt",
        "self._has_more = filled == size or self._is_finished or self._fault is not None",
        "self._has_more = self._is_finished or self._fault is not None",
        f"{_STREAM}::test_what_came_at_once_is_given_without_waiting_for_more",
    ),
    mutant(
        "a_plain_client_is_left_without_an_answer",
        "SECURITY",
        "TlsStream._fail",
        "last_words = last_words or _NO_TLS_ALERT",
        "",
        _BOOKIE,
    ),
    mutant(
        "a_standby_in_its_handshake_is_dropped",
        "SECURITY",
        "BeatServer._beat",
        "list(self._standbys)",
        "[*self._strangers, *self._standbys]",
        f"{_ELECTION}::test_a_standby_hears_nothing_and_is_kept_until_it_has_said_hello",
    ),
    mutant(
        "a_leader_that_shakes_no_hands_is_waited_for",
        "SECURITY",
        "Hearing._listen",
        """
        with trio.move_on_after(ELECTION_SILENCE_S) as greeting:
            await stream.send_all([Beat(BeatKind.HELLO, self._term, holder).encode()])
        """,
        """
        with trio.CancelScope() as greeting:
            await stream.send_all([Beat(BeatKind.HELLO, self._term, holder).encode()])
        """,
        f"{_ELECTION}::test_a_leader_that_shakes_no_hands_is_suspected_as_soon_as_a_silent_one",
    ),
    mutant(
        "an_append_does_not_say_why_its_bookies_failed",
        "SECURITY",
        "MemberWatch.on_lost",
        "self._failed_because[bookie] = why",
        "",
        f"{_BOOKIE}::test_an_append_with_a_certificate_that_the_bookies_refuse_names_the_reason",
    ),
    mutant(
        "a_hangup_ends_a_bookie_with_certificates",
        "SECURITY",
        "bookie.server.main._until_signalled",
        "number == signal.SIGHUP and reload()",
        "False",
        f"{_PROCESSES}::test_a_bookie_with_certificates_has_their_id_and_survives_a_hangup",
    ),
    mutant(
        "a_cluster_with_certificates_is_run_without_them",
        "SECURITY",
        "cluster_run",
        "wants_tls or has_authority(certificates_path(path))",
        "wants_tls",
        f"{_PROCESSES}::test_a_local_cluster_with_tls_serves_those_who_have_a_certificate",
    ),
    mutant(
        "a_lost_key_of_the_authority_makes_another_authority",
        "SECURITY",
        "trial_certificates._authority_in",
        "cert_path.exists() != key_path.exists()",
        "False",
        f"{_PROCESSES}::test_the_command_makes_certificates_that_only_their_owner_reads_and_makes_them_once",
    ),
    mutant(
        "a_buffer_grows_only_if_a_receive_fills_it",
        "SECURITY",
        "FrameBuffer.received",
        "self._end == size or 2 * count >= size",
        "self._end == size",
        "tests/unit/test_frame_buffer_memory.py::test_a_buffer_grows_if_receives_never_quite_fill_it",
    ),
    mutant(
        "options_that_a_benchmark_does_not_use_are_taken",
        "SECURITY",
        "refuse_given",
        "context is None",
        "True",
        "tests/integration/test_cli_bench.py::test_credentials_that_a_benchmark_would_not_use_are_refused",
    ),
)
