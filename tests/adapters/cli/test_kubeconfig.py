"""`claimlet drivers kubeconfig`: a file that leads a driver to the claims gateway."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from claimlet.adapters.cli import invoke


class TestKubeconfig:
    def test_is_there_before_the_first_run(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """A driver can be set up first; asked again, the answer is the same file."""
        arguments = ["drivers", "kubeconfig", "gpu.example.com", "--state-dir", str(tmp_path / "s")]
        texts = []
        for _ in range(2):
            assert invoke(arguments) == 0
            texts.append(Path(capsys.readouterr().out.strip()).read_text())

        assert texts[0] == texts[1]
        assert yaml.safe_load(texts[0])["users"][0]["name"] == "gpu.example.com"
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700

    def test_a_wrong_name_is_a_usage_error(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """A name that no driver can have is told in one line."""
        assert invoke(["drivers", "kubeconfig", "../x", "--state-dir", str(tmp_path)]) == 2
        assert "no driver name" in capsys.readouterr().err

    def test_without_a_gateway_there_is_none(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> None:
        """Where the gateway is off nothing would answer."""
        monkeypatch.setenv("CLAIMLET_GATEWAY__ENABLED", "false")

        assert invoke(["drivers", "kubeconfig", "a.example", "--state-dir", str(tmp_path)]) == 2
        assert "gateway is off" in capsys.readouterr().err
