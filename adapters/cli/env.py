"""
``claimlet env``: shell exports that point the nats CLI, and other clients, at the log's server.

``eval "$(claimlet env)"``, then ``nats sub 'live.dra.>'``.  Only a seed's path is
printed, never the seed.
"""

from __future__ import annotations

import asyncio
import shlex
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ...engine.errors import UsageError
from .options import Invocation, pass_invocation
from .options import command as make_command

if TYPE_CHECKING:
    from ...config.settings import Settings

__all__ = ["command"]


def _lent(settings: Settings) -> list[str]:
    """Return the users whose keys are for others."""
    from ...events.server.keys import OPERATOR, READER, namespace_reader

    return [READER, OPERATOR, *map(namespace_reader, settings.log.namespace_readers)]


def _complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        users = _lent(context.ensure_object(Invocation).settings)
    except Exception:  # noqa: BLE001 -- a shell that completes has no place for errors
        return []
    return [CompletionItem(user) for user in users if user.startswith(incomplete)]


@make_command("env")
@click.option(
    "--as",
    "user",
    metavar="USER",
    default="reader",
    show_default=True,
    shell_complete=_complete,
    help="reader sees facts, reader-NAME (log.namespace_readers) those of one namespace,"
    " operator gives commands.",
)
@pass_invocation
def command(invocation: Invocation, /, user: str) -> None:
    """Print shell exports that point the nats CLI at the log."""
    from ...events.server.keys import inbox_prefix, seed_file

    settings = invocation.settings
    if user not in (lent := _lent(settings)):
        raise UsageError(
            f"{user!r} is no user whose key is for others", hint=f"--as one of: {', '.join(lent)}"
        )
    url = settings.log.url or _url_of_own_server(settings)
    keys = (settings.log.keys_dir if settings.log.url else None) or settings.state_dir / "keys"
    exports = {"NATS_URL": url}
    if (seed := seed_file(keys, user)).exists():
        exports["NATS_NKEY"] = str(seed)
    for name, value in exports.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo(f"# requests, such as `nats stream info`: add --inbox-prefix {inbox_prefix(user)}")


def _url_of_own_server(settings: Settings) -> str:
    """
    Return the address of the running server.

    Raises:
        ServerUnavailableError: It does not run.
    """
    from ...events.errors import ServerUnavailableError
    from ...events.server.status import greet, read_status
    from ...events.subjects import node_token

    status = read_status(settings.state_dir / "server.json")
    greeting = asyncio.run(greet(status.port)) if status is not None and status.port else None
    expected = f"claimlet-{node_token(settings.node)}"
    if status is None or greeting is None or greeting.server_name != expected:
        raise ServerUnavailableError(
            f"no log server of node {settings.node} runs on {settings.state_dir}",
            hint="`claimlet run` starts it; --state-dir names another directory",
        )
    return f"nats://127.0.0.1:{status.port}"
