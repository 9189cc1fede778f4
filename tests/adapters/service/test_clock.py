"""A clock that goes back: seen in the log, told once, and of no consequence."""

from __future__ import annotations

from typing import Any

import structlog
from tests.engine.facts import record

from claimlet.adapters.service.clock import ClockWatch, turned_back
from claimlet.events.facts import Stopped
from claimlet.events.record import Record


def at(*seconds: int) -> list[Record]:
    """Return records of these times, in this order."""
    return [record(Stopped(), second) for second in seconds]


class TestClock:
    def test_each_step_back_is_found(self) -> None:
        """A record with a time before the last one's is a step back; an equal one is none."""
        steps = turned_back(at(1, 5, 5, 3, 4, 2))

        assert [(a.sequence, b.sequence) for a, b in steps] == [(5, 3), (4, 2)]
        assert turned_back([]) == []

    def test_the_service_says_it_once(self) -> None:
        """A clock that goes on jumping does not fill the log lines."""
        watch = ClockWatch()
        with structlog.testing.capture_logs() as lines:
            for each in at(5, 4, 3, 6, 1):
                watch.tell(each)

        (line,) = lines
        told: dict[str, Any] = dict(line)
        assert (told["event"], told["sequence"]) == ("clock_went_back", 4)
        assert told["before"] > told["after"]
