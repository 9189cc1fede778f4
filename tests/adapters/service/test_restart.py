"""Restarts and reboots of the real process (rule R1, rule 5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.adapters.service.bench import Bench, Case, bench_in
from tests.adapters.service_process import BOOTS, ServiceProcess, short_directory

from claimlet.adapters.service.boot import read_boot_id
from claimlet.engine.errors import UsageError
from claimlet.engine.views import ClaimView

_DRIVERS = ("a.example.com", "b.example.com")


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with bench_in(drivers=_DRIVERS) as bench:
        yield bench


def _views(case: Case) -> list[ClaimView]:
    return [c for c in case.bench.service.claims().values() if c.name in case.claims]


def _devices(case: Case) -> dict[str, list[Any]]:
    """Return what the service answers: each claim's devices, driver by driver."""
    return {claim.name: [d.devices for d in claim.drivers] for claim in _views(case)}


def _states(case: Case) -> set[str]:
    return {claim.state for claim in _views(case)}


def _calls(case: Case, method: str) -> list[int]:
    """Return how often each driver was called."""
    return [len(case.bench.drivers[d].calls(method, case.claims[0])) for d in case.drivers]


def _reboot(bench: Bench) -> None:
    bench.service.reboot(str(uuid4()))


class TestRestart:
    """The process starts again, the node does not."""

    @pytest.mark.scenario("R01", "R05", "Q05", "G05")
    @pytest.mark.field(10, 21)
    @pytest.mark.rule("R1", "R12")
    def test_in_one_boot_calls_nobody(self, bench: Bench) -> None:
        """Stopped or killed, again and again: same answer, no call, and teardown is not lost."""
        case = bench.case(claims=2, drivers=2)
        case.prepared()
        before = _devices(case)
        for driver in bench.drivers.values():
            driver.kill()
        for start in (bench.service.restart, bench.service.crash, bench.service.crash):
            start()

            assert _devices(case) == before, "answered before any driver is back"
            assert _states(case) == {"prepared"}
        for driver in bench.drivers.values():
            driver.up()
        case.prepared()

        assert _calls(case, "prepare") == [1, 1]
        case.unprepared()
        assert _calls(case, "unprepare") == [1, 1]
        case.check()

    @pytest.mark.scenario("R08", "R09", "G04")
    def test_while_a_driver_fails_goes_on(self, bench: Bench) -> None:
        """What failed before the start is tried after it, until the driver recovers."""
        case = bench.case(drivers=2)
        for method, order in (("prepare", case.prepare), ("unprepare", case.unprepare)):
            case.fault(method, fail="not now", times=None)
            answer: Any = order()
            case.until_owed("driver_error")
            bench.service.crash()
            case.until_owed("driver_error")
            case.driver.script(devices=case.devices)
            answer.result(30)

        assert _states(case) == {"unprepared"}
        case.check()


class TestReboot:
    """The node boots: what drivers did may not have survived."""

    @pytest.mark.scenario("R04")
    @pytest.mark.field(19, 21, 45)
    @pytest.mark.rule("R1", "R12")
    def test_asks_once_more_when_the_pod_is_wanted_again(self, bench: Bench) -> None:
        """Devices are answered before any driver is back; then one call per claim, and no other."""
        case = bench.case(claims=3, drivers=2)
        case.prepared()
        before = _devices(case)
        for _ in range(2):
            _reboot(bench)

            assert _devices(case) == before
            assert _states(case) == {"needs-reprepare-after-boot"}
            assert [p.state for p in bench.service.state().pods] == ["request-again"]
        for driver in bench.drivers.values():
            driver.up()
        # Boot alone calls nobody: the sandbox is made again first.
        bench.service.restart()

        assert _calls(case, "prepare") == [1, 1]
        for _ in range(3):
            case.prepared()
            bench.service.crash()

        assert _calls(case, "prepare") == [2, 2]
        assert _devices(case) == before
        assert all(file.exists() for file in _cdi_files(case)), "written again"
        case.unprepared()
        case.check()

    @pytest.mark.scenario("R10", "U14")
    @pytest.mark.rule("R2")
    def test_then_no_pod_is_torn_down_from_the_log(self, bench: Bench) -> None:
        """A pod that is not wanted after the boot is unprepared without another prepare."""
        case = bench.case(drivers=2)
        case.prepared()
        _reboot(bench)
        answer = case.unprepare()
        for driver in bench.drivers.values():
            driver.up()
        case.check_unprepared(answer.result(30))

        assert _calls(case, "prepare") == [1, 1]
        case.check()

    @pytest.mark.scenario("R06", "P20")
    def test_in_the_middle_of_a_prepare_is_a_boot_like_any_other(self, bench: Bench) -> None:
        """The open intent is void; the pod is prepared whole when it is wanted again."""
        case = bench.case(claims=2, drivers=2)
        case.fault("prepare", hang=True)
        answer = case.prepare(patience_seconds=60)
        case.until_called("prepare")
        _reboot(bench)
        for driver in bench.drivers.values():
            driver.up()
        # The command that waits asks again by itself, as kubelet's sync would.
        case.check_prepared(answer.result(60))
        case.unprepared()

        case.check()


class TestStartMode:
    """`reprepare_on = "start"`: what kubelet does."""

    @pytest.mark.scenario("R02")
    @pytest.mark.rule("R1")
    def test_asks_once_for_each_start(self) -> None:
        """After each start of the process a pod that is wanted again is prepared once."""
        settings = {"CLAIMLET_PREPARE__REPREPARE_ON": "start"}
        with bench_in(drivers=_DRIVERS[:1], settings=settings) as bench:
            case = bench.case(claims=2)
            case.prepared()
            for times in (2, 3):
                bench.service.restart()

                assert _states(case) == {"needs-reprepare-after-boot"}
                case.prepared()
                case.prepared()

                assert _calls(case, "prepare") == [times]
            case.unprepared()
            case.check()


class TestBootId:
    """The file that says which boot it is."""

    def test_is_the_kernels(self, tmp_path: Path) -> None:
        """One id, with or without a line's end."""
        file = tmp_path / "boot_id"
        for text in (f"{BOOTS[0]}\n", BOOTS[0], f"  {BOOTS[0]}\n\n"):
            file.write_text(text)

            assert read_boot_id(file) == BOOTS[0]

        assert read_boot_id(Path("/proc/sys/kernel/random/boot_id"))

    @pytest.mark.parametrize(
        "content",
        [b"", b"\n\n", b"two words", b"a.b", b"a\nb", b"\xff\xfe\0", b"x" * 65, b"x" * 1_000_000],
    )
    def test_is_not_guessed(self, tmp_path: Path, content: bytes) -> None:
        """What is no boot id would call drivers for nothing, or not call them."""
        file = tmp_path / "boot_id"
        file.write_bytes(content)

        with pytest.raises(UsageError, match="holds no boot id") as caught:
            read_boot_id(file)

        assert "--boot-id-file" in caught.value.hint

    @pytest.mark.parametrize("is_there", [True, False])
    def test_that_cannot_be_read_refuses_the_start(self, is_there: bool) -> None:
        """Malformed or missing: one line, a hint, exit code 2, and nothing is touched."""
        with short_directory() as directory:
            service = ServiceProcess(directory)
            if is_there:
                service.set_boot("no boot id")
            else:
                service.boot_id_file.unlink()
            service.start()

            assert service.wait() == 2
            said = service.said().splitlines()
            assert [line.partition(":")[0] for line in said] == ["error", "hint"]
            assert str(service.boot_id_file) in said[0]
            assert not service.state_dir.exists()


def _cdi_files(case: Case) -> list[Path]:
    """Return the CDI file of each claim and driver."""
    directory = case.bench.service.cdi_dir
    return [directory / f"{d}_{claim.uid}.json" for d in case.drivers for claim in _views(case)]
