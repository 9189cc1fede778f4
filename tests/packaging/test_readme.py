"""The README's commands and drawing are those of the program."""

from __future__ import annotations

import re

import yaml

from claimlet.adapters.cli.diagram import draw
from claimlet.adapters.cli.lazy import COMMANDS
from claimlet.adapters.kubernetes.objects import decode_claim, decode_pod

from .house import ROOT

README = (ROOT / "README.md").read_text("utf-8")


class TestReadme:
    def test_has_the_two_commands(self) -> None:
        """The first block is what a newcomer types: one line to the demo, one to the tests."""
        block = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)[0]
        commands = [line for line in block.splitlines() if line.startswith("$ ")]

        assert len(commands) == 2
        assert commands[0].endswith(".venv/bin/claimlet demo")
        assert commands[1].startswith("$ .venv/bin/python -m pytest")

    def test_says_first_what_it_is_not_for(self) -> None:
        """Whoever has a kubelet that manages DRA learns at once that this is not for that node."""
        first_screen = "\n".join(README.splitlines()[:40])

        assert "not for" in first_screen
        assert "kubelet" in first_screen

    def test_draws_the_machine_that_runs(self) -> None:
        """The drawing is the output of `claimlet diagram`."""
        (drawing,) = re.findall(r"^```mermaid\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

        assert drawing == draw("mermaid")

    def test_shows_manifests_that_are_understood(self) -> None:
        """The tour's pod and claim can be asked for as they stand there."""
        (text,) = re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        pod, claim = yaml.safe_load_all(text)

        (entry,) = decode_pod(pod).claims
        allocation = decode_claim(claim, honour_skips=True).allocation

        assert entry.claim_name == claim["metadata"]["name"]
        assert allocation is not None
        assert [device.device for device in allocation.devices] == ["gpu-0"]

    def test_names_only_commands_that_exist(self) -> None:
        """Every command line in the README begins with a command of the program."""
        named = set(re.findall(r"(?:\$ |`)(?:\.venv/bin/|kubectl )?claimlet ([a-z]+)", README))

        assert named
        assert named <= set(COMMANDS)
