"""The settings: layers and their order, origins, and what is said about a bad value."""

from __future__ import annotations

from pathlib import Path

import pytest

from claimlet.config.settings import (
    DEFAULTS_FILE,
    Host,
    LoadedSettings,
    SettingsError,
    load_settings,
    setting_types,
)

ROOT_USER = Host(name="Worker-3.Example.com", is_root=True, home=Path("/root"))
PERSON = Host(name="laptop", is_root=False, home=Path("/home/ann"))


def load(
    *,
    flags: dict[str, object] | None = None,
    environ: dict[str, str] | None = None,
    file: Path | None = None,
    system_file: Path = Path("/nonexistent/config.toml"),
    host: Host = ROOT_USER,
) -> LoadedSettings:
    return load_settings(
        flags=flags, environ=environ or {}, file=file, system_file=system_file, host=host
    )


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


class TestLayers:
    def test_flag_wins_over_environment_over_file_over_system_file(self, tmp_path: Path) -> None:
        """A value comes from the first of flag, environment, --config, system file, defaults."""
        system = write(tmp_path / "system.toml", 'node = "e"\n[log]\nurl = "nats://e"\n')
        file = write(tmp_path / "file.toml", 'node = "d"\nroot = "/d"\n[gateway]\nport = 4\n')
        environ = {"CLAIMLET_NODE": "c", "CLAIMLET_ROOT": "/c"}

        loaded = load(flags={"node": "b"}, environ=environ, file=file, system_file=system)

        assert loaded.settings.node == "b"
        assert loaded.settings.root == Path("/c")
        assert loaded.settings.gateway.port == 4
        assert loaded.settings.log.url == "nats://e"
        assert loaded.settings.prepare.overlap == "wait"

    def test_keeps_the_origin_of_each_value(self, tmp_path: Path) -> None:
        """Each value knows its flag, variable or file."""
        file = write(tmp_path / "file.toml", "[gateway]\nport = 4\n")

        origins = load(
            flags={"state_dir": "/s"}, environ={"CLAIMLET_LOG__URL": "nats://x"}, file=file
        ).origins

        assert origins["state_dir"] == "--state-dir"
        assert origins["log.url"] == "$CLAIMLET_LOG__URL"
        assert origins["gateway.port"] == str(file)
        assert origins["prepare.overlap"] == "default"
        assert list(origins) == list(setting_types())

    def test_reads_the_environment_as_the_type_of_the_setting(self) -> None:
        """Numbers, switches, lists and tables can be written into the environment."""
        settings = load(
            environ={
                "CLAIMLET_GATEWAY__PORT": "8443",
                "CLAIMLET_GATEWAY__ENABLED": "false",
                "CLAIMLET_PREPARE__CALL_TIMEOUT_SECONDS": "2.5",
                "CLAIMLET_DRIVERS__ENDPOINT_MAP": '{"/in": "/out"}',
                "CLAIMLET_DRIVERS__CDI_DIRS": '["/etc/cdi"]',
            }
        ).settings

        assert settings.gateway.port == 8443
        assert settings.gateway.enabled is False
        assert settings.prepare.call_timeout_seconds == 2.5
        assert settings.drivers.endpoint_map == {"/in": "/out"}
        assert settings.drivers.cdi_dirs == ("/etc/cdi",)

    def test_leaves_variables_alone_that_kubernetes_sets(self) -> None:
        """A Service named claimlet puts variables with its name into every pod."""
        environ = {"CLAIMLET_SERVICE_HOST": "10.0.0.1", "CLAIMLET_PORT": "tcp://10.0.0.1:80"}

        assert load(environ=environ).origins == load().origins


class TestDefaults:
    def test_follows_the_machine(self) -> None:
        """Without a name and paths the machine gives them; the node is a DNS name."""
        settings = load().settings

        assert settings.node == "worker-3.example.com"
        assert settings.state_dir == Path("/var/lib/claimlet")
        assert settings.root == Path("/var/lib/claimlet/root")

    def test_keeps_a_person_out_of_the_system(self) -> None:
        """Without root the state lies in the person's own directory."""
        assert load(host=PERSON).settings.state_dir == Path("/home/ann/.local/state/claimlet")
        assert load(host=PERSON, environ={"XDG_STATE_HOME": "/x"}).settings.state_dir == Path(
            "/x/claimlet"
        )

    def test_puts_the_root_into_the_state_directory(self) -> None:
        """The kubelet's own root has to be named; the default is never it."""
        assert load(flags={"state_dir": "/s"}).settings.root == Path("/s/root")

    def test_makes_paths_absolute(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A path means the same after the service has changed its directory."""
        monkeypatch.chdir(tmp_path)

        assert load(flags={"state_dir": "s"}).settings.state_dir == tmp_path / "s"

    def test_are_all_in_the_file(self) -> None:
        """Every setting has its default, and a comment, in defaults.toml."""
        assert set(load().values()) == set(setting_types())
        assert "state_dir" in DEFAULTS_FILE.read_text("utf-8")


class TestBadValues:
    @pytest.mark.parametrize(
        ("environ", "text", "hint"),
        [
            ({"CLAIMLET_LOG__ULR": "x"}, "unknown setting log.ulr", "did you mean log.url?"),
            ({"CLAIMLET_NODE": "a_b"}, "$CLAIMLET_NODE: 'a_b' is no node name", "--node"),
            ({"CLAIMLET_GATEWAY__PORT": "x"}, "gateway.port: expected int, got str", ""),
            ({"CLAIMLET_GATEWAY__PORT": "70000"}, "gateway.port: expected int <= 65535", ""),
            ({"CLAIMLET_PREPARE__OVERLAP": "x"}, "invalid enum value 'x'", "one of: wait, record"),
            ({"CLAIMLET_DRIVERS__ENDPOINT_MAP": "{"}, "drivers.endpoint_map: ", ""),
            ({"CLAIMLET_ROOT": "/a\0b"}, "a path cannot hold a null byte", ""),
            ({"CLAIMLET_ROOT": "~nobody-here/x"}, "names a user that is not here", ""),
            ({"CLAIMLET_PREPARE__CALL_TIMEOUT_SECONDS": "0"}, "expected float > 0", ""),
            ({"CLAIMLET_PREPARE__RETRY_MAX_SECONDS": "0.1"}, "is above", ""),
        ],
    )
    def test_names_the_variable(self, environ: dict[str, str], text: str, hint: str) -> None:
        """The environment's bad value is told in one line with its variable, and what helps."""
        with pytest.raises(SettingsError) as caught:
            load(environ=environ)

        assert text in str(caught.value)
        assert "\n" not in str(caught.value)
        assert hint in caught.value.hint

    @pytest.mark.parametrize(
        ("toml", "text"),
        [
            ("node = 3\n", "node: expected str, got int"),
            ("[log]\nprot = 1\n", "unknown setting log.prot"),
            ("[lag]\nurl = ''\n", "unknown setting lag"),
            ("log = 1\n", "log is a section, not a value"),
            ("node = \n", "not TOML: "),
            ("root = 4\n", "root: expected a path, got int"),
            ("[prepare.unused_claims_per_driver]\na = 'x'\n", "invalid enum value 'x' (at [...])"),
            ("# " + "x" * 1024 * 1024, "larger than 1 MiB"),
        ],
    )
    def test_names_the_file(self, tmp_path: Path, toml: str, text: str) -> None:
        """A file's bad value is told in one line with the file's name."""
        file = write(tmp_path / "bad.toml", toml)

        with pytest.raises(SettingsError, match=r"bad\.toml") as caught:
            load(file=file)

        assert text in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_names_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        """A file that was asked for must exist."""
        with pytest.raises(SettingsError, match="No such file"):
            load(file=tmp_path / "none.toml")

    def test_refuses_a_file_that_is_not_text(self, tmp_path: Path) -> None:
        """Settings are UTF-8."""
        file = tmp_path / "bad.toml"
        file.write_bytes(b"node = '\xff'\n")

        with pytest.raises(SettingsError, match="not UTF-8"):
            load(file=file)
