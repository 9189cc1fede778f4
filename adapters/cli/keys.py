"""``claimlet keys``: the users of the log's own server, and new keys for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import click
import msgspec
from click.shell_completion import CompletionItem

from ...engine.errors import NotReadyError, RefusedError
from .options import Invocation, group, output_option, pass_invocation
from .output import Column, Output
from .service import ask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...config.settings import Settings
    from ...events.server.process import ServerSettings

__all__ = ["command", "complete_users"]

#: A server on a damaged or large store takes its time to start.
_ROTATION_SECONDS = 75.0
_POLL_SECONDS = 0.1


class _Key(msgspec.Struct, frozen=True, kw_only=True):
    """A user of the log's server and its key."""

    user: str
    public_key: str
    file: str


def complete_users(
    context: click.Context, _: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the users that begin with *incomplete*; never with an error."""
    try:
        users = _server(context.ensure_object(Invocation).settings).users
    except Exception:  # noqa: BLE001 -- a shell that completes has no place for errors
        return []
    return [CompletionItem(user) for user in users if user.startswith(incomplete)]


@group("keys")
def command() -> None:
    """Show the users of the log's server, and give them new keys."""


@command.command("list")
@output_option("table", "json", "jsonl", "yaml", "name")
@pass_invocation
def list_keys(invocation: Invocation, output: Output) -> None:
    """List the users of the log's own server with their public keys."""
    server = _server(invocation.settings)
    _show(output, server, server.users)


@command.command("rotate")
@click.argument("users", nargs=-1, metavar="[USER]…", shell_complete=complete_users)
@output_option("table", "json", "jsonl", "yaml", "name")
@pass_invocation
def rotate(invocation: Invocation, output: Output, *, users: Sequence[str]) -> None:
    """
    Give USERs of the log's own server, by default all, new keys.

    The server starts anew with them, and the old ones are good for nothing; the service goes on by
    itself.  Whoever else uses a key reads it again from its file.
    """
    from ...events.errors import LockHeldError
    from ...events.server.keys import renew
    from ...events.server.locks import hold
    from ..service.addresses import chosen_users

    server = _server(invocation.settings)
    chosen = chosen_users(server, users)
    if not server.status_file.exists():
        raise NotReadyError(
            f"there is no log in {server.state_dir}",
            hint="`claimlet run` makes one, with new keys; --state-dir names another directory",
        )
    try:
        with (
            hold(server.state_dir / "service.lock", owns=str(server.state_dir)),
            hold(server.lock_file, owns=f"the log in {server.state_dir}"),
        ):
            renew(server.keys_dir, chosen)
    except LockHeldError:
        _rotate_running(invocation, server, chosen)
    _show(output, server, chosen)


def _rotate_running(invocation: Invocation, server: ServerSettings, users: Sequence[str]) -> None:
    """Have the running service do it, and return when it answers to the new keys."""
    from ...events.server.status import read_status
    from ..control.protocol import Hello, RotateRequest

    before, old = _public_keys(server, users), read_status(server.status_file)
    try:
        ask(invocation, "rotate", list[str], request=RotateRequest(users=list(users)))
    except NotReadyError:
        # The reply may have been lost with the connection that it came through.
        if _public_keys(server, users) == before:
            raise

    def is_done() -> bool:
        after, new = _public_keys(server, users), read_status(server.status_file)
        if any(after[user] == before[user] for user in users):
            return False
        if old is None or new is None or new.pid == old.pid:
            return False  # the server with the old keys would take the question with it
        try:
            ask(invocation, "hello", Hello)
        except NotReadyError:
            return False
        return True

    _wait_until(is_done)


def _server(settings: Settings) -> ServerSettings:
    """
    Return the settings of the log's own server.

    Raises:
        RefusedError: The log is on a server that is not claimlet's.
        LogSetupError: There is no nats-server here.
    """
    from ..service.addresses import server_settings

    if settings.log.url:
        raise RefusedError(
            [f"the server at {settings.log.url} is not claimlet's own"],
            hint="whoever runs that server gives out its keys",
        )
    return server_settings(settings)


def _public_keys(server: ServerSettings, users: Sequence[str]) -> Mapping[str, str]:
    from ...events.server.keys import public_key, seed_file

    files = {user: seed_file(server.keys_dir, user) for user in users}
    return {user: public_key(file) for user, file in files.items() if file.exists()}


def _wait_until(is_done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _ROTATION_SECONDS
    while not is_done():
        if time.monotonic() > deadline:
            raise NotReadyError(
                f"the service has not come back with the new keys in {_ROTATION_SECONDS:g} s",
                hint="its log lines say why; claimlet keys list shows the keys that there are",
            )
        time.sleep(_POLL_SECONDS)


def _show(output: Output, server: ServerSettings, users: Sequence[str]) -> None:
    from ...events.server.keys import seed_file

    keys = [
        _Key(user=user, public_key=public_key, file=str(seed_file(server.keys_dir, user)))
        for user, public_key in _public_keys(server, users).items()
    ]
    columns = [
        Column[_Key]("USER", lambda key: key.user),
        Column[_Key]("PUBLIC KEY", lambda key: key.public_key),
        Column[_Key]("FILE", lambda key: key.file),
    ]
    output.items(keys, columns, kind="KeyList", name=lambda key: key.user)
