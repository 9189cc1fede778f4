"""``claimlet run``: the node service, until it is asked to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from .options import Invocation, pass_invocation
from .options import command as make_command

__all__ = ["command"]


@make_command("run")
@click.option(
    "--manifests",
    metavar="DIR",
    help="Prepare the pods in this directory, as long as their files are there.",
)
@pass_invocation
def command(invocation: Invocation, *, manifests: str | None) -> None:
    """
    Run the node service.

    It prepares the claims of pods that `claimlet pod prepare` or a manifest directory asks for,
    through the DRA drivers that register under the root directory.  SIGTERM and Ctrl-C stop it in
    good order; what it knows is in the log, so it can also be killed.
    """
    from ..service.logs import configure
    from ..service.service import run_service

    if manifests is not None:
        invocation.flags["manifest.directory"] = Path(manifests)
    settings = invocation.settings
    configure(form=settings.service.log_format, level=settings.service.log_level)
    asyncio.run(run_service(settings))
