"""Mutants of the shells around the ledger's cores, of what they say on the wire, and of connections."""

from __future__ import annotations

from tests.mutants.mutant import Edit, mutant

_RECOVERY = "ledgerlog/client/recovery.py"
_WRITER = "ledgerlog/client/writer.py"
_READER = "ledgerlog/client/reader.py"
_RANGES = "ledgerlog/client/ranges.py"
_SLOTS = "ledgerlog/client/slots.py"
_METADATA = "ledgerlog/client/metadata.py"
_CONNECTION = "ledgerlog/net/connection.py"
_CHECKSUM = "ledgerlog/wire/checksum.py"

_TEST_WRITER = "tests/shells/test_client_writer.py"
_TEST_ENSEMBLE = "tests/shells/test_client_ensemble.py"
_TEST_CLOSING = "tests/shells/test_client_closing.py"
_TEST_RECOVERY = "tests/shells/test_client_recovery.py"
_TEST_LIFECYCLE = "tests/shells/test_connection_lifecycle.py"
_TEST_ENTRIES = "tests/unit/test_entries.py"

MUTANTS = (
    mutant(
        "recovery_reads_are_sent_as_ordinary_ones",
        "D5, R-B1, T01",
        _RECOVERY,
        "            recovery_key=self._key,\n",
        "",
        _TEST_RECOVERY,
    ),
    mutant(
        "write_backs_are_sent_with_the_progress_of_recovery",
        "D11, T25, T31",
        _RECOVERY,
        "lac=core.frozen_lac, lafr=core.frozen_lafr",
        "lac=core.pending.lac, lafr=core.frozen_lafr",
        _TEST_RECOVERY,
    ),
    mutant(
        "write_backs_are_sent_with_the_lafr_of_recovery",
        "D11, T32",
        _RECOVERY,
        "lac=core.frozen_lac, lafr=core.frozen_lafr",
        "lac=core.frozen_lac, lafr=core.pending.lafr",
        _TEST_RECOVERY,
    ),
    mutant(
        "write_backs_are_sent_as_ordinary_adds",
        "rule 5",
        _RECOVERY,
        "self._key, recovery=True)",
        "self._key, recovery=False)",
        _TEST_RECOVERY,
    ),
    mutant(
        "a_refused_fence_counts",
        "A.0",
        _RECOVERY,
        "            if reply.header.status == Status.OK:\n                self._core.on_fence_ok",
        "            if reply.header.status != Status.BAD_REQUEST:\n                self._core.on_fence_ok",
        _TEST_RECOVERY,
    ),
    mutant(
        "a_read_without_an_answer_is_empty",
        "A.0, T04",
        _RECOVERY,
        "            self._core.on_read_failed(ask)\n",
        "            self._core.on_read(ask, {}, ask.last, Negative.ABSENT)\n",
        _TEST_RECOVERY,
        also=(
            Edit(
                _RECOVERY,
                "from ledgerlog.core.recovery import LedgerRecovery,",
                "from ledgerlog.core.recovery import Negative, LedgerRecovery,",
            ),
        ),
    ),
    mutant(
        "an_unknown_answer_is_negative",
        "A.3",
        _RANGES,
        "    Status.UNKNOWN: Negative.UNKNOWN,\n",
        "    Status.UNKNOWN: Negative.ABSENT,\n",
        _TEST_RECOVERY,
    ),
    mutant(
        "an_error_is_negative",
        "rule 8",
        _RANGES,
        "        if through < first and damaged is None:\n            return None\n",
        "        if through < first and damaged is None:\n            through = last\n",
        _TEST_RECOVERY,
    ),
    mutant(
        "a_copy_that_fails_its_digest_is_taken",
        "rule 8",
        _RANGES,
        "    damaged = entries.first_damaged() if len(entries) else None\n",
        "    damaged = None\n",
        _TEST_RECOVERY,
    ),
    mutant(
        "a_fence_is_a_failure_like_others",
        "A.1, D12",
        _WRITER,
        "        if status is Status.FENCED:\n            self._core.on_fenced(bookie)\n            return\n",
        "",
        _TEST_CLOSING,
    ),
    mutant(
        "the_lac_of_an_idle_writer_is_not_told",
        "rule 16",
        _WRITER,
        "                self._publish_lac()\n",
        "",
        _TEST_WRITER,
        _TEST_CLOSING,
    ),
    mutant(
        "the_lac_is_told_before_it_is_confirmed",
        "C LacIsCommitted",
        _WRITER,
        "return self._encoder.encode(send, slot, lac=core.lac, lafr=core.lafr)",
        "return self._encoder.encode(send, slot, lac=send.last, lafr=core.lafr)",
        _TEST_WRITER,
        _TEST_CLOSING,
        _TEST_RECOVERY,
    ),
    mutant(
        "late_answers_reach_the_next_tenure",
        "A.1 queue rule 4",
        _SLOTS,
        "                sink.connection.detach(sink)\n                self.sinks[sink.index]",
        "                self.sinks[sink.index]",
        _TEST_ENSEMBLE,
        _TEST_WRITER,
    ),
    mutant(
        "a_lost_answer_is_taken_for_yes",
        "rule 14",
        _METADATA,
        "        except (VersionConflict, NodeMissing, MetadataOutcomeUnknown):\n"
        "            stored = await self._read_fresh(wanted.ledger_id)\n",
        "        except MetadataOutcomeUnknown:\n"
        "            return wanted, intent.version + 1\n"
        "        except (VersionConflict, NodeMissing):\n"
        "            stored = await self._read_fresh(wanted.ledger_id)\n",
        _TEST_CLOSING,
        _TEST_RECOVERY,
    ),
    mutant(
        "a_lost_answer_is_settled_by_a_stale_read",
        "rule 14",
        _METADATA,
        "        await self._store.sync()\n",
        "",
        _TEST_CLOSING,
        _TEST_RECOVERY,
    ),
    mutant(
        "an_open_ledger_is_read_beyond_its_lac",
        "A.7, C ReadStable",
        _READER,
        "        return self._end() if self.is_closed else self._lac\n",
        "        return self._end() if self.is_closed else max(self._lac, self._unconfirmed)\n",
        _TEST_WRITER,
        _TEST_RECOVERY,
    ),
    mutant(
        "a_replaced_instance_is_the_bookie_it_was",
        "bookie identity",
        _CONNECTION,
        "if self._instance not in (None, answer.instance) and self._attachments:",
        "if self._instance not in (None, answer.instance) and not answer.instance:",
        f"{_TEST_LIFECYCLE}::test_sinks_never_meet_another_instance_of_their_bookie",
    ),
    mutant(
        "digests_do_not_cover_the_entry_id",
        "rule 17",
        _CHECKSUM,
        '        return array("I", map(extend, range(seed, seed + count), payloads))\n',
        '        return array("I", map(extend, [seed] * count, payloads))\n',
        _TEST_ENTRIES,
    ),
)
