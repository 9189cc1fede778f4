"""``claimlet config``: the settings, where each came from, and whether they can be used."""

from __future__ import annotations

import json
from typing import Any

import click
import msgspec

from .options import Invocation, group, output_option, pass_invocation
from .output import Column, Output

__all__ = ["command"]


class _Setting(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: Any
    origin: str


_COLUMNS = (
    Column[_Setting]("SETTING", lambda item: item.name),
    Column[_Setting]("VALUE", lambda item: _shown(item.value)),
)
_ORIGIN = Column[_Setting]("ORIGIN", lambda item: item.origin)


@group("config")
def command() -> None:
    """Show or check the settings."""


@command.command("show")
@click.option("--origin", is_flag=True, help="Show where each value came from.")
@output_option("table", "json", "jsonl", "yaml", "name")
@pass_invocation
def show(invocation: Invocation, output: Output, *, origin: bool) -> None:
    """Show every setting with its value."""
    loaded = invocation.loaded
    items = [
        _Setting(name=name, value=value, origin=loaded.origins[name])
        for name, value in loaded.values().items()
    ]
    columns = (*_COLUMNS, _ORIGIN) if origin else _COLUMNS
    output.items(items, columns, kind="SettingList", name=lambda item: item.name)


@command.command("check")
@pass_invocation
def check(invocation: Invocation) -> None:
    """Say whether the settings can be used; if not, exit 2."""
    origins = set(invocation.loaded.origins.values()) - {"default"}
    click.echo(f"ok: settings from {', '.join(['defaults', *sorted(origins)])}")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
