"""A driver that fails many claims in one way is one fault."""

from __future__ import annotations

import pytest
from tests.simulation.rig import Rig, claim, pod
from tests.simulation.virtual import simulate

from claimlet.engine.ports import Failed
from claimlet.engine.streaks import streaks


@pytest.mark.field(48)
def test_thirty_equal_failures_are_one_streak() -> None:
    """30 claims that fail with one text, but for numbers, are one streak of their driver."""

    async def play() -> None:
        rig = await Rig().start()
        rig.gpu.fault = lambda _, claims: {
            c.uid: Failed(f"the CDI cache is stale (entry 0x{len(rig.gpu.ledger)}f)")
            for c in claims
        }
        for number in range(30):
            wanted = claim(
                f"c{number}", f"gpu.example.com/gpu-{number}", reserved_for=[f"p{number}"]
            )
            await rig.prepare(pod(f"p{number}", wanted), passes_seconds=0.01)

        (found,) = streaks(rig.node).values()

        assert found.claims == 30
        assert found.attempts >= 30
        assert found.text.startswith("the CDI cache is stale")
        await rig.kill()

    simulate(play)


def test_a_driver_that_answers_again_has_no_streak() -> None:
    """Once its claims are prepared, nothing is left of the streak."""

    async def play() -> None:
        rig = await Rig().start()
        rig.gpu.fault = lambda _, claims: {c.uid: Failed("busy") for c in claims}
        await rig.prepare(pod("p1", claim("a", "gpu.example.com/gpu-0")))
        rig.gpu.fault = lambda *_: None
        await rig.passes(5.0)

        assert streaks(rig.node) == {}
        await rig.kill()

    simulate(play)
