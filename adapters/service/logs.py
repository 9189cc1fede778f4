"""
Log lines of the service: JSON or text on stderr, one line per event.

A fact's line is named by its word, so that lines, subjects and metrics say the same.  Under systemd
each line carries its priority; it goes out in one write, whole.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

import msgspec
import structlog

from ...events.record import Record

__all__ = ["configure", "log_fact"]

_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
#: Facts that somebody should look at.
_LOUD = frozenset({"driver_failed", "anomaly_found", "prepare_refused", "driver_gone"})

_log: Any = structlog.get_logger()


def configure(*, form: str, level: str) -> None:
    """Set up logging for the process; *form* is auto, text or json."""
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    processors: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
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


def log_fact(record: Record) -> None:
    """Write one line about a folded fact."""
    fields: dict[str, Any] = {"sequence": record.sequence}
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


def _encode(value: Any, **_: Any) -> bytes:
    return msgspec.json.encode(value)


def _prefixed(_: Any, method: str, line: Any) -> Any:
    prefix = f"<{_PRIORITIES.get(method, 6)}>"
    return prefix.encode() + line if isinstance(line, bytes) else prefix + line
