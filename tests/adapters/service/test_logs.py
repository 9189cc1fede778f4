"""The service's log lines: one for each fact, in order, whoever else writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import structlog
from tests.engine.facts import record

from claimlet.adapters.service.logs import configure, log_fact, write_facts
from claimlet.events import facts as f
from claimlet.events.values import DriverName

REGISTERED = record(
    f.DriverRegistered(driver=DriverName("gpu.demo"), instance="i", endpoint="/x"), 7
)
GONE = record(f.DriverGone(driver=DriverName("gpu.demo"), instance="i", reason="removed"), 8)


async def facts() -> None:
    log_fact(REGISTERED)
    log_fact(GONE)


async def facts_and_another_line() -> None:
    await facts()
    structlog.get_logger().warning("log_unavailable")


async def facts_at_the_end() -> None:
    await facts()
    write_facts()


async def until_told(play: Callable[[], Awaitable[None]], *, waits: bool) -> None:
    """Log as the service does; then go on until standard input ends."""
    configure(form="json", level="info")
    await play()
    if waits:
        await asyncio.to_thread(sys.stdin.read)


def lines_of(play: Callable[[], Awaitable[None]], count: int, *, waits: bool) -> list[Any]:
    """Return the first *count* lines of *play*, in a process that lives until they were read."""
    code = f"import {__name__} as t, asyncio; "
    code += f"asyncio.run(t.until_told(t.{play.__name__}, waits={waits}))"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        return [json.loads(process.stderr.readline()) for _ in range(count)]


class TestFacts:
    def test_have_a_line_each(self) -> None:
        """The line is named by the fact's word and has its sequence and time."""
        lines = lines_of(facts, 2, waits=True)

        assert [(x["event"], x["sequence"], x["level"]) for x in lines] == [
            ("driver_registered", 7, "info"),
            ("driver_gone", 8, "warning"),
        ]
        assert lines[1]["reason"] == "removed"
        assert lines[0]["timestamp"] == REGISTERED.time

    def test_come_before_what_is_written_later(self) -> None:
        """Another line does not overtake those of facts that were folded before it."""
        lines = lines_of(facts_and_another_line, 3, waits=True)

        assert [x["event"] for x in lines] == [
            "driver_registered",
            "driver_gone",
            "log_unavailable",
        ]
        assert lines[2]["timestamp"].endswith("Z")

    def test_are_written_before_the_process_ends(self) -> None:
        """A service that stops leaves no line unwritten."""
        lines = lines_of(facts_at_the_end, 2, waits=False)

        assert [x["sequence"] for x in lines] == [7, 8]
