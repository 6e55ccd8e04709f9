"""Mutants of ``ledgerlog.blocking``: calls from threads, what is held for them, and reading ahead."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST = "tests/blocking/test_blocking.py"
_TEST_RULES = "tests/blocking/test_blocking_rules.py"
_TEST_LOOPS = "tests/unit/test_loops.py"

PORTAL = (
    mutant(
        "a_forked_child_is_named_instead_of_its_parent",
        "fork",
        "Portal.check_open",
        "WrongProcess(self._pid)",
        "WrongProcess(os.getpid())",
        f"{_TEST}::test_a_forked_child_is_told_to_connect_anew",
    ),
    mutant(
        "a_forked_child_closes_what_is_its_parents",
        "fork",
        "Portal.close",
        "os.getpid() != self._pid or self._is_closed or self._loop.is_over",
        "self._is_closed or self._loop.is_over",
        f"{_TEST}::test_a_forked_child_is_told_to_connect_anew",
    ),
    mutant(
        "a_blocking_call_stops_the_loop_of_trio",
        "loops",
        "Portal._refuse_loops",
        "trio.lowlevel.in_trio_task()",
        "False",
        f"{_TEST}::test_inside_of_trio_a_call_is_refused",
    ),
    mutant(
        "a_blocking_call_stops_the_loop_of_asyncio",
        "loops",
        "blocking.connecting.connect",
        "Portal(refuses_asyncio=True)",
        "Portal()",
        f"{_TEST_LOOPS}::test_blocking_calls_in_an_asyncio_loop_are_refused_and_work_from_a_thread",
    ),
    mutant(
        "a_connection_that_failed_leaves_its_thread",
        "closing",
        "blocking.connecting.connect",
        "portal.close()",
        "",
        f"{_TEST}::test_errors_are_those_of_the_library",
    ),
    mutant(
        "a_program_that_forgets_to_close_loses_what_is_on_its_way",
        "closing",
        "Portal.__init__",
        "atexit.register(self.close)",
        "",
        f"{_TEST}::test_a_program_that_forgets_to_close_ends_in_order",
    ),
    mutant(
        "closing_leaves_the_cluster_before_its_writers",
        "closing",
        "Portal.close",
        "reversed(list(self._held))",
        "list(self._held)",
        f"{_TEST}::test_a_program_that_forgets_to_close_ends_in_order",
    ),
    mutant(
        "closing_forgets_what_is_entered",
        "closing",
        "Portal.enter",
        "self._held[held] = None",
        "",
        f"{_TEST}::test_a_cluster_that_is_closed_leaves_what_is_open_and_says_so_afterwards",
    ),
    mutant(
        "an_interrupted_body_waits_for_its_writer_to_close",
        "interruption",
        "Held.leave",
        "error is not None and not isinstance(error, Exception)",
        "False",
        f"{_TEST}::test_ctrl_c_in_the_body_leaves_the_ledger_to_the_next_leader",
    ),
    mutant(
        "a_body_that_failed_leaves_as_one_that_did_not",
        "contexts",
        "Held.leave",
        "partial(self.context.leave, is_failed=error is not None, at_once=hurried)",
        "partial(self.context.leave, is_failed=False, at_once=hurried)",
        f"{_TEST}::test_a_ledger_whose_body_raised_is_left_for_recovery",
    ),
)

FACES = (
    mutant(
        "a_log_writer_is_not_told_why_its_body_ended",
        "contexts",
        "Entered.__exit__",
        "self._held.leave(error)",
        "self._held.leave()",
        f"{_TEST}::test_ctrl_c_in_the_body_leaves_the_ledger_to_the_next_leader",
    ),
    mutant(
        "a_ledger_writer_is_not_told_why_its_body_ended",
        "contexts",
        "HeldLedger.__exit__",
        "self._held.leave(error)",
        "self._held.leave()",
        f"{_TEST}::test_a_ledger_whose_body_raised_is_left_for_recovery",
    ),
    mutant(
        "a_closed_ledger_keeps_its_place_in_the_loop",
        "contexts",
        "HeldLedger.close",
        "self._held.leave()",
        "",
        f"{_TEST_RULES}::test_a_ledger_that_is_closed_is_held_no_more",
    ),
    mutant(
        "a_closed_cluster_gives_its_ledgers",
        "closing",
        "ConnectedFace._check",
        """
        self._portal.check()
        self._held.check()
        """,
        "",
        f"{_TEST_RULES}::test_a_closed_cluster_gives_nothing_but_its_uri",
        f"{_TEST_LOOPS}::test_blocking_calls_in_an_asyncio_loop_are_refused_and_work_from_a_thread",
    ),
    mutant(
        "what_a_cluster_gives_is_not_checked",
        "loops",
        "blocking.faces.Cluster.ledgers",
        "self._check()",
        "",
        f"{_TEST_RULES}::test_a_closed_cluster_gives_nothing_but_its_uri",
        f"{_TEST_LOOPS}::test_blocking_calls_in_an_asyncio_loop_are_refused_and_work_from_a_thread",
    ),
    mutant(
        "an_expected_offset_is_lost_on_its_way",
        "faces",
        "blocking.faces.LogWriter.append",
        """
        self._inner.append(
            data,
            key=key,
            headers=headers,
            expected_offset=expected_offset,
            sequence=sequence,
            producer=producer,
        )
        """,
        "self._inner.append(data, key=key, headers=headers, sequence=sequence, producer=producer)",
        f"{_TEST}::test_errors_are_those_of_the_library",
    ),
    mutant(
        "an_end_of_reading_is_lost_on_its_way",
        "faces",
        "blocking.faces.Log.read",
        "fetch(self._inner.read(start, until=until, follow=follow, dense=dense))",
        "fetch(self._inner.read(start, follow=follow, dense=dense))",
        f"{_TEST}::test_a_program_writes_and_reads_a_log",
    ),
    mutant(
        "the_metadata_of_a_ledger_is_lost_on_its_way",
        "faces",
        "blocking.faces.Ledgers.create",
        "self._inner.create(replication, metadata, full_pinning=full_pinning)",
        "self._inner.create(replication, full_pinning=full_pinning)",
        f"{_TEST_RULES}::test_a_ledger_keeps_its_metadata",
    ),
)

READING = (
    mutant(
        "an_answer_that_an_interruption_lost_is_not_given_again",
        "interruption",
        "Fetched.take",
        "received < self.given_count",
        "False",
        f"{_TEST}::test_ctrl_c_that_comes_with_the_outcome_is_not_waited_upon_and_loses_no_record",
    ),
    mutant(
        "a_blocking_reader_does_not_tell_of_a_gap",
        "lost records",
        "Fetched.run",
        """
        self.batches.append(gap)
        self.changed.set()
        """,
        "",
        "tests/integration/test_log_gaps.py::test_a_reader_without_await_is_told_in_its_place",
    ),
    mutant(
        "a_blocking_reader_does_not_stand_behind_a_gap",
        "lost records",
        "ReadingPlace.take",
        "self.next_offset = max(self.next_offset, first.first_offset)",
        "",
        "tests/integration/test_log_gaps.py::test_a_reader_without_await_is_told_in_its_place",
    ),
    mutant(
        "a_blocking_reader_fetches_without_bound",
        "bounds",
        "Fetched._copy",
        "self.bytes > LOG_READ_AHEAD_BYTES",
        "False",
        f"{_TEST_RULES}::test_fetching_ahead_has_a_bound",
    ),
    mutant(
        "a_blocking_reader_does_not_know_where_it_begins",
        "reading",
        "crossing.fetching.fetch",
        "fetched.next_offset = reader.next_offset",
        "",
        f"{_TEST_RULES}::test_both_ways_of_iterating_share_one_place",
    ),
    mutant(
        "a_blocking_reader_stands_at_what_it_has_given",
        "reading",
        "RecordsFace.next",
        "record.offset + 1",
        "record.offset",
        f"{_TEST}::test_a_program_writes_and_reads_a_log",
    ),
    mutant(
        "a_blocking_reader_takes_two_calls_at_once",
        "reading",
        "_OneCall.__enter__",
        'self._user.setdefault("thread", thread) != thread',
        "False",
        "tests/contract/test_faces_contract.py::"
        "test_a_reader_refuses_a_second_caller_and_harms_nothing_of_the_first[blocking]",
    ),
    mutant(
        "a_reader_that_was_left_gives_what_it_had",
        "reading",
        "ReadingPlace.drop_if_left",
        "self._fetched.is_left",
        "False",
        "tests/contract/test_faces_contract.py::"
        "test_a_reader_that_was_left_gives_nothing_of_what_it_had_fetched[blocking]",
    ),
    mutant(
        "a_batch_that_was_begun_is_given_whole_again",
        "reading",
        "ReadingPlace.take_rest",
        "begun.between(self.next_offset)",
        "begun",
        f"{_TEST_RULES}::test_both_ways_of_iterating_share_one_place",
    ),
    mutant(
        "a_blocking_follower_looks_once",
        "reading",
        "EntriesFace.follow",
        "end is not None and at > end",
        "end is None or at > end",
        f"{_TEST_RULES}::test_who_follows_a_ledger_waits_for_more",
    ),
)

_TEST_AIO = "tests/aio/test_aio.py"
_TEST_REPLICAS = "tests/contract/test_faces_contract.py::test_replicas_follow_lead_and_hand_over[aio]"

AIO = (
    mutant(
        "what_comes_while_a_mailbox_is_emptied_wakes_nobody",
        "crossing",
        "Mailbox._run",
        """
        self._is_awake = False
        for _ in range(len(self._acts)):
            self._acts.popleft()()
        """,
        """
        for _ in range(len(self._acts)):
            self._acts.popleft()()
        self._is_awake = False
        """,
        f"{_TEST_AIO}::test_what_gathers_for_the_other_loop_wakes_it_once",
    ),
    mutant(
        "a_leadership_that_ends_leaves_its_task_cancelled",
        "leadership",
        "LeadershipEntered.__aexit__",
        "self._is_cancelled and self._task.uncancel() <= self._cancelling",
        "self._is_cancelled",
        f"{_TEST_AIO}::test_the_end_of_a_leadership_cancels_its_body_and_nothing_else[thread]",
    ),
    mutant(
        "a_leadership_does_not_wait_for_the_body_that_it_cancels",
        "leadership",
        "Context._stay",
        """
        with trio.CancelScope(shield=True):
            await self._left.wait()
        """,
        "",
        f"{_TEST_AIO}::test_the_end_of_a_leadership_cancels_its_body_and_nothing_else[thread]",
    ),
    mutant(
        "an_error_of_entering_comes_again_when_the_connection_is_left",
        "crossing",
        "Context.serve",
        """
        self._on_entered(outcome if outcome.error else CallOutcome(None, never))
        outcome = CallOutcome(None)
        """,
        "self._on_entered(outcome if outcome.error else CallOutcome(None, never))",
        "tests/unit/test_crossing_context.py::test_an_error_of_entering_is_told_once",
    ),
    mutant(
        "a_withdrawn_record_is_written",
        "cancellation",
        "AppendLane._wait_for_places",
        """
        if append.is_withdrawn:
            continue
        """,
        "",
        f"{_TEST_AIO}::test_a_record_that_waits_for_the_window_when_its_caller_is_cancelled_is_not_written",
    ),
    mutant(
        "records_pass_those_that_wait_for_the_window",
        "order",
        "AppendLane.take",
        "self._waiting or not writer._is_free_for(append.size)",
        "not writer._is_free_for(append.size)",
        f"{_TEST_AIO}::test_records_do_not_pass_one_that_waits_for_the_window",
    ),
    mutant(
        "any_loop_may_use_a_connection",
        "loops",
        "Bridge.check",
        "asyncio._get_running_loop() is not self._loop",
        "False",
        f"{_TEST_AIO}::test_a_connection_belongs_to_the_loop_that_made_it",
    ),
    mutant(
        "a_linear_read_of_aio_is_local",
        "replicas",
        "AioReplica.read",
        "partial(self._inner.read, fn, consistency=consistency)",
        "partial(self._inner.read, fn)",
        _TEST_REPLICAS,
    ),
    mutant(
        "the_events_of_aio_do_not_end_with_the_replica",
        "replicas",
        "_Events.__anext__",
        """
        if event is None:
            raise StopAsyncIteration
        """,
        "",
        _TEST_REPLICAS,
    ),
    mutant(
        "a_machine_of_aio_is_called_by_the_loop_of_asyncio",
        "replicas",
        "AioReplica.read",
        "await self._run(partial(self._inner.read, fn, consistency=consistency))",
        "fn(self._inner._machine)",
        f"{_TEST_AIO}::test_a_machine_is_called_by_one_thread_and_replicas_agree[thread]",
    ),
)

MUTANTS = (*PORTAL, *FACES, *READING, *AIO)
