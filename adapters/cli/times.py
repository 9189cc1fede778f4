"""
Times as people write and read them: ``--since``, ``--until``, ``--at``, and ages.

Pure functions; what the time is now is an argument.  A date or a clock time without an offset
means the zone of *now*; the commands pass UTC, as all their output is.  ``boot`` and ``seq:N``
name a place in the log that only the log can find.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from ...engine.errors import UsageError
from ..service.points import BootPoint, Point, SequencePoint

__all__ = [
    "FORMS",
    "BootPoint",
    "Point",
    "SequencePoint",
    "age",
    "age_since",
    "duration",
    "parse_point",
    "rfc3339",
]

FORMS = (
    "90s, 15m, 2h, 3d (ago), 2026-11-24, 2026-11-24T14:05Z, today, yesterday, monday, boot, boot-1,"
    " seq:1202"
)

_AGO = re.compile(r"(?:\d{1,6}[smhdw])+", re.ASCII)
_PART = re.compile(r"(\d+)([smhdw])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_BOOT = re.compile(r"boot(?:-(\d{1,4}))?", re.ASCII)
_SEQUENCE = re.compile(r"seq:(\d{1,18})", re.ASCII)
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def parse_point(text: str, *, now: datetime) -> Point:
    """
    Return the point in time or in the log that *text* means at *now*.

    Raises:
        UsageError: It means none.
    """
    word = text.strip().lower()
    if match := _BOOT.fullmatch(word):
        return BootPoint(int(match[1] or 0))
    if match := _SEQUENCE.fullmatch(word):
        return SequencePoint(int(match[1]))
    try:
        if _AGO.fullmatch(word):
            return now - timedelta(seconds=duration(word))
        if (day := _day(word, now)) is not None:
            return day
        moment = datetime.fromisoformat(text.strip())
        return (moment if moment.tzinfo else moment.replace(tzinfo=now.tzinfo)).astimezone(
            now.tzinfo
        )
    except (ValueError, OverflowError):
        raise UsageError(f"{text!r} is no time", hint=f"a time is one of: {FORMS}") from None


def duration(text: str) -> float:
    """
    Return the seconds that *text*, such as ``90s`` or ``1h30m``, means; a bare number is seconds.

    Raises:
        UsageError: It means none.
    """
    word = text.strip().lower()
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", word, re.ASCII):
        return float(word)
    if not _AGO.fullmatch(word):
        raise UsageError(
            f"{text!r} is no duration", hint="a duration is written as 90s, 15m, 1h30m, 3d"
        )
    return float(sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(word)))


def _day(word: str, now: datetime) -> datetime | None:
    """Return the start of the day that *word* names: today, or the most recent one of its name."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "yesterday"):
        return midnight - timedelta(days=word == "yesterday")
    for number, name in enumerate(_WEEKDAYS):
        if word in (name, name[:3]):
            return midnight - timedelta(days=(now.weekday() - number) % 7)
    return None


def age(seconds: float) -> str:
    """Return *seconds* as kubectl writes an age: two units at most, fewer as it grows."""
    whole = int(max(seconds, 0))
    minutes, hours, days = whole // 60, whole // 3_600, whole // 86_400
    if whole < 2 * 60:
        return f"{whole}s"
    if minutes < 10:
        return _two(f"{minutes}m", f"{whole % 60}s")
    if minutes < 3 * 60:
        return f"{minutes}m"
    if hours < 8:
        return _two(f"{hours}h", f"{minutes % 60}m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(f"{days}d", f"{hours % 24}h")
    if days < 2 * 365:
        return f"{days}d"
    if days < 8 * 365:
        return _two(f"{days // 365}y", f"{days % 365}d")
    return f"{days // 365}y"


def age_since(time: str, *, now: datetime) -> str:
    """Return how long ago the RFC 3339 *time* was; nothing where there is none."""
    return age((now - datetime.fromisoformat(time)).total_seconds()) if time else ""


def _two(high: str, low: str) -> str:
    return high if low[:-1] == "0" else high + low


def rfc3339(unix_ns: int) -> str:
    """Return a Unix time in nanoseconds as RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(unix_ns // 1_000_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{unix_ns // 1_000_000 % 1_000:03d}Z"
