"""The requests of one connection that wait, each rule by itself."""

from __future__ import annotations

from bookie.core.request_queue import RequestQueue


def queue(waiting: int = 0) -> RequestQueue[int]:
    """A queue for two requests at the same time, two urgent ones besides, and 100 unread bytes."""
    made: RequestQueue[int] = RequestQueue(working_max=2, urgent_max=2, unread_bytes_max=100)
    for number in range(waiting):
        made.add(number, is_urgent=False)
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
    requests.end(is_urgent=False)
    assert begun(requests) == [2]


def test_an_urgent_request_waits_for_no_other() -> None:
    requests = queue(waiting=5)
    assert begun(requests) == [0, 1]
    for number in range(10, 13):
        requests.add(number, is_urgent=True)
    assert begun(requests) == [10, 11]
    requests.end(is_urgent=True)
    assert begun(requests) == [12]
    requests.end(is_urgent=False)
    assert begun(requests) == [2]


def test_nothing_begins_while_the_client_leaves_replies_unread() -> None:
    requests = queue(waiting=5)
    requests.add(10, is_urgent=True)
    requests.hold(101)
    assert begun(requests) == []
    requests.release(1)
    assert begun(requests) == [10, 0, 1]
    assert requests.unread_bytes == 100


def test_a_connection_that_ends_leaves_no_request() -> None:
    requests = queue(waiting=3)
    requests.add(10, is_urgent=True)
    assert sorted(requests.clear()) == [0, 1, 2, 10]
    assert begun(requests) == []
