"""`claimlet env`: exports that a NATS client can use, and no secret among them."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path

import nats
import pytest

from claimlet.adapters.cli import invoke
from claimlet.adapters.service.addresses import server_settings
from claimlet.config.settings import load_settings
from claimlet.events.server.process import EmbeddedServer


def exports(text: str) -> dict[str, str]:
    lines = [shlex.split(line, comments=True) for line in text.splitlines()]
    assert all(words[0] == "export" for words in lines if words)
    return dict(word.split("=", 1) for words in lines if words for word in words[1:])


class TestEnv:
    async def test_leads_a_client_to_the_running_server(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """With the exports alone a client connects as the reader."""
        settings = load_settings(flags={"state_dir": str(tmp_path), "node": "n1"}, environ={})
        async with EmbeddedServer(server_settings(settings.settings)):
            arguments = ["env", "--state-dir", str(tmp_path), "--node", "n1"]
            assert await asyncio.to_thread(invoke, arguments) == 0
            printed = capsys.readouterr().out

            given = exports(printed)
            client = await nats.connect(given["NATS_URL"], nkeys_seed=given["NATS_NKEY"])
            await client.close()

        assert "SU" not in printed

    def test_names_an_existing_server(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """A configured server is named as configured; without a seed there is no key."""
        monkeypatch.setenv("CLAIMLET_LOG__URL", "nats://h:1")
        monkeypatch.setenv("CLAIMLET_LOG__KEYS_DIR", str(tmp_path))

        assert invoke(["env", "--as", "operator"]) == 0
        assert exports(capsys.readouterr().out) == {"NATS_URL": "nats://h:1"}
        (tmp_path / "operator.nk").touch()
        assert invoke(["env", "--as", "operator"]) == 0
        assert exports(capsys.readouterr().out)["NATS_NKEY"] == str(tmp_path / "operator.nk")

    def test_lends_a_reader_of_one_namespace(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """Who is configured is lent; the writer's and the admin's keys are not."""
        monkeypatch.setenv("CLAIMLET_LOG__URL", "nats://h:1")
        monkeypatch.setenv("CLAIMLET_LOG__KEYS_DIR", str(tmp_path))
        monkeypatch.setenv("CLAIMLET_LOG__NAMESPACE_READERS", '{"dash": "team-a"}')
        (tmp_path / "reader-dash.nk").touch()

        assert invoke(["env", "--as", "reader-dash"]) == 0
        out = capsys.readouterr().out
        assert exports(out)["NATS_NKEY"] == str(tmp_path / "reader-dash.nk")
        assert "_INBOX.reader-dash" in out
        for user in ("writer", "admin", "reader-x"):
            assert invoke(["env", "--as", user]) == 2
            assert "--as one of: reader, operator, reader-dash" in capsys.readouterr().err

    def test_says_that_no_server_runs(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """Without a server there is nothing to point at: exit 4."""
        assert invoke(["env", "--state-dir", str(tmp_path)]) == 4
        assert capsys.readouterr().err.startswith("error: no log server of node ")
