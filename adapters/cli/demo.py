"""``claimlet demo``: a pod's life through a crash and a reboot, in a temporary directory."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import Invocation, pass_invocation
from .options import command as make_command

if TYPE_CHECKING:
    from ..demo.timeline import Timeline

__all__ = ["command"]

_WHAT_WIDTH = 36


@make_command("demo")
@click.option("--keep", is_flag=True, help="Keep the directory, with the log in it.")
@pass_invocation
def command(invocation: Invocation, *, keep: bool) -> None:
    """
    Play a pod's life through a crash and a reboot, with everything real.

    A service, its log and a driver run for some seconds, below a temporary directory and on
    loopback.  Nothing of it is left, unless --keep says so.  Exit 0 only if each act showed what
    it should.
    """
    from ...events.server.locate import locate
    from ..demo.stage import DemoError, demo_directory, uninterrupted

    program = locate(str(invocation.settings.log.nats_server or ""), environ=os.environ)
    with _terminated_as_interrupted():
        directory = demo_directory()
        try:
            timeline = asyncio.run(_play(directory, program))
        except DemoError as error:
            if not keep:
                error.hint = "claimlet demo --keep keeps the logs of the service and the driver"
            raise
        finally:
            if keep:
                click.echo(f"note: all of it is in {directory}", err=True)
            else:
                with uninterrupted():
                    shutil.rmtree(directory)
    _print_timeline(timeline)
    _print_next(directory if keep else None)


async def _play(directory: Path, program: Path) -> Timeline:
    from ..demo.play import Play
    from ..demo.stage import Stage

    began = time.monotonic()

    def tell(what: str, *seen: str) -> None:
        seconds = time.monotonic() - began
        first, *others = seen
        click.echo(f"{seconds:5.1f}s  {what:<{_WHAT_WIDTH}}  {first}")
        for line in others:
            click.echo(f"{'':{_WHAT_WIDTH + 8}}  {line}")

    async with Stage(directory, nats_server=program) as stage:
        return await Play(stage, tell).run()


def _print_timeline(timeline: Timeline) -> None:
    from ..demo.timeline import ASCII_GLYPHS, GLYPHS, draw

    try:
        "".join(GLYPHS.values()).encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        glyphs = ASCII_GLYPHS
    else:
        glyphs = GLYPHS
    click.echo()
    for line in draw(timeline, glyphs=glyphs):
        click.echo(f"  {line}")


def _print_next(kept: Path | None) -> None:
    click.echo()
    if kept is None:
        click.echo("next:  claimlet demo --keep    keeps the log, to look at it with")
        click.echo("       claimlet history pod web/tts-0    and    claimlet claims list -A")
        return
    for name, value in {
        "CLAIMLET_STATE_DIR": kept / "state",
        "CLAIMLET_ROOT": kept / "root",
        "CLAIMLET_NODE": "demo",
        "CLAIMLET_BOOT_ID_FILE": kept / "boot_id",
    }.items():
        click.echo(f"export {name}={shlex.quote(str(value))}")
    click.echo(
        "next:  claimlet history pod web/tts-0    |    claimlet claims list -A    |    claimlet run"
    )


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does: everything is ended and removed."""

    def interrupt(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, interrupt) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
