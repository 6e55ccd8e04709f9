"""The numbering of adds, compared with a model that stores everything."""

from __future__ import annotations

import random

import pytest

from ledgerlog.errors import WireError
from ledgerlog.model.ids import BookieId
from ledgerlog.net.adds import Attachment, Burst, UnansweredAdds
from ledgerlog.wire.frame import Status


class Sink:
    def __init__(self) -> None:
        self.ok: list[int] = []
        self.refused: list[int] = []
        self.calls = self.ends = 0

    def on_add_ok(self, bookie_id: BookieId, first: int, last: int) -> None:
        self.calls += 1
        self.ok.extend(range(first, last + 1))

    def on_add_refused(self, bookie_id: BookieId, first: int, last: int, status: Status) -> None:
        self.refused.extend(range(first, last + 1))

    def on_bookie_lost(self, bookie_id: BookieId, why: str) -> None: ...

    def on_bookie_connected(self, bookie_id: BookieId) -> None: ...

    def on_batch_end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("seed", range(60))
def test_every_add_is_told_once_to_its_sink_and_as_it_was_answered(seed: int) -> None:
    rng = random.Random(seed)
    burst = Burst()
    adds = UnansweredAdds("b1", burst)
    sinks = [Sink() for _ in range(3)]
    attachments = [Attachment(sink) for sink in sinks]
    next_entry = [0, 0, 0]
    sent: list[tuple[int, range]] = []  # add n is at index n - 1
    answers: dict[int, str] = {}
    expected_ok: list[list[int]] = [[], [], []]
    expected_refused: list[list[int]] = [[], [], []]
    acknowledged = 0
    for _ in range(300):
        step = rng.random()
        with burst:
            if step < 0.6:
                which = rng.randrange(3)
                count = rng.randrange(1, 4)
                gap = rng.choice((0, 0, 0, 1))
                entries = range(next_entry[which] + gap, next_entry[which] + gap + count)
                next_entry[which] = entries.stop
                adds.append(attachments[which], entries[0], entries[-1])
                sent.append((which, entries))
            elif step < 0.75 and sent:
                number = rng.randrange(1, len(sent) + 3)
                if number <= len(sent) and number > acknowledged and number not in answers:
                    adds.on_refused(number, Status.FENCED)
                    answers[number] = "refused"
                    which, entries = sent[number - 1]
                    expected_refused[which].extend(entries)
                else:
                    with pytest.raises(WireError):
                        adds.on_refused(number, Status.FENCED)
            elif step < 0.9:
                through = rng.randrange(len(sent) + 1)
                adds.on_acknowledged(through)
                for number in range(acknowledged + 1, through + 1):
                    if number not in answers:
                        answers[number] = "ok"
                        which, entries = sent[number - 1]
                        expected_ok[which].extend(entries)
                acknowledged = max(acknowledged, through)
            else:
                with pytest.raises(WireError):
                    adds.on_acknowledged(len(sent) + rng.randrange(1, 10))
        for sink, ok, refused in zip(sinks, expected_ok, expected_refused, strict=True):
            assert sink.ok == ok
            assert sink.refused == refused
        answered = 0
        while answered + 1 in answers:
            answered += 1
        assert (adds.sent, adds.answered) == (len(sent), answered)
    assert adds.refused == sum(answer == "refused" for answer in answers.values())
    assert sum(sink.calls for sink in sinks) < len(sent), "adjacent ones were merged"


def test_an_end_of_burst_reaches_each_touched_sink_once_and_no_detached_one() -> None:
    burst = Burst()
    adds = UnansweredAdds("b1", burst)
    sinks = [Sink(), Sink(), Sink()]
    attachments = [Attachment(sink) for sink in sinks]
    for attachment in (attachments[0], attachments[1], attachments[0]):
        adds.append(attachment, 0, 0)
    with burst:
        adds.on_acknowledged(3)
        attachments[1].sink = None
    assert [sink.ends for sink in sinks] == [1, 0, 0]
    assert [sink.calls for sink in sinks] == [2, 1, 0]


def test_senders_flush_after_the_sinks_have_acted() -> None:
    burst = Burst()
    order: list[str] = []

    class Sender:
        def flush(self) -> None:
            assert not burst.is_active
            order.append("flush")

    class Acting(Sink):
        def on_batch_end(self) -> None:
            assert burst.is_active
            burst.cork(Sender())
            order.append("end")

    with burst:
        burst.touch(Attachment(Acting()))
        burst.touch(Attachment(Acting()))
    assert order == ["end", "end", "flush", "flush"]


def test_a_burst_inside_a_burst_is_a_bug() -> None:
    burst = Burst()
    with burst, pytest.raises(AssertionError):
        burst.__enter__()
    assert not burst.is_active
