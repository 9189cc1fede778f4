"""
The group at the top: its commands are known by name and imported when they are called.

`COMMANDS` is the one list of them, with the line that ``claimlet --help`` shows, so that help and
completion import nothing.  A command lives in the module of its name and is called `command` there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import CompletionItem

from .errors import hanging_up
from .options import Group

__all__ = ["COMMANDS", "LazyGroup"]

COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "Play a pod's life through a crash and a reboot, with everything real.",
        "run": "Run the node service.",
        "pod": "Have the claims of a pod prepared or unprepared.",
        "claims": "List, describe and watch claims, or have them prepared again.",
        "history": "Show what happened to a claim, a pod or the node.",
        "state": "Show what the node held at any time, and what changed since.",
        "replay": "Fold the log again, to compare, or to see what each fact did.",
        "boot": "Show the current boot, and what a reboot would do.",
        "drivers": "List drivers, call them again, ask whether one can stop.",
        "unprepare": "Waive what a driver owes, by hand.",
        "doctor": "Look at everything, and say what is wrong and what to do about it.",
        "log": "Show the log itself: what it holds, and what of it is damaged.",
        "checkpoint": "Take over what a kubelet held, or hand it back.",
        "diagram": "Draw the lifecycle of a claim from the machine that runs.",
        "config": "Show or check the settings.",
        "env": "Print shell exports that point the nats CLI at the log.",
        "keys": "Give the users of the log's server new keys.",
        "completion": "Print the completion script of a shell.",
        "version": "Print the version.",
    }
)


class LazyGroup(Group):
    """The commands of `COMMANDS`, each imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the list."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f".{cmd_name}", __package__)
        found: click.Command = module.command
        return found

    def make_context(self, *args: Any, **attributes: Any) -> click.Context:
        """Read the arguments; this writes help and version."""
        with hanging_up():
            return super().make_context(*args, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was called."""
        with hanging_up():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin with *incomplete*."""
        names = [
            CompletionItem(name, help=text)
            for name, text in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]
