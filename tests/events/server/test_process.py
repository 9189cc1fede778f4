"""The log's server: one per store, adopted, restarted, ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.events.helpers import eventually, freeze, mounted, settings_in, supervised

from claimlet.events.errors import (
    ClaimletError,
    LockHeldError,
    LogSetupError,
    ServerUnavailableError,
)
from claimlet.events.server import child, process, status
from claimlet.events.server.child import start_ticks
from claimlet.events.server.locks import hold
from claimlet.events.server.process import EmbeddedServer
from claimlet.events.server.status import greet


def is_alive(pid: int) -> bool:
    """Return whether *pid* runs; a zombie does not."""
    try:
        return b") Z" not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


def is_free(lock_file: Path) -> bool:
    """Return whether the lock can be taken."""
    try:
        hold(lock_file, owns="it").release()
    except LockHeldError:
        return False
    return True


@contextmanager
def orphan(state_dir: Path) -> Iterator[tuple[int, int]]:
    """Yield pid and port of a server whose service was killed with SIGKILL."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.events.server.parent", str(state_dir)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    ) as parent:
        assert parent.stdout is not None
        pid, port = map(int, parent.stdout.readline().split())
        parent.kill()
    try:
        yield pid, port
    finally:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run *command* for as long as the block lasts."""
    with subprocess.Popen(command) as child:
        yield child
        child.kill()


class TestStart:
    async def test_keeps_its_files_private(self, server: EmbeddedServer, tmp_path: Path) -> None:
        """The state directory and all that holds facts or keys is its owner's alone."""
        state = tmp_path / "state"

        for directory in (state, state / "js", state / "keys"):
            assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        for name in ("server.lock", "server.json", "server.conf"):
            assert stat.S_IMODE((state / name).stat().st_mode) == 0o600

    async def test_listens_on_the_loopback_only(self, server: EmbeddedServer) -> None:
        """Nothing of it can be reached from another host."""
        lines: list[str] = []
        for table in ("tcp", "tcp6"):
            lines += Path(f"/proc/{server.pid}/net/{table}").read_text().splitlines()
        listening = [line.split()[1] for line in lines if " 0A " in line]
        port = f":{server.port:04X}"

        assert [address for address in listening if address.endswith(port)] == [f"0100007F{port}"]
        assert server.monitor_url.startswith("http://127.0.0.1:")

    async def test_keeps_its_port(self, tmp_path: Path) -> None:
        """What the first start has chosen stays, so that settings of others stay right."""
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings) as first:
            port = first.port
        async with EmbeddedServer(settings) as second:
            assert second.port == port

    async def test_takes_another_port_where_a_stranger_has_its_own(self, tmp_path: Path) -> None:
        """A port is no reason not to start."""
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings) as first:
            port = first.port
        with socket.create_server(("127.0.0.1", port)):
            async with EmbeddedServer(settings) as second:
                assert second.port != port
        assert json.loads(settings.status_file.read_bytes())["port"] == second.port

    async def test_takes_any_name_of_a_directory(self, tmp_path: Path) -> None:
        """Blanks and quotes in the path reach the server as they are."""
        state = tmp_path / 'a "state" \\ dir ü'
        async with EmbeddedServer(settings_in(state)):
            assert (state / "js" / "jetstream").is_dir()

    async def test_does_not_forget_a_broken_configuration(self, tmp_path: Path) -> None:
        """What the server says is wrong is in the error."""
        settings = settings_in(tmp_path / "state", template="listen: nonsense {{ port }} }")

        with pytest.raises(ServerUnavailableError, match=r"ended at once: .*Parse error") as caught:
            await EmbeddedServer(settings).start()

        assert caught.value.exit_code == 4

    async def test_says_that_the_program_is_none(self, tmp_path: Path) -> None:
        """A program that cannot be run is named."""
        program = tmp_path / "nats-server"
        program.write_bytes(b"\x7fELF nonsense")
        program.chmod(0o755)

        with pytest.raises(ServerUnavailableError, match="nats-server cannot be run"):
            await EmbeddedServer(settings_in(tmp_path / "state", program=program)).start()

    async def test_refuses_a_directory_that_others_can_write_to(self, tmp_path: Path) -> None:
        """Somebody named /tmp, for example; nothing is changed there."""
        tmp_path.chmod(0o777)

        with pytest.raises(LogSetupError, match="others can write"):
            await EmbeddedServer(settings_in(tmp_path)).start()

        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("options", ["ro", "size=16k", "size=40k"])
    async def test_says_that_the_directory_cannot_be_used(
        self, tmp_path: Path, options: str
    ) -> None:
        """Read-only or full: one line with the reason, and nothing keeps running."""
        state = tmp_path / "state"
        with mounted(state, options=f"{options},mode=700"):
            with pytest.raises(ClaimletError, match=r"read-only|no space") as caught:
                await EmbeddedServer(settings_in(state)).start()

            assert caught.value.exit_code == 4


class TestLock:
    async def test_a_second_server_on_a_store_is_impossible(self, tmp_path: Path) -> None:
        """The lock outlives a killed service, as long as its server runs."""
        settings = settings_in(tmp_path / "state")
        with orphan(settings.state_dir) as (pid, _):
            with pytest.raises(LockHeldError):
                hold(settings.lock_file, owns="the log")
            os.kill(pid, signal.SIGKILL)
            await eventually(lambda: is_free(settings.lock_file))

    async def test_a_lock_of_somebody_unknown_is_respected(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where nobody knows what holds the store, nothing is started on it."""
        monkeypatch.setattr(process, "_ADOPT_SECONDS", 0.2)
        settings = settings_in(tmp_path / "state")
        settings.state_dir.mkdir(mode=0o700)
        with hold(settings.lock_file, owns="the log"):
            with pytest.raises(LockHeldError, match=str(os.getpid())) as caught:
                await EmbeddedServer(settings).start()

            assert caught.value.exit_code == 6


class TestAdoption:
    async def test_takes_over_the_server_of_a_killed_service(self, tmp_path: Path) -> None:
        """The same process goes on; the new service ends it as its own."""
        settings = settings_in(tmp_path / "state")
        with orphan(settings.state_dir) as (pid, port):
            async with EmbeddedServer(settings) as server:
                assert (server.pid, server.port, server.is_adopted) == (pid, port, True)
                assert is_alive(pid)
            assert not is_alive(pid)

    async def test_ends_a_server_of_another_configuration(self, tmp_path: Path) -> None:
        """Changed settings hold from the next start on, whatever survived."""
        settings = settings_in(tmp_path / "state", max_file_store_bytes=2**28)
        with orphan(settings.state_dir) as (pid, port):
            async with EmbeddedServer(settings) as server:
                assert not is_alive(pid)
                assert (server.port, server.is_adopted) == (port, False)

    async def test_ends_a_server_that_does_not_answer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A stopped process is no server; it is killed and waited for."""
        monkeypatch.setattr(process, "_ADOPT_SECONDS", 0.2)
        monkeypatch.setattr(child, "_STOP_SECONDS", 0.2)
        monkeypatch.setattr(status, "_GREETING_SECONDS", 0.2)
        settings = settings_in(tmp_path / "state")
        with orphan(settings.state_dir) as (pid, _):
            await freeze(pid)
            async with EmbeddedServer(settings) as server:
                assert not is_alive(pid)
                assert server.pid != pid

    async def test_leaves_a_stranger_with_the_old_number_alone(self, tmp_path: Path) -> None:
        """A pid that now belongs to another process is not signalled."""
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings):
            pass
        with running(["sleep", "60"]) as stranger:
            known = json.loads(settings.status_file.read_bytes())
            known |= {"pid": stranger.pid, "start_ticks": start_ticks(stranger.pid)}
            settings.status_file.write_text(json.dumps(known))
            async with EmbeddedServer(settings):
                pass

            assert stranger.poll() is None

    @pytest.mark.parametrize(
        "content", [b"", b"{", b'{"pid":"x"}', b'{"pid":-5,"start_ticks":1,"digest":""}']
    )
    async def test_starts_over_a_status_file_that_says_nothing(
        self, tmp_path: Path, content: bytes
    ) -> None:
        """A broken status file loses the port, not the log."""
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings):
            pass
        settings.status_file.write_bytes(content)
        async with EmbeddedServer(settings) as server:
            assert await greet(server.port) is not None


class TestSupervise:
    async def test_starts_a_dead_server_again(self, tmp_path: Path) -> None:
        """The same port, and the service hears of it."""
        heard: list[str] = []
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings, changed=heard.append) as server, supervised(server):
            first, port = server.pid, server.port
            os.kill(first, signal.SIGKILL)
            await eventually(lambda: len(heard) == 2)

            assert (server.pid != first, server.port) == (True, port)
            assert heard == [
                "the log's server has ended and is started again",
                f"the log's server answers on port {port}",
            ]

    async def test_starts_an_adopted_one_again(self, tmp_path: Path) -> None:
        """Its end is noticed although it is nobody's child."""
        settings = settings_in(tmp_path / "state")
        with orphan(settings.state_dir) as (pid, port):
            async with EmbeddedServer(settings) as server, supervised(server):
                os.kill(pid, signal.SIGKILL)
                await eventually(lambda: server.pid != pid)

                assert (server.port, server.is_adopted) == (port, False)

    async def test_goes_on_trying(self, tmp_path: Path) -> None:
        """A start that fails is told and made again."""
        heard: list[str] = []
        settings = settings_in(tmp_path / "state")
        async with EmbeddedServer(settings, changed=heard.append) as server, supervised(server):
            settings.conf_file.unlink()
            settings.conf_file.mkdir()
            os.kill(server.pid, signal.SIGKILL)
            await eventually(lambda: len(heard) >= 3)
            settings.conf_file.rmdir()
            await eventually(lambda: "answers" in heard[-1])

            assert "cannot be used" in heard[1]

    async def test_stop_ends_a_start_that_is_under_way(self, tmp_path: Path) -> None:
        """Whenever the service stops, no server is left behind."""
        settings = settings_in(tmp_path / "state")
        server = EmbeddedServer(settings)
        await server.start()
        task = asyncio.create_task(server.supervise())
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: server.pid == 0 or not is_alive(server.pid))
        await asyncio.sleep(0)
        await server.stop()
        await asyncio.wait_for(task, 5)

        hold(settings.lock_file, owns="the log").release()
