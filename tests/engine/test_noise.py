"""Repeats do not flood the log: failures, refusals and drivers that come and go (rule 16)."""

from __future__ import annotations

import itertools

import pytest
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.loop import LoopSettings
from claimlet.engine.outcome import Attempt, decide_unprepared
from claimlet.engine.plan import CallUnprepare
from claimlet.engine.ports import Failed
from claimlet.events.values import DriverName

GPU = "gpu.example.com"
NIC = "nic.example.com"
DAY = 86_400.0


class TestFailures:
    @simulated
    async def test_the_same_failure_is_recorded_ever_more_rarely(self) -> None:
        """A failure that repeats is recorded at attempts 1, 2, 4, 8 and so on, with its count."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare", "no such device")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=DAY)
        attempts = [fact.attempts for fact in rig.facts("driver_failed")]

        assert attempts == [2**n for n in range(len(attempts))]
        assert rig.gpu.count("prepare") > 1300

    @simulated
    async def test_numbers_in_a_text_are_no_news(self) -> None:
        """A text that differs in digits and hex runs only is the same text."""
        rig = await Rig().start()
        counter = itertools.count()
        rig.gpu.answers(
            "prepare",
            lambda claims: {
                c.uid: Failed(f"request {next(counter)} failed at 0xdead{next(counter)}beef")
                for c in claims
            },
        )
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=DAY / 24)
        attempts = [fact.attempts for fact in rig.facts("driver_failed")]

        assert attempts == [2**n for n in range(len(attempts))]

    @pytest.mark.parametrize("kinds", [2, 1000])
    @simulated
    async def test_news_are_bounded(self, kinds: int) -> None:
        """A text that is new each time says something new at most 8 times per operation."""
        rig = await Rig().start()
        words = itertools.cycle([_word(n) for n in range(kinds)])
        rig.gpu.answers("prepare", lambda claims: {c.uid: Failed(next(words)) for c in claims})
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=DAY)

        assert len(rig.facts("driver_failed")) <= 1 + 8 + 11

    @simulated
    async def test_counts_go_on_after_a_restart(self) -> None:
        """A restart goes on from the recorded attempts, so that it adds no facts of its own."""
        rig = await Rig().start()
        rig.gpu.refuses("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")), passes_seconds=600)
        before = len(rig.facts("driver_failed"))
        for _ in range(5):
            await rig.restart()
            await rig.passes(1)

        assert len(rig.facts("driver_failed")) == before

    @simulated
    async def test_a_late_yes_is_repeated_only_once(self) -> None:
        """A yes that is not final yet is recorded once, however often a sibling is retried."""
        rig = await Rig().start()
        rig.gpu.acts_late("prepare", 30.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0"), claim("c2", f"{GPU}/gpu-1")))
        rig.gpu.refuses("unprepare", only=["c2"])
        rig.gpu.refuses("prepare")
        await rig.unprepare("p1", passes_seconds=100)

        assert [fact.final for fact in rig.facts("driver_unprepared")] == [False, True]


class TestRefusals:
    @simulated
    async def test_the_same_refusal_is_recorded_ever_more_rarely(self) -> None:
        """A pod that is offered again and again is refused each time and recorded rarely."""
        rig = await Rig().start()
        wish = pod("p1", claim("c1", "missing.example.com/gpu-0"))
        for _ in range(100):
            await rig.refused(wish)
        facts = rig.facts("prepare_refused")

        assert [fact.attempts for fact in facts] == [1, 2, 4, 8, 16, 32, 64]

    @simulated
    async def test_new_reasons_are_recorded_and_bounded(self) -> None:
        """Another reason is recorded at once, but at most 8 of them."""
        rig = await Rig().start()
        for n in range(100):
            await rig.refused(pod("p1", claim("c1", f"{_word(n)}.example.com/gpu-0")))

        assert 8 <= len(rig.facts("prepare_refused")) <= 1 + 8 + 7

    @simulated
    async def test_a_refusal_leaves_no_wish(self) -> None:
        """When the driver comes a refused pod is not prepared by itself."""
        rig = await Rig(GPU, NIC).start()
        rig.leave(NIC)
        await rig.passes(1)
        wish = pod("p1", claim("c1", f"{NIC}/nic-0"))
        await rig.refused(wish)
        rig.arrive(NIC)
        await rig.passes(60)
        alone = rig.all_drivers[NIC].count("prepare")
        await rig.prepare(wish)

        assert alone == 0
        assert rig.state("c1") == "prepared"
        assert rig.node.refusals == {}


class TestDrivers:
    @pytest.mark.field(109)
    @simulated
    async def test_a_driver_that_restarts_changes_no_claim(self) -> None:
        """Twenty restarts of a driver change no claim and cost no call."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        before = rig.words("c1")
        for _ in range(20):
            await _flap(rig, GPU, 10)

        assert rig.words("c1") == before
        assert rig.gpu.count("prepare") == 1
        assert list(rig.node.drivers) == [GPU]

    @simulated
    async def test_one_that_flaps_is_recorded_a_few_times_an_hour(self) -> None:
        """A driver that comes and goes all the time floods nothing, and is there once it stays."""
        rig = await Rig().start()
        for _ in range(60):
            await _flap(rig, GPU, 20)
        at_first = list(rig.node.drivers)
        for _ in range(2000):
            await _flap(rig, GPU, 20)
        flapping = len(rig.words())
        await rig.passes(451)

        assert at_first == [GPU]
        assert flapping < 3 + 2 * (64 + 12 * 8)
        assert list(rig.node.drivers) == [GPU]

    @simulated
    async def test_a_return_makes_its_calls_due(self) -> None:
        """A driver that comes back is asked at once, whatever the backoff says."""
        rig = await Rig().start()
        rig.gpu.refuses("unprepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.unprepare("p1", passes_seconds=600)
        rig.leave(GPU)
        await rig.passes(1)
        rig.gpu.works()
        rig.arrive(GPU)
        await rig.passes(0.1)

        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_a_start_waits_a_moment_for_them(self) -> None:
        """A driver that registers a moment after the start is no failure."""
        rig = await Rig().start()
        rig.gpu.refuses("unprepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await rig.unprepare("p1")
        failures = len(rig.facts("driver_failed"))
        rig.leave(GPU)
        await rig.kill()
        rig.gpu.works()
        await rig.begin()
        await rig.passes(1)
        rig.arrive(GPU)
        await rig.passes(1)

        assert len(rig.facts("driver_failed")) == failures
        assert rig.state("c1") == "unprepared"


class TestMonth:
    """A month with one broken driver and 50 claims stays under 20,000 facts."""

    @simulated
    async def test_a_driver_that_refuses(self) -> None:
        """Fifty claims that one driver never unprepares, with a month of retries and restarts."""
        # One retry a day instead of one a minute: each of those is counted in the next test.
        rig = await _owing(LoopSettings(retry_max_seconds=DAY))
        for _ in range(30):
            await rig.passes(DAY)
            await rig.restart()

        assert len(rig.storage.records) < 20_000 / 10
        assert rig.state("c0") == "prepared_unpreparing"

    @simulated
    async def test_each_of_its_retries(self) -> None:
        """The same at one retry a minute, counted: 50 claims with 43,200 attempts each."""
        rig = await _owing(LoopSettings())
        claim_uid = rig.claim("c0").uid
        operation = rig.node.claims[claim_uid].operation
        assert operation is not None
        call = CallUnprepare(operation=operation.id, driver=DriverName(NIC), claims=(claim_uid,))
        answers = {claim_uid: Failed("firmware hangs")}
        facts = [
            decide_unprepared(rig.node, call, answers, attempt=Attempt(number=number))
            for number in range(1, 43_201)
        ]

        assert 50 * sum(map(len, facts)) < 20_000 / 10

    @pytest.mark.parametrize("period_seconds", [20, 120, 300, 450, 600])
    @simulated
    async def test_a_driver_that_flaps(self, period_seconds: float) -> None:
        """However fast a driver comes and goes, a month of it is few facts."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        counts = []
        for _ in range(2):
            for _ in range(int(DAY / period_seconds)):
                await _flap(rig, GPU, period_seconds)
            counts.append(len(rig.storage.records))

        assert counts[1] + 28 * (counts[1] - counts[0]) < 20_000


async def _owing(settings: LoopSettings) -> Rig:
    """Return a node with 50 pods whose end one of two drivers refuses."""
    rig = await Rig(GPU, NIC, settings=settings).start()
    for n in range(50):
        devices = (f"{GPU}/gpu-{n}", f"{NIC}/nic-{n}")
        await rig.prepare(pod(f"p{n}", claim(f"c{n}", *devices, reserved_for=[f"p{n}"])))
    rig.all_drivers[NIC].refuses("unprepare", "firmware hangs")
    await rig.unprepare(*(f"p{n}" for n in range(50)))
    return rig


async def _flap(rig: Rig, driver: str, period_seconds: float) -> None:
    """Let a driver go for a tenth of the time and come back for the rest."""
    rig.leave(driver)
    await rig.passes(period_seconds / 10)
    rig.arrive(driver)
    await rig.passes(period_seconds * 9 / 10)


def _word(number: int) -> str:
    """Return a word that no masking makes equal to another one."""
    return "".join(chr(ord("g") + int(digit)) for digit in str(number))
