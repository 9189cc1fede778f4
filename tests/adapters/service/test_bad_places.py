"""Where `claimlet run` cannot start, it says so in one line and a hint."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.adapters.service_process import NODE, ServiceProcess, short_directory
from tests.events.helpers import mounted

#: A start is refused within this time, or not at all.
_PATIENCE_SECONDS = 30.0


@pytest.fixture(scope="module")
def running() -> Iterator[ServiceProcess]:
    """Give a service that has its state directory and its root."""
    with short_directory() as directory, ServiceProcess(directory) as service:
        yield service


@pytest.fixture
def place() -> Iterator[Path]:
    """Give a directory whose sockets have short paths."""
    with short_directory() as directory:
        yield directory


def refused(*options: str, environ: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return exit code and error of a `claimlet run` that must end by itself, with a hint."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("CLAIMLET_")}
    ran = subprocess.run(
        [sys.executable, "-m", "claimlet", "run", "--node", NODE, *options],
        env=clean | dict(environ or {}),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    told = [line for line in ran.stderr.splitlines() if not line.startswith("{")]
    assert [line.partition(":")[0] for line in told] == ["error", "hint"], ran.stderr
    assert ran.stdout == ""
    return ran.returncode, told[0]


class TestTaken:
    def test_a_state_directory_has_one_service(self, running: ServiceProcess, place: Path) -> None:
        """A second service on it ends with 6; the first one does not notice."""
        code, error = refused("--state-dir", str(running.state_dir), "--root", str(place / "root"))

        assert code == 6
        assert str(running.state_dir) in error
        assert running.state().is_live

    def test_a_root_has_one_service(self, running: ServiceProcess, place: Path) -> None:
        """Two services would both call the drivers of one root."""
        code, error = refused("--state-dir", str(place / "state"), "--root", str(running.root))

        assert code == 6
        assert str(running.root) in error
        assert running.state().is_live

    def test_a_log_is_of_one_node(self, running: ServiceProcess, place: Path) -> None:
        """A log that another node has written is not gone on with."""
        running.stop()
        try:
            code, error = refused(
                *("--state-dir", str(running.state_dir), "--root", str(place / "root")),
                *("--node", "node-b"),
            )
        finally:
            running.up()

        assert code in (1, 4)
        assert "node" in error


class TestUnusable:
    @pytest.mark.parametrize("options", ["ro", "size=16k", "size=40k"])
    def test_a_state_directory_is_writable_and_has_room(self, place: Path, options: str) -> None:
        """Read-only or full: exit 4 with the reason."""
        with mounted(place / "state", options=f"{options},mode=700"):
            code, error = refused(
                "--state-dir", str(place / "state"), "--root", str(place / "root")
            )

        assert code == 4
        assert "read-only" in error or "no space" in error

    def test_a_state_directory_is_a_directory(self, place: Path) -> None:
        """A file in its place is named."""
        (place / "state").write_text("")
        code, error = refused("--state-dir", str(place / "state"))

        assert code == 4
        assert str(place / "state") in error

    def test_a_state_directory_is_its_owners(self, place: Path) -> None:
        """One that others can write to is not used."""
        (place / "state").mkdir()
        (place / "state").chmod(0o777)
        code, error = refused("--state-dir", str(place / "state"))

        assert code in (2, 4)
        assert "others can write to" in error
        assert list((place / "state").iterdir()) == []

    def test_a_server_program_is_there(self, place: Path) -> None:
        """A nats-server that is not there is named, with what brings one."""
        code, error = refused(
            *("--state-dir", str(place / "state")),
            environ={"CLAIMLET_LOG__NATS_SERVER": "/nowhere/nats-server"},
        )

        assert code == 4
        assert "/nowhere/nats-server" in error


class TestExistingServer:
    def test_that_does_not_answer(self, place: Path) -> None:
        """Exit 4 with its address."""
        code, error = refused(
            "--state-dir", str(place / "state"), environ={"CLAIMLET_LOG__URL": "nats://127.0.0.1:1"}
        )

        assert code == 4
        assert "nats://127.0.0.1:1" in error

    def test_that_does_not_let_the_writer_in(self, running: ServiceProcess, place: Path) -> None:
        """A server that asks for keys, and none or a wrong one is given."""
        url = f"nats://127.0.0.1:{port_of(running)}"
        (place / "keys").mkdir(mode=0o700)
        wrong = (running.state_dir / "keys/reader.nk").read_bytes()
        for name in ("admin", "writer", "service"):
            file = place / "keys" / f"{name}.nk"
            file.touch(mode=0o600)
            file.write_bytes(wrong)
        for environ in ({}, {"CLAIMLET_LOG__KEYS_DIR": str(place / "keys")}):
            code, error = refused(
                "--state-dir", str(place / "state"), environ={"CLAIMLET_LOG__URL": url} | environ
            )

            assert code == 4
            assert url in error or "permission" in error


def port_of(service: ServiceProcess) -> int:
    """Return the port of the service's own server."""
    from claimlet.events.server.status import read_status

    status = read_status(service.state_dir / "server.json")
    assert status is not None
    return status.port
