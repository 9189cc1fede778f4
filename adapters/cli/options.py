"""
Options that many commands share, and the classes of command that carry them.

``--state-dir``, ``--root``, ``--node``, ``--boot-id-file``, ``--config``, ``--color`` and
``--debug`` are taken before and after the subcommand: every command made with `command` or a
`Group` has them (hidden in its help, so that its own options are seen).  They end in one
`Invocation`, which loads the settings when they are asked for.  The other options here are
decorators for commands that want them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from ...config.settings import LoadedSettings, Settings, load_settings
from ...engine.errors import UsageError
from .output import Output, colour_wanted
from .times import Point, duration, parse_point

__all__ = [
    "Command",
    "DurationType",
    "Group",
    "Invocation",
    "PointType",
    "command",
    "group",
    "namespace_options",
    "output_option",
    "pass_invocation",
    "time_options",
    "watch_option",
]

F = TypeVar("F", bound=Callable[..., Any])


class Invocation:
    """One run of the command line: what its shared options say, and the settings they lead to."""

    def __init__(self) -> None:
        self.flags: dict[str, object] = {}
        self.config_file: Path | None = None
        self.color = "auto"
        self.debug = False

    @functools.cached_property
    def loaded(self) -> LoadedSettings:
        """
        The settings with their origins, read once.

        Raises:
            SettingsError: They cannot be used.
        """
        return load_settings(flags=self.flags, file=self.config_file)

    @property
    def settings(self) -> Settings:
        """The settings."""
        return self.loaded.settings


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep a shared option that was given; the one nearest to the end of the line wins."""
    if value is None or value is False:
        return
    invocation = context.ensure_object(Invocation)
    name = str(parameter.name)
    if name == "config_file":
        invocation.config_file = Path(value)
    elif hasattr(invocation, name):
        setattr(invocation, name, value)
    else:
        invocation.flags[name] = value


def _shared_options(*, hidden: bool) -> list[click.Parameter]:
    def option(*declarations: str, **attributes: Any) -> click.Option:
        return click.Option(
            declarations, expose_value=False, hidden=hidden, callback=_remember, **attributes
        )

    return [
        option("--state-dir", metavar="DIR", help="Where the log and its keys live."),
        option("--root", metavar="DIR", help="Where drivers register."),
        option("--node", metavar="NAME", help="The node's name."),
        option("--boot-id-file", metavar="FILE", help="The file that holds the boot id."),
        option("--config", "config_file", metavar="FILE", help="A configuration file."),
        option(
            "--color",
            type=click.Choice(["auto", "always", "never"]),
            help="Colour status words; auto: on a terminal.",
        ),
        option("--debug", is_flag=True, help="Show where an error came from."),
    ]


class Command(click.Command):
    """A command that takes the shared options too."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params = [*self.params, *_shared_options(hidden=True)]


class Group(click.Group):
    """A group whose commands take the shared options too; ``ls`` is short for ``list``."""

    command_class = Command
    group_class = type

    def __init__(self, *args: Any, show_shared: bool = False, **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.params = [*self.params, *_shared_options(hidden=not show_shared)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name."""
        found = super().get_command(ctx, cmd_name)
        return super().get_command(ctx, "list") if found is None and cmd_name == "ls" else found


def command(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Command]:
    """Make a function a command with the shared options."""
    return click.command(name, cls=Command, **attributes)


def group(name: str | None = None, **attributes: Any) -> Callable[[Callable[..., Any]], Group]:
    """Make a function a group whose commands have the shared options."""
    return click.group(name, cls=Group, **attributes)


def output_option(*formats: str, default: str = "") -> Callable[[F], F]:
    """
    Add ``-o`` with *formats*, and ``--no-headers`` where a table is among them.

    The command gets one argument for both, `output: Output`.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **values: Any) -> Any:
            invocation = click.get_current_context().ensure_object(Invocation)
            output = Output(
                format=values.pop("output"),
                headers=not values.pop("no_headers", False),
                colour=colour_wanted(invocation.color),
            )
            return function(*args, output=output, **values)

        if "table" in formats:
            no_headers = click.option(
                "--no-headers", is_flag=True, help="Leave the header line out."
            )
            call = no_headers(call)
        return click.option(
            "-o",
            "--output",
            type=click.Choice(formats),
            default=default or formats[0],
            show_default=True,
            help="The form of the output.",
        )(call)  # type: ignore[return-value]

    return decorate


def namespace_options(function: F) -> F:
    """Add ``-n`` and ``-A``; the command gets `namespace: str | None`, None for all of them."""

    @functools.wraps(function)
    def call(*args: Any, **values: Any) -> Any:
        namespace = values.pop("namespace")
        if values.pop("all_namespaces"):
            if namespace is not None:
                raise UsageError("-n names one namespace and -A all of them", hint="leave one out")
            return function(*args, namespace=None, **values)
        return function(*args, namespace=namespace or "default", **values)

    everywhere = click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
    return click.option(
        "-n", "--namespace", metavar="NS", help="In this namespace; else: default."
    )(everywhere(call))  # type: ignore[return-value]


class PointType(click.ParamType[Point]):
    """A point in time or in the log, as `times.FORMS` has it."""

    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Point:
        """Return the point that the text *value* means now."""
        return parse_point(value, now=datetime.now(UTC)) if isinstance(value, str) else value


class DurationType(click.ParamType[float]):
    """A length of time in seconds, written as ``90s`` or ``1h30m``."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds that the text *value* means."""
        return duration(value) if isinstance(value, str) else float(value)


def time_options(function: F) -> F:
    """Add ``--since`` and ``--until``; the command gets `since` and `until: Point | None`."""
    forms = "90s, 3d, 2026-11-24, yesterday, boot-1, seq:1202, …"
    until = click.option("--until", type=PointType(), metavar="TIME", help="Up to then.")
    return click.option("--since", type=PointType(), metavar="TIME", help=f"From then on: {forms}")(
        until(function)
    )


def watch_option(function: F) -> F:
    """Add ``-w``, ``--watch``, ``-f`` and ``--follow``, all the same; the command gets `watch`."""
    return click.option(
        "-w", "--watch", "-f", "--follow", "watch", is_flag=True, help="Go on with what happens."
    )(function)
