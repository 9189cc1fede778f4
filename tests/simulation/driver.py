"""
A fake driver: one prepared device per allocated device, a ledger of its calls, scriptable faults.

It lives outside the simulated process, as a real one would: what it does late, it does even when
the process that called it is dead.  A reboot clears what it holds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from claimlet.engine.ports import Claim, DriverCallError, Failed, Prepared
from claimlet.events.values import ClaimUid, FailureOutcome, PreparedDevice

__all__ = ["FakeDriver"]

Fault = Callable[[str, Sequence[Claim]], Any]


class _Whole:
    """An answer to return as it is, whatever it is."""

    def __init__(self, value: Any) -> None:
        self.value = value


class FakeDriver:
    """A driver in memory."""

    def __init__(self, driver: str) -> None:
        self.driver = driver
        #: Each call as it came: method and claim names.
        self.ledger: list[tuple[str, tuple[str, ...]]] = []
        #: Each call's claims, as the adapter got them.
        self.calls: list[tuple[str, tuple[Claim, ...]]] = []
        #: UIDs of the claims that it holds something for.
        self.held: set[str] = set()
        self.delay_seconds = 0.001
        #: Asked before each call; may raise, return the whole answer, or a coroutine that does.
        self.fault: Fault = lambda *_: None
        #: Hears each call before anything else.
        self.watch: Callable[[str, str, Sequence[Claim]], None] = lambda *_: None
        self._late: set[asyncio.Task[None]] = set()
        self._in_flight: Counter[ClaimUid] = Counter()
        #: Calls that had to wait for another one and did not.
        self.violations: list[str] = []

    async def prepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Prepared | Failed]:
        """Prepare *claims*, as the script wants it."""
        return await self._call("prepare", claims, timeout_seconds)  # type: ignore[no-any-return]

    async def unprepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Failed | None]:
        """Unprepare *claims*, as the script wants it."""
        return await self._call("unprepare", claims, timeout_seconds)  # type: ignore[no-any-return]

    async def _call(self, method: str, claims: Sequence[Claim], timeout_seconds: float) -> Any:
        """Do one call; no claim of it may be in another call of this driver."""
        uids = Counter(c.uid for c in claims)
        if twice := uids & self._in_flight:
            self.violations.append(f"{method} of {sorted(twice)} while another call has them")
        self._in_flight += uids
        try:
            answer = await self._enter(method, claims, timeout_seconds)
            return self._made(answer, method, claims)
        finally:
            self._in_flight -= uids

    def _made(self, answer: Any, method: str, claims: Sequence[Claim]) -> Any:
        if isinstance(answer, _Whole):
            return answer.value
        return self.usual(method, claims) if answer is None else answer

    def usual(self, method: str, claims: Sequence[Claim]) -> dict[ClaimUid, Any]:
        """Do what *method* is for, and return the usual answer."""
        if method == "unprepare":
            self.held.difference_update(c.uid for c in claims)
            return dict.fromkeys(c.uid for c in claims)
        self.held.update(c.uid for c in claims)
        return {c.uid: self.prepared(c) for c in claims}

    def prepared(self, asked: Claim) -> Prepared:
        """Return this driver's usual answer for *asked*."""
        own = [d for d in asked.allocation.devices if d.driver == self.driver]
        return Prepared(
            devices=tuple(
                PreparedDevice(
                    pool=d.pool,
                    device=d.device,
                    requests=(d.request,),
                    cdi_device_ids=(f"{self.driver}/gpu={asked.uid}-{d.device}",),
                    share_id=d.share_id,
                )
                for d in own
            )
        )

    def count(self, method: str) -> int:
        """Return how often *method* was called."""
        return sum(1 for name, _ in self.ledger if name == method)

    def batches(self, method: str) -> list[tuple[str, ...]]:
        """Return the claim names of each call of *method*."""
        return [tuple(sorted(names)) for name, names in self.ledger if name == method]

    def reboot(self) -> None:
        """Lose everything: what it holds, and what it was about to do."""
        self.held.clear()
        for task in self._late:
            task.cancel()

    # --- scripts ---------------------------------------------------------------------------------

    def works(self) -> None:
        """End all faults."""
        self.fault = lambda *_: None

    def refuses(
        self,
        method: str,
        text: str = "busy",
        *,
        times: float = float("inf"),
        only: Collection[str] = (),
    ) -> None:
        """Answer the next *times* calls of *method* with an error per claim, or for *only* some."""

        def fault(claims: Sequence[Claim]) -> Any:
            bad = [c for c in claims if not only or c.ref.name in only]
            good = [c for c in claims if c not in bad]
            return self.usual(method, good) | {c.uid: Failed(text) for c in bad}

        self._for_times(method, times, fault)

    def breaks(
        self,
        method: str,
        text: str = "connection lost",
        *,
        outcome: FailureOutcome = "unreachable",
        code: str = "UNAVAILABLE",
        times: float = float("inf"),
    ) -> None:
        """Let the next *times* calls of *method* go wrong as a whole."""

        def fault(claims: Sequence[Claim]) -> Any:
            raise DriverCallError(text, outcome=outcome, code=code)

        self._for_times(method, times, fault)

    def hangs(self, method: str, *, times: float = float("inf")) -> None:
        """Never answer the next *times* calls of *method*."""

        async def hang() -> None:
            await asyncio.get_running_loop().create_future()

        self._for_times(method, times, lambda _: hang())

    def is_slow(self, method: str, seconds: float) -> None:
        """Answer *method* only after a while."""

        async def wait(claims: Sequence[Claim]) -> Any:
            await asyncio.sleep(seconds)
            return self.usual(method, claims)

        self._for_times(method, float("inf"), wait)

    def acts_late(self, method: str, seconds: float, *, times: float = 1) -> None:
        """Lose the connection at once, and do what was asked *seconds* later all the same."""

        async def late(claims: Sequence[Claim]) -> None:
            await asyncio.sleep(seconds)
            self.usual(method, claims)

        def fault(claims: Sequence[Claim]) -> Any:
            task = asyncio.get_running_loop().create_task(late(claims))
            self._late.add(task)
            task.add_done_callback(self._late.discard)
            raise DriverCallError("connection lost", outcome="unknown", code="UNAVAILABLE")

        self._for_times(method, times, fault)

    def answers(self, method: str, answer: Callable[[Sequence[Claim]], Any]) -> None:
        """Do what was asked of *method*, and answer with whatever *answer* makes of the claims."""

        def fault(claims: Sequence[Claim]) -> Any:
            self.usual(method, claims)
            return _Whole(answer(claims))

        self._for_times(method, float("inf"), fault)

    def _for_times(
        self, method: str, times: float, fault: Callable[[Sequence[Claim]], Any]
    ) -> None:
        left = times
        before = self.fault

        def script(name: str, claims: Sequence[Claim]) -> Any:
            nonlocal left
            if name != method or left <= 0:
                return before(name, claims)
            left -= 1
            return fault(claims)

        self.fault = script

    async def _enter(self, method: str, claims: Sequence[Claim], timeout_seconds: float) -> Any:
        self.ledger.append((method, tuple(c.ref.name for c in claims)))
        self.calls.append((method, tuple(claims)))
        self.watch(self.driver, method, claims)
        answer = self.fault(method, claims)
        if asyncio.iscoroutine(answer):
            answer = await self._in_time(answer, timeout_seconds)
        await asyncio.sleep(self.delay_seconds)
        return answer

    async def _in_time(self, answer: Awaitable[Any], timeout_seconds: float) -> Any:
        try:
            async with asyncio.timeout(timeout_seconds):
                return await answer
        except TimeoutError:
            raise DriverCallError(
                "deadline exceeded", outcome="unknown", code="DEADLINE_EXCEEDED"
            ) from None
