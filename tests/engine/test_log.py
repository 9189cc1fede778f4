"""The log goes away, comes back, or is taken over (rules 2, 11, 14)."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulated

from claimlet.engine.errors import NotReadyError
from claimlet.engine.loop import LoopSettings
from claimlet.events import facts as f
from claimlet.events.errors import FencedError, LogUnavailableError
from claimlet.events.values import PodUid

GPU = "gpu.example.com"


async def prepared() -> Rig:
    rig = await Rig().start()
    await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
    return rig


async def back(rig: Rig) -> None:
    """Let the log come back, as the service tells the loop."""
    rig.log.is_down = False
    rig.loop.wake()
    await rig.passes(5)


class TestDown:
    @simulated
    async def test_no_new_call(self) -> None:
        """While the log is down no driver is called, for an unprepare neither."""
        rig = await prepared()
        rig.gpu.refuses("unprepare", times=1)
        await rig.unprepare("p1")
        calls = len(rig.gpu.ledger)
        rig.log.is_down = True
        await rig.passes(600)
        silent = len(rig.gpu.ledger)
        await back(rig)

        assert silent == calls
        assert rig.state("c1") == "unprepared"

    @simulated
    async def test_commands_are_refused_for_now(self) -> None:
        """A command while the log is down stores nothing, and says that it may be asked again."""
        rig = await prepared()
        rig.log.is_down = True
        before = rig.words()
        with pytest.raises(NotReadyError) as caught:
            await rig.unprepare("p1")
        await back(rig)

        assert "nothing was stored" in str(caught.value)
        assert caught.value.exit_code == 4
        assert rig.words() == before

    @simulated
    async def test_reads_are_answered_from_memory(self) -> None:
        """What is known stays readable while the log is down."""
        rig = await prepared()
        rig.log.is_down = True

        assert rig.devices("c1") == [f"{GPU}/gpu=c1-uid-gpu-0"]

    @simulated
    async def test_an_unresolved_append_is_no_refusal(self) -> None:
        """A caller that waited too long is told so; what was issued is folded when it lands."""
        rig = await Rig(settings=LoopSettings(append_timeout_seconds=2.0)).start()
        rig.log.delay_seconds = 5.0
        with pytest.raises(LogUnavailableError):
            await rig.loop.prepare_pod(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        early = rig.node.claims
        rig.log.delay_seconds = 0.001
        await rig.passes(60)

        assert early is rig.node.claims
        assert rig.state("c1") == "prepared"

    @simulated
    async def test_the_claim_stays_locked_until_it_is_known(self) -> None:
        """A second command on the same claim waits for what the first one issued."""
        rig = await Rig(settings=LoopSettings(append_timeout_seconds=2.0)).start()
        wish = pod("p1", claim("c1", f"{GPU}/gpu-0"))
        rig.log.is_down = False
        rig.log.delay_seconds = 5.0
        first = asyncio.ensure_future(rig.loop.prepare_pod(wish))
        second = asyncio.ensure_future(rig.loop.prepare_pod(wish))
        await rig.passes(120)

        assert isinstance(first.exception(), LogUnavailableError)
        assert second.exception() is None
        assert rig.words("c1").count("bound") == 1

    @simulated
    async def test_a_cancelled_caller_changes_nothing(self) -> None:
        """Who stops waiting takes nothing back: what was issued lands and is folded."""
        rig = await Rig().start()
        task = asyncio.ensure_future(rig.loop.prepare_pod(pod("p1", claim("c1", f"{GPU}/gpu-0"))))
        await rig.passes(0.001)
        task.cancel()
        await rig.passes(1)

        assert rig.state("c1") == "prepared"

    @simulated
    async def test_drivers_that_come_in_an_outage_are_not_lost(self) -> None:
        """A registration, or a driver's end, during an outage is recorded when it is over."""
        rig = await Rig(GPU, "nic.example.com").start()
        rig.leave("nic.example.com")
        await rig.passes(1)
        rig.log.is_down = True
        rig.arrive("nic.example.com")
        rig.leave(GPU)
        await rig.passes(60)
        await back(rig)

        assert list(rig.node.drivers) == ["nic.example.com"]


class TestFenced:
    async def fence(self, rig: Rig) -> None:
        """Let another writer take the log over, and have this one find out."""
        rig.storage.writer = "somebody-else"

    @simulated
    async def test_stops_for_good(self) -> None:
        """A writer that finds a foreign fact stops: nobody is told of a success."""
        rig = await prepared()
        await self.fence(rig)
        wish = pod("p2", claim("c2", f"{GPU}/gpu-1"))
        with pytest.raises(FencedError):
            await rig.loop.prepare_pod(wish)
        with pytest.raises(FencedError):
            await rig.loop.end_pod(PodUid("p1"), f.UnprepareRequested(reason="deleted"))
        await asyncio.sleep(60)

        assert [type(error) for error in rig.world.errors] == [FencedError]
        assert rig.gpu.ledger == [("prepare", ("c1",))]

    @simulated
    async def test_does_not_say_that_it_stopped(self) -> None:
        """The log is another's: there is no `stopped` to be recorded, and the caller hears why."""
        rig = await prepared()
        await self.fence(rig)
        with pytest.raises(FencedError):
            await rig.loop.prepare_pod(pod("p2", claim("c2", f"{GPU}/gpu-1")))
        with pytest.raises(FencedError):
            await rig.loop.stopped("asked to stop")

        assert "stopped" not in rig.words()

    @simulated
    async def test_cancels_calls_in_flight(self) -> None:
        """Calls in flight are cancelled when another writer has taken over."""
        rig = await Rig().start()
        cancelled = []

        async def hang() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        rig.gpu.fault = lambda *_: hang()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        rig.loop.fail(FencedError("another writer has taken the log over"))
        await asyncio.sleep(1)

        assert cancelled == [True]

    @simulated
    async def test_waiters_hear_of_it(self) -> None:
        """Who waits for a claim to be prepared gets the error instead of waiting for ever."""
        rig = await Rig().start()
        rig.gpu.hangs("prepare")
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        waiting = asyncio.ensure_future(rig.loop.wait_until(lambda: rig.state("c1") == "prepared"))
        waiving = asyncio.ensure_future(rig.loop.reprepare(rig.claim("c1").uid, actor="ops"))
        await rig.passes(0.1)
        rig.loop.fail(FencedError("another writer has taken the log over"))
        await asyncio.sleep(1)

        assert isinstance(waiting.exception(), FencedError)
        assert isinstance(waiving.exception(), FencedError)
        assert rig.words("c1")[-1] == "prepare_started"

    @simulated
    async def test_an_outcome_is_not_recorded(self) -> None:
        """An answer that comes after the takeover is the next writer's to ask for again."""
        rig = await Rig().start()
        rig.gpu.is_slow("prepare", 1.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        await self.fence(rig)
        await asyncio.sleep(60)

        assert rig.words("c1")[-1] == "prepare_started"
        assert [type(error) for error in rig.world.errors] == [FencedError]


class TestDrain:
    @simulated
    async def test_waits_for_calls_and_starts_none(self) -> None:
        """A service that stops lets its calls end, records them, and starts no other."""
        rig = await Rig().start()
        rig.gpu.is_slow("prepare", 3.0)
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        draining = asyncio.ensure_future(rig.loop.drain())
        await rig.prepare(pod("p2", claim("c2", f"{GPU}/gpu-1")))
        await draining
        await rig.loop.stopped("terminated")

        assert rig.state("c1") == "prepared"
        assert rig.gpu.ledger == [("prepare", ("c1",))]
        assert rig.words()[-1] == "stopped"
