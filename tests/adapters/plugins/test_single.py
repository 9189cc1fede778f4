"""An adapter for one claim at a time gets its batch split and its answers joined (rule R3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.simulation.rig import allocation

from claimlet.adapters.plugins.single import OneByOne
from claimlet.engine.ports import Claim, DriverCallError, Failed, Prepared
from claimlet.events.values import ClaimRef, ClaimUid


class Cameras:
    """A fake adapter: some claims fail in the way that their name says."""

    driver = "cam.example.com"

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    async def prepare_claim(self, claim: Claim, *, timeout_seconds: float) -> Prepared | Failed:
        self._enter("prepare", claim)
        return Failed("busy") if claim.ref.name == "busy" else Prepared()

    async def unprepare_claim(self, claim: Claim, *, timeout_seconds: float) -> Failed | None:
        self._enter("unprepare", claim)
        return None

    def _enter(self, method: str, claim: Claim) -> None:
        self.calls.append((method, claim.ref.name))
        if claim.ref.name == "lost":
            raise DriverCallError("the camera is gone", outcome="unknown", code="GONE")


def claims(*names: str) -> Sequence[Claim]:
    """Return claims called *names*."""
    return [
        Claim(
            ref=ClaimRef(uid=ClaimUid(name), namespace="ml", name=name),
            allocation=allocation("cam.example.com/video0"),
        )
        for name in names
    ]


@pytest.mark.rule("R3")
class TestOneByOne:
    """A batch through an adapter that takes one claim at a time."""

    async def test_answers_for_each_claim_alone(self) -> None:
        """A refusal or an error of one claim leaves the answers of the others as they are."""
        cameras = Cameras()

        answers = await OneByOne(cameras).prepare(
            claims("a", "busy", "lost", "b"), timeout_seconds=5.0
        )

        assert answers == {
            "a": Prepared(),
            "busy": Failed("busy"),
            "lost": Failed("the camera is gone", outcome="unknown", code="GONE"),
            "b": Prepared(),
        }
        assert [name for _, name in cameras.calls] == ["a", "busy", "lost", "b"]

    async def test_unprepares_each_claim_alone(self) -> None:
        """An error while one claim is unprepared does not keep the others."""
        answers = await OneByOne(Cameras()).unprepare(claims("lost", "a"), timeout_seconds=5.0)

        assert answers[ClaimUid("a")] is None
        assert isinstance(answers[ClaimUid("lost")], Failed)

    async def test_does_not_call_without_time(self) -> None:
        """Claims that the call's time does not reach are not called, and fail as unreachable."""
        cameras = Cameras()

        answers = await OneByOne(cameras).prepare(claims("a"), timeout_seconds=0.0)

        assert cameras.calls == []
        assert answers[ClaimUid("a")] == Failed(
            "not called: the batch had no time left", outcome="unreachable", code="no_time"
        )
