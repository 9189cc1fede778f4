"""Times as people write and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from claimlet.adapters.cli.times import (
    BootPoint,
    Point,
    SequencePoint,
    age,
    duration,
    parse_point,
    rfc3339,
)
from claimlet.engine.errors import UsageError

#: A Tuesday.
NOW = datetime(2026, 11, 24, 14, 5, 30, 250_000, tzinfo=UTC)


class TestParsePoint:
    @pytest.mark.parametrize(
        ("text", "point"),
        [
            ("90s", NOW - timedelta(seconds=90)),
            ("15m", NOW - timedelta(minutes=15)),
            ("2h", NOW - timedelta(hours=2)),
            ("3d", NOW - timedelta(days=3)),
            ("1h30m", NOW - timedelta(minutes=90)),
            ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
            ("2026-11-24T14:05Z", datetime(2026, 11, 24, 14, 5, tzinfo=UTC)),
            ("2026-11-24T15:05:06.5+01:00", datetime(2026, 11, 24, 14, 5, 6, 500_000, tzinfo=UTC)),
            ("2026-11-24 14:05", datetime(2026, 11, 24, 14, 5, tzinfo=UTC)),
            ("today", datetime(2026, 11, 24, tzinfo=UTC)),
            ("yesterday", datetime(2026, 11, 23, tzinfo=UTC)),
            ("tuesday", datetime(2026, 11, 24, tzinfo=UTC)),
            ("Wednesday", datetime(2026, 11, 18, tzinfo=UTC)),
            ("mon", datetime(2026, 11, 23, tzinfo=UTC)),
            ("boot", BootPoint(0)),
            ("boot-1", BootPoint(1)),
            ("seq:1202", SequencePoint(1202)),
        ],
    )
    def test_reads_every_form(self, text: str, point: Point) -> None:
        """Ages, dates, times, day names, boots and sequences are understood."""
        assert parse_point(text, now=NOW) == point

    @pytest.mark.parametrize(
        "text",
        ["", "noon", "90", "-5m", "boot-", "boot-x", "seq:", "seq:x", "999999w", "2026-13-01"],
    )
    def test_names_the_forms_for_all_else(self, text: str) -> None:
        """What means no time is refused with the forms that do."""
        with pytest.raises(UsageError) as caught:
            parse_point(text, now=NOW)

        assert "is no time" in str(caught.value)
        assert "seq:1202" in caught.value.hint


class TestDuration:
    @pytest.mark.parametrize(
        ("text", "seconds"),
        [("60s", 60), ("1h30m", 5_400), ("0.5", 0.5), ("45", 45), ("1w", 604_800)],
    )
    def test_reads_units_and_bare_seconds(self, text: str, seconds: float) -> None:
        """A timeout is written with units, or in seconds."""
        assert duration(text) == seconds

    @pytest.mark.parametrize("text", ["", "x", "-1", "5 minutes", "inf", "nan", "1e9"])
    def test_refuses_all_else(self, text: str) -> None:
        """What means no length of time is refused."""
        with pytest.raises(UsageError):
            duration(text)


class TestAge:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [
            (-1, "0s"),
            (0.9, "0s"),
            (119, "119s"),
            (120, "2m"),
            (330, "5m30s"),
            (3_480, "58m"),
            (3 * 3_600, "3h"),
            (3 * 3_600 + 240, "3h4m"),
            (47 * 3_600, "47h"),
            (2 * 86_400, "2d"),
            (3 * 86_400 + 3_600, "3d1h"),
            (700 * 86_400, "700d"),
            (800 * 86_400, "2y70d"),
            (9 * 365 * 86_400, "9y"),
        ],
    )
    def test_is_short(self, seconds: float, text: str) -> None:
        """An age has two units at most, as kubectl writes it."""
        assert age(seconds) == text


class TestRfc3339:
    def test_is_utc_to_the_millisecond(self) -> None:
        """Times in output are UTC."""
        assert rfc3339(1_795_529_130_250_999_999) == "2026-11-24T14:05:30.250Z"
