"""The requests of one connection that wait, each rule by itself."""

from __future__ import annotations

import pytest

from bookie.core.request_queue import Line, RequestQueue


def queue(waiting: int = 0) -> RequestQueue[int]:
    """A queue for two requests of each line at the same time, and 100 unread bytes."""
    made: RequestQueue[int] = RequestQueue(urgent_max=2, polls_max=2, usual_max=2, unread_bytes_max=100)
    for number in range(waiting):
        made.add(number, Line.USUAL)
    return made


def begun(requests: RequestQueue[int]) -> list[int]:
    """All requests that may begin now."""
    found = []
    while (request := requests.begin()) is not None:
        found.append(request)
    return found


def test_a_few_requests_are_worked_on_and_the_others_wait_in_order() -> None:
    requests = queue(waiting=5)
    assert begun(requests) == [0, 1]
    assert begun(requests) == []
    requests.end(Line.USUAL)
    assert begun(requests) == [2]


@pytest.mark.parametrize("line", [Line.URGENT, Line.POLL])
def test_an_urgent_request_and_a_poll_wait_for_no_other(line: Line) -> None:
    requests = queue(waiting=5)
    assert begun(requests) == [0, 1]
    for number in range(10, 13):
        requests.add(number, line)
    assert begun(requests) == [10, 11]
    requests.end(line)
    assert begun(requests) == [12]
    requests.end(Line.USUAL)
    assert begun(requests) == [2]


def test_urgent_requests_begin_first() -> None:
    requests = queue(waiting=1)
    requests.add(20, Line.POLL)
    requests.add(10, Line.URGENT)
    assert begun(requests) == [10, 20, 0]


def test_nothing_begins_while_the_client_leaves_replies_unread() -> None:
    requests = queue(waiting=5)
    requests.add(10, Line.URGENT)
    requests.hold(101)
    assert begun(requests) == []
    requests.release(1)
    assert begun(requests) == [10, 0, 1]
    assert requests.unread_bytes == 100


def test_a_connection_that_ends_leaves_no_request() -> None:
    requests = queue(waiting=3)
    requests.add(10, Line.URGENT)
    requests.add(20, Line.POLL)
    assert sorted(requests.clear()) == [0, 1, 2, 10, 20]
    assert begun(requests) == []
