"""``claimlet completion``: the script that a shell loads to complete this command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from .options import command as make_command

__all__ = ["command"]

_EPILOG = """
\b
bash   source <(claimlet completion bash)
zsh    source <(claimlet completion zsh)
fish   claimlet completion fish | source
"""


@make_command("completion", epilog=_EPILOG)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL."""
    completion_class = get_completion_class(shell)
    assert completion_class is not None, shell
    root = context.find_root().command
    click.echo(completion_class(root, {}, "claimlet", "_CLAIMLET_COMPLETE").source())
