"""
The edge of the command line: what went wrong becomes one line, a hint and an exit code.

::

    0 ok · 1 the answer is bad · 2 usage or configuration · 3 not found · 4 not reachable or
    unreadable · 5 timed out · 6 cannot own the log · 130 interrupted

Every other exception is a bug of ours: it is named as one, and ``--debug`` shows where it came
from. A reader that stops reading (``| head``) is no error.
"""

from __future__ import annotations

import errno
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from ...config.settings import SettingsError
from ...engine.errors import ClaimletError
from .text import one_line

__all__ = ["AnsweredError", "HungUpError", "TimedOutError", "exit_code_of", "guarded", "hanging_up"]

#: What to look at where the system refuses a file.
_HINTS = {
    errno.ENOENT: "is the path right?",
    errno.EACCES: "who runs this, and who may read and write there?",
    errno.EPERM: "who runs this, and who may read and write there?",
    errno.ENOSPC: "make room on that disk",
    errno.EROFS: "that file system is mounted read-only",
}

_BAD, _USAGE, _UNREADABLE, _INTERRUPTED = 1, 2, 4, 130


class TimedOutError(ClaimletError):
    """What was waited for did not happen in time."""

    exit_code = 5


class HungUpError(Exception):
    """Nobody reads what is written."""


class AnsweredError(Exception):
    """The answer is written, and it is *exit_code*; nothing more is to be said."""

    def __init__(self, exit_code: int = _BAD) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def guarded(run: Callable[[], object], *, debug: Callable[[], bool]) -> int:
    """Do *run* and return the exit code; what it raises is told on stderr."""
    try:
        result = run()
        _flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return _USAGE
    except AnsweredError as answer:
        return _flushed(answer.exit_code)
    except HungUpError:
        return _hang_up()
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the edge: everything is told, nothing is swallowed
        if debug():
            traceback.print_exception(error)
        message, hint, code = _told(_single(error))
        _say("error", message)
        _say("hint", hint)
        return code
    return result if isinstance(result, int) else 0


def exit_code_of(error: Exception) -> int:
    """Return the exit code that *error* stands for."""
    return _told(_single(error))[2]


def _told(error: Exception) -> tuple[str, str, int]:
    """Return message, hint and exit code of *error*."""
    match error:
        case ClaimletError():
            return str(error), error.hint, error.exit_code
        case SettingsError():
            return str(error), error.hint, _USAGE
        case click.UsageError():
            path = error.ctx.command_path if error.ctx else "claimlet"
            return error.format_message(), f"`{path} --help` shows the usage", error.exit_code
        case click.ClickException():
            return error.format_message(), "", error.exit_code
        case OSError():
            name = error.filename
            reason = error.strerror or str(error)
            hint = _HINTS.get(error.errno or 0, "")
            return (f"{os.fsdecode(name)}: {reason}" if name else reason), hint, _UNREADABLE
        case _:
            message = f"internal error: {type(error).__name__}: {error}"
            return message, "this is a bug; --debug shows where it happened", _BAD


def _single(error: Exception) -> Exception:
    """Return the error to tell of a group: one that was meant for people, else the first."""
    if not isinstance(error, ExceptionGroup):
        return error
    leaves = [_single(inner) for inner in error.exceptions]
    return next((leaf for leaf in leaves if isinstance(leaf, ClaimletError)), leaves[0])


def _say(word: str, text: str) -> None:
    if text:
        click.echo(f"{word}: {one_line(text)}", err=True)


@contextmanager
def hanging_up() -> Iterator[None]:
    """
    Tell a reader that left from a peer that did; click would take both for the former.

    Raises:
        HungUpError: Nobody reads stdout any more.
    """
    try:
        yield
    except BrokenPipeError:
        if _reader_left():
            raise HungUpError from None
        raise


def _reader_left() -> bool:
    stdout = select.poll()
    stdout.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in stdout.poll(0))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise HungUpError from None


def _flushed(exit_code: int) -> int:
    try:
        _flush()
    except HungUpError:
        _hang_up()
    return exit_code


def _hang_up() -> int:
    """Let the interpreter's own last flush go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
