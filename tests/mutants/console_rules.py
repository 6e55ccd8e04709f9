"""Mutants of the console: who may look and change, what a page costs the store, what it shows."""

from __future__ import annotations

from tests.mutants.mutant import mutant

_TEST = "tests/console/test_console.py"
_CORE = "tests/unit/test_console_core.py"

MUTANTS = (
    mutant(
        "a_page_by_http_is_one_of_a_console_that_serves_https",
        "console",
        "Doors.__init__",
        '("https",) if is_https else ("http", "https")',
        '("http", "https")',
        "tests/console/test_console.py::test_a_console_that_serves_https_itself_has_no_page_by_http",
    ),
    mutant(
        "a_page_of_another_host_is_ours",
        "console",
        "Doors.check_origin",
        'host != headers.get("host", "").lower()',
        "not host",
        "tests/console/test_console.py::test_a_post_of_another_page_is_refused_even_with_the_cookie",
    ),
    mutant(
        "console_serves_a_name_that_somebody_points_at_it",
        "console",
        "doors._is_address",
        "return False",
        "return True",
        f"{_TEST}::test_a_name_that_somebody_else_points_here_is_refused",
    ),
    mutant(
        "console_takes_a_change_without_the_mark_of_the_session",
        "console",
        "Doors.check_change",
        'hmac.compare_digest(headers.get("x-console-mark", "").encode(), session.mark.encode())',
        "True",
        f"{_TEST}::test_a_post_of_another_page_is_refused_even_with_the_cookie",
    ),
    mutant(
        "console_takes_a_change_of_another_page",
        "console",
        "Doors.check_change",
        "self.check_origin(headers)",
        "",
        f"{_TEST}::test_a_post_of_another_page_is_refused_even_with_the_cookie",
    ),
    mutant(
        "console_keeps_a_session_beyond_its_token",
        "console",
        "Doors.session",
        "found.expires_s <= self._now_s()",
        "False",
        f"{_TEST}::test_an_expired_token_and_a_revoked_role_end_a_session_and_its_open_pages",
    ),
    mutant(
        "console_looks_on_when_nobody_watches",
        "console",
        "ClusterObserver.watch",
        "live.scope.cancel()",
        "",
        f"{_TEST}::test_a_page_that_nobody_looks_at_any_more_costs_nothing_not_even_bookies",
    ),
    mutant(
        "console_asks_the_store_where_a_log_ends",
        "console",
        "WatchedReader._learn_end",
        "await self._ask_lac(self.metadata.last_fragment.ensemble, held, reasons)",
        "held = await self._ask_end(reasons)",
        f"{_TEST}::test_a_log_that_is_written_costs_the_store_nothing_between_its_rolls",
    ),
    mutant(
        "console_counts_rates_across_a_restart",
        "console",
        "BookieBoard.on_figures",
        'fell or bookie.figures.get("entries", 0) > figures.get("entries", 0)',
        "False",
        f"{_CORE}::test_a_bookie_that_started_again_has_no_negative_rates",
    ),
    mutant(
        "console_tells_a_new_row_without_fields_to_nobody",
        "console",
        "picture.difference",
        "(fields := _changed(held.get(key), row)) is not None",
        "(fields := _changed(held.get(key), row))",
        f"{_CORE}::test_a_page_that_is_told_the_difference_has_the_next_picture",
    ),
)
