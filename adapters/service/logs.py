"""
Log lines of the service: JSON or text on stderr, one line per event.

A fact's line is named by its word, so that lines, subjects and metrics say the same.  Under systemd
each line carries its priority; it goes out in one write, whole.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections import deque
from typing import Any

import msgspec
import structlog

from ...events.record import Record, time_text

__all__ = ["configure", "log_fact", "write_facts"]

_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
#: Facts that somebody should look at.
_LOUD = frozenset({"driver_failed", "anomaly_found", "prepare_refused", "driver_gone"})

#: Longer than what follows from a fact takes, shorter than anybody waits for a line.
_FACT_LINES_SECONDS = 0.005

_log: Any = structlog.get_logger()


def configure(*, form: str, level: str) -> None:
    """Set up logging for the process; *form* is auto, text or json."""
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    processors: list[Any] = [
        _lines.first,
        structlog.processors.add_log_level,
        _stamped,
        structlog.processors.format_exc_info,
    ]
    logger: Any
    if form == "json":
        processors.append(structlog.processors.JSONRenderer(serializer=_encode))
        logger = structlog.BytesLoggerFactory(sys.stderr.buffer)
    else:
        processors.append(structlog.dev.ConsoleRenderer(colors=False, pad_event_to=24))
        logger = structlog.PrintLoggerFactory(sys.stderr)
    if os.environ.get("JOURNAL_STREAM"):
        processors.append(_prefixed)
    numeric = getattr(logging, level.upper())
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(numeric),
        logger_factory=logger,
        cache_logger_on_first_use=True,
    )
    logging.getLogger("transitions").setLevel(logging.WARNING)
    logging.getLogger("nats").setLevel(logging.CRITICAL)


class _FactLines:
    """
    Writes a line about each folded fact, a moment later: who waits for the fact goes first.

    Lines stay in order, whoever writes one; what a kill takes with it stands in the log.
    """

    def __init__(self) -> None:
        self._waiting: deque[Record] = deque()
        self._is_writing = False

    def add(self, record: Record) -> None:
        """Write a line about *record* soon."""
        if not self._waiting:
            asyncio.get_running_loop().call_later(_FACT_LINES_SECONDS, self.write)
        self._waiting.append(record)

    def write(self) -> None:
        """Write what waits."""
        self._is_writing = True
        try:
            while self._waiting:
                _write(self._waiting.popleft())
        finally:
            self._is_writing = False

    def first(self, _: Any, __: str, event: Any) -> Any:
        """Let no other line go before those that wait (a processor of structlog)."""
        if self._waiting and not self._is_writing:
            self.write()
        return event


_lines = _FactLines()
log_fact = _lines.add
write_facts = _lines.write


def _write(record: Record) -> None:
    fields: dict[str, Any] = {"sequence": record.sequence, "timestamp": record.time}
    if record.claim:
        fields |= {"claim": str(record.claim), "claim_uid": record.claim.uid}
    if record.pod:
        fields |= {"pod": str(record.pod), "pod_uid": record.pod.uid}
    for name in ("driver", "outcome", "code", "text", "reason", "reasons", "why", "source", "boot"):
        if value := getattr(record.fact, name, None):
            fields[name] = value
    if record.word in _LOUD:
        _log.warning(record.word, **fields)
    else:
        _log.info(record.word, **fields)


def _stamped(_: Any, __: str, event: Any) -> Any:
    if "timestamp" not in event:
        event["timestamp"] = time_text(time.time_ns())
    return event


def _encode(value: Any, **_: Any) -> bytes:
    return msgspec.json.encode(value)


def _prefixed(_: Any, method: str, line: Any) -> Any:
    prefix = f"<{_PRIORITIES.get(method, 6)}>"
    return prefix.encode() + line if isinstance(line, bytes) else prefix + line
