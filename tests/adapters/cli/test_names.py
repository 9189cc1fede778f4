"""Names of claims, pods and drivers on the command line, and how a shell completes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.cli.node import Node
from tests.adapters.service_process import eventually

from claimlet.adapters.cli.names import split_name
from claimlet.engine.errors import UsageError


class TestSplit:
    @pytest.mark.parametrize(
        ("text", "namespace", "expected"),
        [
            ("ml/a", None, ("ml", "a")),
            ("ml/a", "ml", ("ml", "a")),
            ("a", "ml", ("ml", "a")),
            ("a", None, ("default", "a")),
        ],
    )
    def test_finds_namespace_and_name(
        self, text: str, namespace: str | None, *, expected: tuple[str, str]
    ) -> None:
        """NS/NAME, or NAME in -n's namespace, else in the default one."""
        assert split_name(text, namespace) == expected

    @pytest.mark.parametrize(
        ("text", "namespace"),
        [
            ("", None),
            ("/", None),
            ("/a", None),
            ("a/", None),
            ("a/b/c", None),
            ("a", ""),
            ("a/b", "c"),
        ],
    )
    def test_refuses_others(self, text: str, namespace: str | None) -> None:
        """What is no such name, or contradicts -n, cannot be meant."""
        with pytest.raises(UsageError):
            split_name(text, namespace)


def completed(*words: str, state_dir: Path) -> subprocess.CompletedProcess[str]:
    """Return what bash is offered for the last of *words*."""
    line = f"claimlet --state-dir {state_dir} --node node-a {' '.join(words)}"
    count = 5 + len(words) - 1
    return subprocess.run(
        [sys.executable, "-m", "claimlet"],
        env=os.environ
        | {"_CLAIMLET_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(count)},
        capture_output=True,
        text=True,
        check=True,
    )


class TestCompletion:
    def test_offers_what_is_there(self, node: Node) -> None:
        """Claims, pods and drivers, by what is typed so far, in -n's namespace if it is given."""
        node.prepared("shell", "shell-a")

        def offered(*words: str) -> list[str]:
            ran = completed(*words, state_dir=node.service.state_dir)
            assert not ran.stderr
            return [line.removeprefix("plain,") for line in ran.stdout.splitlines() if line]

        # On a busy machine the service may not answer within the moment that it is given.
        eventually(lambda: offered("claims", "get", "ml/shell") == ["ml/shell-a"], "a claim")
        eventually(lambda: offered("pod", "unprepare", "-n", "ml", "she") == ["shell"], "a pod")
        eventually(lambda: offered("drivers", "can-stop", "g") == ["gpu.demo"], "a driver")
        assert not offered("history", "claim", "other/")

    def test_is_silent_where_nobody_answers(self, tmp_path: Path) -> None:
        """A shell that completes has no place for an error."""
        ran = completed("claims", "get", "m", state_dir=tmp_path / "none")
        assert (ran.stdout.strip(), ran.stderr) == ("", "")
