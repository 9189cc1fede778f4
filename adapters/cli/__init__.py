"""
The command line, ``claimlet``; as ``kubectl-claimlet`` it is a kubectl plugin too.

Nothing heavy is imported here: nats, grpc, yaml and the like are imported by the commands that need
them, when they run (tests/adapters/cli holds it).
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from claimlet import __version__

from .errors import guarded
from .lazy import LazyGroup
from .options import Invocation

__all__ = ["command", "invoke", "main"]


@click.group(
    "claimlet",
    cls=LazyGroup,
    show_shared=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="claimlet", message="%(prog)s %(version)s")
def command() -> None:
    """Prepare the claims of pods through DRA drivers; the log is the checkpoint."""


def invoke(arguments: Sequence[str]) -> int:
    """Run the command line with *arguments* and return its exit code."""
    invocation = Invocation()

    def call() -> object:
        return command.main(
            list(arguments), prog_name="claimlet", standalone_mode=False, obj=invocation
        )

    return guarded(call, debug=lambda: invocation.debug)


def main() -> NoReturn:
    """Run the command line of this process; what its terminal cannot show is shown as an escape."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(invoke(sys.argv[1:]))
