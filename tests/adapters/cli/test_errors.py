"""What goes wrong becomes one line, a hint and an exit code."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from claimlet.adapters.cli.errors import AnsweredError, TimedOutError, guarded
from claimlet.config.settings import SettingsError
from claimlet.engine.errors import NotFoundError, NotReadyError, RefusedError, UsageError
from claimlet.events.errors import FencedError


def failing(error: BaseException) -> Callable[[], object]:
    def run() -> object:
        raise error

    return run


def told(
    capsys: pytest.CaptureFixture[str], error: BaseException, *, debug: bool = False
) -> tuple[int, str]:
    code = guarded(failing(error), debug=lambda: debug)
    streams = capsys.readouterr()
    assert streams.out == ""
    return code, streams.err


class TestExitCodes:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (AnsweredError(), 1),
            (RefusedError(["no such driver"]), 1),
            (UsageError("bad"), 2),
            (SettingsError("bad"), 2),
            (click.UsageError("bad"), 2),
            (NotFoundError("none"), 3),
            (NotReadyError("later"), 4),
            (PermissionError(13, "Permission denied", "/x"), 4),
            (TimedOutError("late"), 5),
            (FencedError("taken"), 6),
            (KeyboardInterrupt(), 130),
            (click.Abort(), 130),
            (ExceptionGroup("tasks", [OSError("x"), ExceptionGroup("t", [FencedError("y")])]), 6),
            (ZeroDivisionError("x"), 1),
        ],
    )
    def test_follow_the_error(
        self, capsys: pytest.CaptureFixture[str], error: BaseException, code: int
    ) -> None:
        """Each kind of error has its documented exit code."""
        assert told(capsys, error)[0] == code

    def test_follow_the_result(self) -> None:
        """A command that returns a number ends with it; any other ends with 0."""
        assert guarded(lambda: 1, debug=lambda: False) == 1
        assert guarded(lambda: "done", debug=lambda: False) == 0


class TestText:
    def test_is_one_line_and_a_hint(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An error is told in one line, and what to do about it in another."""
        error = RefusedError(["line one\nline two"], hint="do this")

        assert told(capsys, error)[1] == "error: line one; line two\nhint: do this\n"

    def test_names_the_file_that_cannot_be_read(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The system's refusal is told with its file."""
        error = PermissionError(13, "Permission denied", "/x/y")

        error_line, hint_line, _ = told(capsys, error)[1].split("\n")
        assert error_line == "error: /x/y: Permission denied"
        assert hint_line == "hint: who runs this, and who may read and write there?"

    def test_calls_a_bug_a_bug(self, capsys: pytest.CaptureFixture[str]) -> None:
        """What was not foreseen is named, without a traceback."""
        text = told(capsys, ZeroDivisionError("division by zero"))[1]

        assert text.startswith("error: internal error: ZeroDivisionError: division by zero\nhint: ")
        assert "Traceback" not in text

    def test_debug_shows_where_it_happened(self, capsys: pytest.CaptureFixture[str]) -> None:
        """--debug adds the traceback."""
        text = told(capsys, FencedError("taken"), debug=True)[1]

        assert "Traceback" in text
        assert "error: taken\n" in text

    def test_says_nothing_more_after_an_answer(self, capsys: pytest.CaptureFixture[str]) -> None:
        """An answer that is bad has been written already."""
        assert told(capsys, AnsweredError(1)) == (1, "")
