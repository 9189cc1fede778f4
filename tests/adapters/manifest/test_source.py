"""The manifest directory on a real file system, with the engine on a fake log."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.adapters.kubernetes.test_wishes import claim, pod
from tests.simulation.rig import Rig

from claimlet.adapters.manifest import ManifestSource
from claimlet.config.settings import Settings, load_settings
from claimlet.engine.errors import UsageError

_SCAN_SECONDS = 0.05


def _settings(directory: Path, scan_seconds: float = _SCAN_SECONDS) -> Settings:
    flags = {
        "node": "node-a",
        "manifest.directory": directory,
        "manifest.scan_seconds": scan_seconds,
    }
    return load_settings(flags=flags, environ={}).settings


async def until(is_so: Callable[[], Any], what: str) -> Any:
    """Return what *is_so* gives once it is true."""
    try:
        async with asyncio.timeout(10):
            while not (value := is_so()):  # noqa: ASYNC110 -- files and threads tell nobody
                await asyncio.sleep(0.005)
            return value
    except TimeoutError:
        raise AssertionError(f"still not: {what}") from None


class Desk:
    """A directory, the source that watches it, and the node that it talks to."""

    def __init__(self, path: Path, *, scan_seconds: float = _SCAN_SECONDS) -> None:
        self.path = path
        self.rig = Rig()
        self.rig.settings = msgspec.structs.replace(
            self.rig.settings, retry_first_seconds=0.02, call_timeout_seconds=0.5
        )
        self.source: ManifestSource
        self._scan_seconds = scan_seconds

    @asynccontextmanager
    async def started(self, *, boot: str = "") -> AsyncIterator[None]:
        """Run the service's part of it; it can be started again."""
        self.rig.boot = boot or self.rig.boot
        await self.rig.start(sources=["control"])
        settings = _settings(self.path, self._scan_seconds)
        self.source = ManifestSource(settings, self.rig.loop, world=self.rig.world)
        try:
            async with self.source:
                yield
        finally:
            errors = list(self.rig.world.errors)
            await self.rig.kill()
        assert not errors

    def write(self, name: str, *documents: Any, mode: int = 0o644) -> None:
        """Put *documents* into the file *name* at once, as whoever knows how does it."""
        data = documents[0] if isinstance(documents[0], bytes) else b""
        data = data or b"\n---\n".join(msgspec.json.encode(d) for d in documents)
        new = self.path / f".{name}.new"
        new.write_bytes(data)
        new.chmod(mode)
        new.replace(self.path / name)

    def pod(self, number: int, *, uid: str = "") -> None:
        """Write pod *number* with a claim of its own."""
        self.write(
            f"p{number}.yaml",
            pod(f"p{number}", f"c{number}", uid=uid),
            claim(f"c{number}", uid=uid, devices=f"gpu.example.com/pool/dev{number}"),
        )

    def remove(self, *numbers: int) -> None:
        """Remove the files of pods."""
        for number in numbers:
            (self.path / f"p{number}.yaml").unlink()

    async def prepared(self, *numbers: int) -> None:
        """Wait until the claims of pods are prepared."""
        for n in numbers:
            await until(partial(self._is, n, "prepared"), f"c{n} prepared")

    async def unprepared(self, *numbers: int) -> None:
        """Wait until the claims of pods are unprepared."""
        for n in numbers:
            await until(partial(self._is, n, "unprepared"), f"c{n} unprepared")

    def _is(self, number: int, state: str) -> bool:
        return self.state(number) == state

    def state(self, number: int) -> str:
        """Return the phase of a pod's claim."""
        return self.rig.state(f"c{number}")

    async def scans(self) -> None:
        """Wait for as many scans as would be enough to unprepare something."""
        await self._scanned(4)

    async def _scanned(self, times: int) -> None:
        directory, seen = self.source._directory, 0
        scan = directory.scan

        def counted() -> Any:
            nonlocal seen
            try:
                return scan()
            finally:
                seen += 1

        directory.scan = counted  # type: ignore[method-assign]
        await until(lambda: seen > times, "scans")
        directory.scan = scan  # type: ignore[method-assign]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    directory = tmp_path / "manifests"
    directory.mkdir()
    return Desk(directory)


class TestFiles:
    """What appears, changes and goes."""

    async def test_a_file_is_a_standing_wish(self, desk: Desk) -> None:
        """A file that appears is prepared; one that is gone in two complete scans unprepared."""
        async with desk.started():
            desk.pod(1)
            desk.pod(2)
            await desk.prepared(1, 2)
            desk.remove(1)
            await desk.unprepared(1)

            assert desk.state(2) == "prepared"
            assert [f.source for f in desk.rig.facts("prepare_requested")] == ["manifest"] * 2
            assert [f.reason for f in desk.rig.facts("unprepare_requested")] == ["manifest removed"]

    async def test_the_last_of_one_pod_may_go(self, desk: Desk) -> None:
        """One pod that is missing is gone: only several at once are suspicious."""
        async with desk.started():
            desk.pod(1)
            await desk.prepared(1)
            desk.remove(1)
            await desk.unprepared(1)

    async def test_changes_are_seen_without_a_scan(self, tmp_path: Path) -> None:
        """The kernel tells of changes; nobody waits for the next regular scan."""
        desk = Desk(tmp_path, scan_seconds=600)
        async with desk.started():
            desk.pod(1)
            await desk.prepared(1)

    async def test_a_file_is_requested_once(self, desk: Desk) -> None:
        """Scans, touches and restarts in one boot add no fact; another boot adds one."""
        desk.pod(1)
        async with desk.started():
            await desk.prepared(1)
            (desk.path / "p1.yaml").touch()
            await desk.scans()
        async with desk.started():
            await desk.scans()

            assert len(desk.rig.facts("prepare_requested")) == 1
            assert desk.rig.gpu.count("prepare") == 1
        async with desk.started(boot="boot-2"):
            await until(lambda: desk.rig.gpu.count("prepare") == 2, "prepared again")
            await desk.prepared(1)
            await desk.scans()

            assert len(desk.rig.facts("prepare_requested")) == 2
            assert desk.rig.gpu.count("prepare") == 2

    async def test_a_changed_file_is_a_changed_wish(self, desk: Desk) -> None:
        """A pod that gets another claim has it prepared; the pod stays the same."""
        async with desk.started():
            desk.pod(1)
            await desk.prepared(1)
            documents = [pod("p1", "c1", "c2"), claim("c2", devices="gpu.example.com/pool/dev2")]
            desk.write("p1.yaml", *documents, claim("c1", devices="gpu.example.com/pool/dev1"))
            await desk.prepared(2)

            assert len(desk.rig.node.pods) == 1
            assert desk.rig.gpu.ledger == [("prepare", ("c1",)), ("prepare", ("c2",))]

    async def test_another_pod_of_the_name_is_another_pod(self, desk: Desk) -> None:
        """A new UID in the file ends the old pod, then the new one is prepared (rule 4)."""
        async with desk.started():
            desk.pod(1, uid="u1")
            await desk.prepared(1)
            desk.pod(1, uid="u2")
            await until(lambda: "u2" in desk.rig.node.pods, "the new pod")
            await desk.prepared(1)

            assert "u1" not in desk.rig.node.pods
            assert [method for method, _ in desk.rig.gpu.ledger] == [
                "prepare",
                "unprepare",
                "prepare",
            ]

    async def test_pod_and_claim_may_lie_apart(self, desk: Desk) -> None:
        """All files are one set of objects; a pod waits for the file of its claim."""
        async with desk.started():
            desk.write("pod.json", pod("p1", "c1"))
            await until(lambda: desk.rig.node.refusals, "refused")
            desk.write("claim.yml", claim("c1"))
            await desk.prepared(1)

    async def test_other_files_are_nobodys_business(self, desk: Desk) -> None:
        """Names that begin with a dot, other suffixes and directories are not looked at."""
        desk.pod(1)
        for name in (".p2.yaml", "p2.yaml~", "README.md"):
            desk.write(name, pod("p2"))
        (desk.path / "more").mkdir()
        async with desk.started():
            await desk.prepared(1)
            await desk.scans()

            assert [p.ref.name for p in desk.rig.node.pods.values()] == ["p1"]

    async def test_an_object_in_two_files_is_told_once(self, desk: Desk) -> None:
        """The first file by name has it; a line says so, not one for each scan."""
        desk.pod(1)
        desk.write("p2.yaml", pod("p1"))
        with capture_logs() as logs:
            async with desk.started():
                await desk.prepared(1)
                await desk.scans()

        assert [e["object"] for e in logs if e["event"] == "manifest_twice"] == [
            "p2.yaml: pod ml/p1"
        ]


class TestBrokenFiles:
    """Files that cannot be used."""

    @pytest.mark.parametrize(
        "content",
        [b"kind: Pod\nmetadata: {", b"", b"kind: Deployment", b"\0", b"kind: Pod\na: &a *a"],
    )
    async def test_keep_their_last_good_content(self, desk: Desk, content: bytes) -> None:
        """A file that no longer parses unprepares nothing; one that does again is taken again."""
        async with desk.started():
            desk.pod(1)
            desk.pod(2)
            await desk.prepared(1, 2)
            desk.write("p1.yaml", content)
            await desk.scans()

            assert desk.state(1) == "prepared"
            desk.pod(1)
            await desk.scans()

            assert desk.state(1) == "prepared"
            assert desk.rig.gpu.count("unprepare") == 0

    async def test_may_stand_for_what_is_missing_after_a_restart(self, desk: Desk) -> None:
        """Nobody knows what a file had that could never be read here: its pod is kept."""
        desk.pod(1)
        desk.pod(2)
        desk.pod(3)
        async with desk.started():
            await desk.prepared(1, 2, 3)
        desk.write("p1.yaml", b"kind: Pod\nmetadata: {")
        async with desk.started():
            await until(lambda: "manifest" in desk.rig.node.synced, "in sync")
            await desk.scans()

            assert desk.state(1) == "prepared"
            desk.remove(2)
            await desk.unprepared(2)

            assert desk.state(1) == "prepared"
            desk.remove(1)
            await desk.unprepared(1)

    async def test_hold_up_nobody(self, desk: Desk) -> None:
        """Beside a broken file others come and go as always."""
        desk.write("broken.yaml", b"{")
        (desk.path / "dangling.yaml").symlink_to("nowhere")
        (desk.path / "directory.yaml").mkdir()
        async with desk.started():
            desk.pod(1)
            desk.pod(2)
            await desk.prepared(1, 2)
            desk.remove(1)
            await desk.unprepared(1)

            assert desk.state(2) == "prepared"

    async def test_are_told_once(self, desk: Desk) -> None:
        """One line says what is wrong with a file, not one for each scan."""
        desk.write("broken.yaml", b"kind: Pod\nmetadata: {")
        with capture_logs() as logs:
            async with desk.started():
                await desk.scans()
        told = [entry for entry in logs if entry["event"] == "manifest_refused"]

        assert len(told) == 1
        assert "line" in told[0]["error"]

    async def test_files_that_everybody_may_write_are_not_taken(self, desk: Desk) -> None:
        """What everybody may write is no word of an operator."""
        async with desk.started():
            desk.write("p1.yaml", pod("p1"), mode=0o666)
            desk.pod(2)
            await desk.prepared(2)

            assert len(desk.rig.node.pods) == 1


class TestRefusedPods:
    """Pods that do not pass validation."""

    async def test_are_offered_again(self, desk: Desk) -> None:
        """A pod that waits for its driver is prepared as soon as that registers."""
        driver = desk.rig.gpu.driver
        del desk.rig.drivers[driver]
        desk.pod(1)
        async with desk.started():
            await until(lambda: desk.rig.node.refusals, "refused")
            desk.rig.arrive(driver)
            await desk.prepared(1)

    @pytest.mark.parametrize("namespace", ["ml", "No.Such"])
    async def test_are_offered_with_backoff(self, desk: Desk, namespace: str) -> None:
        """A pod that is refused for good is asked for ever less while its file is there."""
        document = pod("p1", "missing")
        document["metadata"]["namespace"] = namespace
        desk.write("p1.yaml", document)
        with capture_logs() as logs:
            async with desk.started():
                await desk.scans()
                await desk.scans()
                told = [entry for entry in logs if entry["event"] == "manifest_pod_refused"]

                assert 1 <= len(told) <= 3
                assert len(desk.source._offers) == 1
                desk.remove(1)
                await desk.scans()

                assert not desk.source._offers


class TestDirectory:
    """The directory itself."""

    async def test_may_come_later(self, tmp_path: Path) -> None:
        """A directory that is not there yet is waited for; until then the source is not in sync."""
        desk = Desk(tmp_path / "later")
        async with desk.started():
            await desk.scans()

            assert "manifest" not in desk.rig.node.synced
            desk.path.mkdir()
            desk.pod(1)
            await desk.prepared(1)

            assert "manifest" in desk.rig.node.synced

    @pytest.mark.parametrize("how", ["removed", "replaced", "emptied", "unmounted"])
    async def test_that_vanishes_unprepares_nothing(self, desk: Desk, how: str) -> None:
        """A directory that is gone, another one, or an empty one is no word about its pods."""
        desk.pod(1)
        desk.pod(2)
        away = desk.path.with_name("away")
        async with desk.started():
            await desk.prepared(1, 2)
            if how == "emptied":
                desk.remove(1, 2)
            else:
                desk.path.rename(away)
            if how == "replaced":
                desk.path.mkdir()
                desk.pod(2)
            if how == "unmounted":
                desk.path.mkdir()
            await until(lambda: not desk.source.is_in_sync, "out of sync")
            await desk.scans()

            assert [desk.state(1), desk.state(2)] == ["prepared", "prepared"]
            assert not desk.source.is_in_sync

    async def test_that_has_all_pods_is_confirmed(self, desk: Desk) -> None:
        """Once every pod is there again a missing file means something again."""
        desk.pod(1)
        desk.pod(2)
        async with desk.started():
            await desk.prepared(1, 2)
            desk.path.rename(desk.path.with_name("away"))
            desk.path.mkdir()
            await until(lambda: not desk.source.is_in_sync, "out of sync")
            desk.pod(1)
            desk.pod(2)
            await until(lambda: desk.source.is_in_sync, "in sync")
            desk.remove(1)
            await desk.unprepared(1)

            assert desk.state(2) == "prepared"
            assert desk.rig.gpu.count("prepare") == 2

    async def test_operators_may_end_what_is_missing(self, desk: Desk) -> None:
        """Pods that an operator unprepares by hand are no longer waited for."""
        desk.pod(1)
        desk.pod(2)
        async with desk.started():
            await desk.prepared(1, 2)
            desk.remove(1, 2)
            await until(lambda: not desk.source.is_in_sync, "out of sync")
            for uid in list(desk.rig.node.pods):
                await desk.rig.unprepare(uid, passes_seconds=0)
            await desk.unprepared(1, 2)
            await until(lambda: desk.source.is_in_sync, "in sync")

    @pytest.mark.scenario("R11", "R12")
    async def test_is_asked_before_anything_is_prepared(self, desk: Desk) -> None:
        """A pod that went while the service was down, half prepared, is not prepared any more."""
        desk.pod(1)
        desk.pod(2)
        desk.rig.gpu.fault = lambda *_: {}
        async with desk.started():
            await until(lambda: desk.rig.gpu.count("prepare") >= 2, "asked")
        desk.rig.gpu.fault = lambda *_: None
        desk.remove(1)
        before = desk.rig.gpu.count("prepare")
        async with desk.started():
            await desk.unprepared(1)
            await desk.prepared(2)
            asked = [
                claims for method, claims in desk.rig.gpu.ledger[before:] if method == "prepare"
            ]

            assert ("c1",) not in asked[1:]

    async def test_that_everybody_may_write_is_refused(self, desk: Desk) -> None:
        """What lies there is done with drivers' power: the service does not start on it."""
        desk.path.chmod(0o777)

        with pytest.raises(UsageError, match="can be written by everybody") as caught:
            async with desk.started():
                pass

        assert "chmod o-w" in caught.value.hint
        await desk.rig.kill()

    async def test_that_everybody_may_write_later_is_not_read(self, desk: Desk) -> None:
        """A directory that is opened while it is watched says nothing any more."""
        desk.pod(1)
        async with desk.started():
            await desk.prepared(1)
            desk.path.chmod(0o777)
            desk.remove(1)
            desk.pod(2)
            await until(lambda: not desk.source.is_in_sync, "out of sync")
            await desk.scans()

            assert desk.state(1) == "prepared"
            assert len(desk.rig.node.pods) == 1

    async def test_that_is_a_file_is_refused(self, tmp_path: Path) -> None:
        """A file is no directory of files."""
        path = tmp_path / "file"
        path.write_text("kind: Pod")

        desk = Desk(path)

        with pytest.raises(UsageError, match="is no directory"):
            async with desk.started():
                pass

        await desk.rig.kill()
