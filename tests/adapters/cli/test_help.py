"""Help: every command says what it does and what each of its options is for."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from tests.adapters.cli.node import call

from claimlet.adapters.cli import command as top


def commands(command: click.Command, *path: str) -> Iterator[tuple[str, ...]]:
    """Yield the path of *command* and of all below it."""
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, *path, name)


def find(path: tuple[str, ...]) -> click.Command:
    command: click.Command = top
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize("path", list(commands(top)), ids=" ".join)
class TestHelp:
    def test_is_shown(self, path: tuple[str, ...]) -> None:
        """`--help` and `-h` show the usage on stdout and end with 0."""
        ran = call(*path, "--help")

        assert ran.code == 0
        assert ran.out.startswith(f"Usage: {' '.join(('claimlet', *path))} ")
        assert not ran.err
        assert call(*path, "-h") == ran

    def test_explains_everything(self, path: tuple[str, ...]) -> None:
        """A command and each option has a text, and it fits beside the options."""
        command = find(path)

        assert command.help
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, parameter.name

    def test_knows_no_other_option(self, path: tuple[str, ...]) -> None:
        """An unknown option is a usage error that names the command's own help."""
        ran = call(*path, "--nonsense")

        assert ran.code == 2
        assert ran.told == ["error", "hint"]
        assert f"`{' '.join(('claimlet', *path))} --help`" in ran.err
