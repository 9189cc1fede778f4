"""Where the log's server is, or what it is started with, as the settings say; light to import."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import resources

from ...config.settings import Settings
from ...engine.errors import UsageError
from ...events.address import ServerAddress
from ...events.server import keys
from ...events.server.locate import locate
from ...events.server.process import ServerSettings

__all__ = ["chosen_users", "external_address", "server_settings"]


def server_settings(settings: Settings) -> ServerSettings:
    """
    Return what the log's own server needs to know.

    Raises:
        LogSetupError: There is no nats-server here.
    """
    templates = resources.files("claimlet.config").joinpath("nats")
    return ServerSettings(
        state_dir=settings.state_dir,
        node=settings.node,
        program=locate(str(settings.log.nats_server or ""), environ=os.environ),
        template=templates.joinpath("server.conf").read_text("utf-8"),
        namespace_readers=settings.log.namespace_readers,
        reader_template=templates.joinpath("namespace-reader.conf").read_text("utf-8"),
        max_file_store_bytes=settings.log.max_file_store_bytes,
    )


def chosen_users(server: ServerSettings, users: Sequence[str]) -> list[str]:
    """
    Return *users*, each once, or all users of *server* if none are named.

    Raises:
        UsageError: There is no such user.
    """
    if unknown := [user for user in users if user not in server.users]:
        raise UsageError(
            f"the log's server has no user {unknown[0]!r}",
            hint=f"its users are {', '.join(server.users)}",
        )
    return list(dict.fromkeys(users)) or list(server.users)


def external_address(settings: Settings, user: str) -> ServerAddress:
    """Return how to reach the configured server as *user*; without a seed file: as nobody."""
    directory = settings.log.keys_dir or settings.state_dir / "keys"
    seed = keys.seed_file(directory, user)
    if not seed.exists():
        return ServerAddress(url=settings.log.url)
    keys.check_seed_file(seed)
    return ServerAddress(url=settings.log.url, seed_file=seed, inbox_prefix=keys.inbox_prefix(user))
