"""Shared options: taken before and after the subcommand, honoured by all commands."""

from __future__ import annotations

from datetime import datetime

import click
import pytest
from click.testing import CliRunner

from claimlet.adapters.cli.options import (
    DurationType,
    Invocation,
    group,
    namespace_options,
    output_option,
    pass_invocation,
    time_options,
    watch_option,
)
from claimlet.adapters.cli.output import Output
from claimlet.adapters.cli.times import Point, SequencePoint
from claimlet.engine.errors import UsageError

SHARED = ("--state-dir", "--root", "--node", "--boot-id-file")


@group("top")
def top() -> None:
    """Hold the commands of the tests."""


@top.command("list")
@namespace_options
@time_options
@watch_option
@click.option("--timeout", type=DurationType(), default="60s")
@output_option("table", "json")
@pass_invocation
def listing(invocation: Invocation, /, output: Output, **options: object) -> None:
    """Keep what arrived."""
    click.get_current_context().find_root().meta["seen"] = (invocation, output, options)


class Run:
    """One call of the group above, and what its command got."""

    def __init__(self, *arguments: str) -> None:
        context = top.make_context("top", list(arguments))
        with context:
            top.invoke(context)
        self.invocation, self.output, self.options = context.meta["seen"]


class TestSharedOptions:
    @pytest.mark.parametrize("option", SHARED)
    def test_are_taken_on_both_sides(self, option: str) -> None:
        """A shared option may stand before or after the subcommand."""
        name = option.removeprefix("--").replace("-", "_")

        assert Run(option, "/x", "list").invocation.flags == {name: "/x"}
        assert Run("list", option, "/x").invocation.flags == {name: "/x"}

    def test_the_last_one_wins(self) -> None:
        """Given on both sides, the one nearer to the end counts."""
        assert Run("--node", "a", "list", "--node", "b").invocation.flags == {"node": "b"}

    def test_config_color_and_debug_are_kept(self) -> None:
        """The other shared options reach the run as well."""
        invocation = Run("--debug", "list", "--config", "c.toml", "--color", "never").invocation

        assert invocation.debug
        assert str(invocation.config_file) == "c.toml"
        assert invocation.color == "never"


class TestOutputOption:
    def test_gives_one_argument(self) -> None:
        """-o and --no-headers arrive as one value."""
        output = Run("list", "-o", "json", "--no-headers", "--color", "always").output

        assert output == Output(format="json", headers=False, colour=True)

    def test_the_first_format_is_the_default(self) -> None:
        """Without -o the first format is used."""
        assert Run("list").output.format == "table"


class TestNamespaceOptions:
    def test_one_all_or_the_default(self) -> None:
        """-n names one, -A means all, neither means the namespace default."""
        assert Run("list", "-n", "ml").options["namespace"] == "ml"
        assert Run("list", "-A").options["namespace"] is None
        assert Run("list").options["namespace"] == "default"

    def test_not_both(self) -> None:
        """-n and -A together cannot be meant."""
        with pytest.raises(UsageError):
            Run("list", "-n", "ml", "-A")


class TestTimesAndWatching:
    def test_times_arrive_as_points(self) -> None:
        """--since and --until are understood before the command runs."""
        options = Run("list", "--since", "2h", "--until", "seq:7").options
        since: Point | None = options["since"]

        assert isinstance(since, datetime)
        assert options["until"] == SequencePoint(7)
        assert Run("list").options["since"] is None

    def test_durations_arrive_as_seconds(self) -> None:
        """A timeout is a number of seconds."""
        assert Run("list", "--timeout", "1m").options["timeout"] == 60
        assert Run("list").options["timeout"] == 60

    @pytest.mark.parametrize("flag", ["-w", "--watch", "-f", "--follow"])
    def test_both_words_for_watching(self, flag: str) -> None:
        """People type -w or -f; both are taken."""
        assert Run("list", flag).options["watch"] is True


class TestGroup:
    def test_ls_is_list(self) -> None:
        """The habit of other tools is served."""
        assert Run("ls").output.format == "table"

    def test_help_of_a_command_shows_its_own_options(self) -> None:
        """Shared options are shown once, by the command line itself."""
        text = CliRunner().invoke(top, ["list", "--help"]).output

        assert "--since" in text
        assert "--state-dir" not in text
