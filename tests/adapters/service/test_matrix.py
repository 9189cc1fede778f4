"""The matrix of faults that maintainers have asked for, with real processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.adapters.service.bench import Bench, Case, bench_in


@pytest.fixture(scope="module")
def bench() -> Iterator[Bench]:
    with bench_in() as bench:
        yield bench


@pytest.fixture(autouse=True)
def _tidy(bench: Bench) -> Iterator[None]:
    yield
    for driver in bench.drivers.values():
        driver.script()
        if not driver.is_running:
            driver.up()


def _fail_once(case: Case, method: str, order: Callable[[], Any]) -> Any:
    case.fault(method, fail="device is busy")
    return order()


def _driver_absent(case: Case, method: str, order: Callable[[], Any]) -> Any:
    name = case.driver.name
    case.bench.kill_driver(name)
    if method == "prepare":
        (pod,) = case.prepare(patience_seconds=0.1).result(30)
        assert pod.state == "refused"
        assert f"needs the driver {name}, which is not registered" in pod.reasons[0]
    answer = order()
    if method == "unprepare":
        case.until_owed("UNAVAILABLE")
    case.driver.up()
    return answer


def _service_killed(case: Case, method: str, order: Callable[[], Any]) -> Any:
    case.fault(method, delay_seconds=0.3)
    answer = order()
    case.until_called(method)
    case.bench.service.crash()
    return answer


def _driver_restarted(case: Case, method: str, order: Callable[[], Any]) -> Any:
    case.fault(method, hang=True)
    answer = order()
    case.until_called(method)
    case.bench.restart_driver(case.driver.name)
    return answer


def _server_killed(case: Case, method: str, order: Callable[[], Any]) -> Any:
    case.fault(method, delay_seconds=0.3)
    answer = order()
    case.until_called(method)
    case.bench.kill_server()
    return answer


FAULTS = {
    "fail-once": _fail_once,
    "driver-absent": _driver_absent,
    "service-killed": _service_killed,
    "driver-restarted": _driver_restarted,
    "log-server-killed": _server_killed,
}


@pytest.mark.field(8, 9, 10, 11, 61)
@pytest.mark.rule("R2", "R3", "R11")
@pytest.mark.parametrize("claims", [1, 3], ids=["one-claim", "three-claims"])
@pytest.mark.parametrize("drivers", [1, 2], ids=["one-driver", "two-drivers"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", ["prepare", "unprepare"])
class TestMatrix:
    """{prepare, unprepare} x a fault x {one, two drivers} x {one, three claims}."""

    @pytest.mark.scenario("P08", "P09", "P27", "U08", "U12", "R06", "R07", "G12")
    def test_ends_well(
        self, bench: Bench, *, method: str, fault: str, drivers: int, claims: int
    ) -> None:
        """All claims end prepared, then unprepared; nothing is lost, leaked or unannounced."""
        case = bench.case(claims=claims, drivers=drivers)
        if method == "prepare":
            answer = FAULTS[fault](case, method, case.prepare)
            case.check_prepared(answer.result(30))
            case.unprepared()
        else:
            case.prepared()
            answer = FAULTS[fault](case, method, case.unprepare)
            case.check_unprepared(answer.result(30))

        case.check()


@pytest.mark.field(9, 11, 41, 42)
class TestOtherFaults:
    """What else drivers do, before and after they have acted."""

    @pytest.mark.parametrize("method", ["prepare", "unprepare"])
    @pytest.mark.parametrize("when", ["before", "after"])
    def test_a_driver_that_panics(self, bench: Bench, method: str, when: str) -> None:
        """A driver that dies in the call, before or after it acted, is asked again later."""
        case = bench.case(claims=3, drivers=2)
        if method == "unprepare":
            case.prepared()
        case.fault(method, panic=True, when=when)
        answer: Any = case.prepare() if method == "prepare" else case.unprepare()
        case.until_called(method)
        case.driver.wait()
        case.driver.up()

        if method == "prepare":
            case.check_prepared(answer.result(30))
            case.unprepared()
        else:
            case.check_unprepared(answer.result(30))
        case.check()

    @pytest.mark.scenario("P07", "U05")
    @pytest.mark.parametrize("method", ["prepare", "unprepare"])
    def test_a_driver_that_hangs(self, bench: Bench, method: str) -> None:
        """A call that is never answered ends with its deadline and is made again."""
        case = bench.case(drivers=2)
        if method == "unprepare":
            case.prepared()
        case.fault(method, hang=True)
        answer: Any = case.prepare() if method == "prepare" else case.unprepare()

        if method == "prepare":
            case.check_prepared(answer.result(30))
            case.unprepared()
        else:
            case.check_unprepared(answer.result(30))
        case.check()
        assert [f["code"] for f in case.failures()] == ["DEADLINE_EXCEEDED"]

    @pytest.mark.field(8)
    def test_a_driver_that_says_no_many_times(self, bench: Bench) -> None:
        """Only a yes per claim ends a debt; the driver's words are kept."""
        case = bench.case()
        case.prepared()
        case.fault("unprepare", fail="busy", times=2)
        case.unprepared()

        case.check()
        assert [f["text"] for f in case.failures()] == ["busy", "busy"]
        assert len(case.driver.calls("unprepare", case.claims[0])) == 3

    @pytest.mark.scenario("P04", "P05", "P06")
    @pytest.mark.field(42, 43)
    def test_one_claim_of_three_fails(self, bench: Bench) -> None:
        """What succeeded stays, what failed is asked for alone."""
        case = bench.case(claims=3)
        case.fault("prepare", fail="no such device")
        case.prepared()
        calls = [len(call["claims"]) for call in case.driver.calls("prepare", case.claims[0])]
        case.unprepared()

        assert calls == [3, 1]
        case.check()
