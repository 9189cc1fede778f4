"""
Calling drivers: one call per operation and driver, retried with backoff until it is owed no more.

The plan says that a call is owed; when it is due is known only here and is volatile: after a start
everything is due at once (engine/README.md, rule 8).  A claim is *busy* while a call of it is in
flight; what opens or closes its intent waits (rule 7).  A prepare whose end is not known may act
until its deadline, so an unprepare answered before that is provisional and made once more (rule 1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from ...events.errors import FencedError, LogDamagedError, LogUnavailableError
from ...events.values import ClaimUid, DriverName
from ...events.world import Task, World
from .. import outcome
from ..node import Node
from ..plan import CallPrepare, CallUnprepare, pod_key, pods_of
from ..ports import Claim, DriverCallError, DriverInstance, Drivers, Failed, Prepared
from .appender import Appender, LoopSettings

__all__ = ["CallState", "CallStep", "Caller"]

CallStep = CallPrepare | CallUnprepare
#: An adapter that does not keep its timeout is cut off after this many of them: one that splits a
#: large batch may need its timeout more than once.
_OVERRUN = 3.0

_Result = Mapping[ClaimUid, Prepared | Failed] | Mapping[ClaimUid, Failed | None] | DriverCallError


class CallState(msgspec.Struct, kw_only=True):
    """The volatile side of an owed call: attempts so far, when the next is due, whether it runs."""

    attempts: int = 0
    due: float = 0.0
    is_running: bool = False
    #: A timer will have it considered again when it is due.
    is_timed: bool = False
    task: Task | None = None


class Caller:
    """The calls of one node's loop; `on_due` hears for which claims to plan again."""

    def __init__(
        self,
        node: Node,
        appender: Appender,
        *,
        world: World,
        drivers: Drivers,
        settings: LoopSettings,
        on_due: Callable[[tuple[ClaimUid, ...]], None],
    ) -> None:
        self.states: dict[tuple[str, DriverName], CallState] = {}
        self._node = node
        self._appender = appender
        self._world = world
        self._drivers = drivers
        self._settings = settings
        self._on_due = on_due
        #: (claim, driver) → monotonic time until which an earlier prepare may still act (rule 1).
        self._acts_until: dict[tuple[ClaimUid, DriverName], float] = {}
        self._grace_until = 0.0

    def start(self) -> None:
        """Take the state over from the log: what an earlier process has called may still act."""
        now = self._world.monotonic()
        self._grace_until = now + self._settings.registration_grace_seconds
        for claim in self._node.claims.values():
            for debt in claim.debts:
                if debt.boot == self._node.boot and (debt.unsettled or not debt.answered):
                    until = now + self._settings.call_timeout_seconds
                    self._acts_until[claim.uid, debt.driver] = until

    def make_due(self, driver: DriverName) -> None:
        """Let all owed calls of *driver* be due now: it has registered."""
        for (_, name), call in self.states.items():
            if name == driver:
                call.due = 0.0

    def cancel(self) -> None:
        """Cancel what is in flight: another writer has taken over."""
        for call in self.states.values():
            if call.task is not None:
                call.task.cancel()

    def forget_ended(self) -> None:
        """Drop the state of calls whose operation is over."""
        ended = [
            key
            for key, call in self.states.items()
            if not call.is_running and key[0] not in self._node.by_operation
        ]
        for key in ended:
            del self.states[key]
        now = self._world.monotonic()
        self._acts_until = {key: until for key, until in self._acts_until.items() if until > now}

    def consider(self, step: CallStep) -> None:
        """Start the call if it is due, else see to it that it is considered again when it is."""
        call = self.states.get((step.operation, step.driver))
        if call is None:
            call = CallState(attempts=self._recorded_attempts(step))
            self.states[step.operation, step.driver] = call
        if call.is_running or any(uid in self._appender.facts for uid in step.claims):
            return
        if isinstance(step, CallUnprepare):
            call.due = max(call.due, self._settled_at(step))
        wait = call.due - self._world.monotonic()
        if wait <= 0:
            call.is_running = True
            self._appender.busy.add(step.claims)
            name = f"{type(step).__name__} {step.driver}"
            call.task = self._world.spawn(self._run(step, call), name=name)
        elif not call.is_timed:
            call.is_timed = True
            self._world.spawn(self._recall(step, call, wait), name=f"retry {step.driver}")

    async def _recall(self, step: CallStep, call: CallState, delay: float) -> None:
        await self._world.sleep(delay)
        call.is_timed = False
        self._on_due(step.claims)

    def _recorded_attempts(self, step: CallStep) -> int:
        failures = [
            failure.attempts
            for uid in step.claims
            if (failure := self._node.claims[uid].failure(step.driver))
            and failure.operation == step.operation
        ]
        return max(failures, default=0)

    def _settled_at(self, step: CallUnprepare) -> float:
        """Return when claims that all have a provisional yes may be asked once more (rule 1)."""
        times = []
        for uid in step.claims:
            debt = self._node.claims[uid].debt(step.driver)
            if debt is None or not debt.provisional:
                return 0.0
            times.append(self._acts_until.get((uid, step.driver), 0.0))
        return max(times, default=0.0)

    async def _run(self, step: CallStep, call: CallState) -> None:
        instance = self._drivers.find(step.driver)
        started = self._world.monotonic()
        if instance is None and started < self._grace_until:
            self._appender.not_busy(step.claims)
            self._end(step, call, self._settings.retry_first_seconds)
            return
        # What may still act now may do so behind this call, however late its answer is recorded.
        acting = self._acting(step)
        result = await self._call(step, instance)
        self._note_unknown(step, result, started)
        call.attempts += 1
        delay = self._appender.backoff.delay_seconds(call.attempts, self._world.random())
        attempt = outcome.Attempt(
            number=call.attempts,
            duration_seconds=round(self._world.monotonic() - started, 6),
            retry_delay_seconds=round(delay, 3),
        )
        await self._record(step, result, attempt, acting=acting)
        self._end(step, call, delay)

    def _end(self, step: CallStep, call: CallState, delay: float) -> None:
        """Have the call considered again when it is due, if it is still owed then."""
        call.due = self._world.monotonic() + delay
        call.is_running = False
        call.task = None
        self._on_due(step.claims)

    async def _call(self, step: CallStep, instance: DriverInstance | None) -> _Result:
        """Make the call, and return its error as a result like any other."""
        if instance is None:
            return DriverCallError(
                f"driver {step.driver} is not registered",
                outcome="unreachable",
                code="not_registered",
            )
        timeout = self._settings.call_timeout_seconds
        adapter = instance.adapter
        claims = [self._adapter_claim(uid, step.driver) for uid in step.claims]
        call = adapter.prepare if isinstance(step, CallPrepare) else adapter.unprepare
        try:
            async with self._world.timeout(timeout * _OVERRUN):
                result: object = await call(claims, timeout_seconds=timeout)
        except DriverCallError as error:
            return error
        except TimeoutError:
            text = f"no answer within {timeout:g} s"
            return DriverCallError(text, outcome="unknown", code="DEADLINE_EXCEEDED")
        except Exception as error:  # noqa: BLE001 - an adapter's bug must not stop the others
            text = f"{type(error).__name__}: {error}"
            return DriverCallError(text, outcome="unknown", code="adapter_error")
        if not isinstance(result, Mapping):
            text = f"the adapter answered with a {type(result).__name__} instead of a mapping"
            return DriverCallError(text, outcome="invalid", code="adapter_error")
        return result

    def _note_unknown(self, step: CallStep, result: _Result, started: float) -> None:
        """
        Note what a prepare without a known end may do until its deadline (rule 1).

        A later answer to another attempt takes nothing of that back.  Where the adapter split the
        batch, the part that failed was sent at an unknown time before now.
        """
        if not isinstance(step, CallPrepare):
            return
        sent = started if isinstance(result, DriverCallError) else self._world.monotonic()
        deadline = sent + self._settings.call_timeout_seconds
        for uid in step.claims:
            answer = result if isinstance(result, DriverCallError) else result.get(uid)
            if isinstance(answer, DriverCallError | Failed) and answer.outcome == "unknown":
                key = (uid, step.driver)
                self._acts_until[key] = max(deadline, self._acts_until.get(key, 0.0))

    async def _record(
        self,
        step: CallStep,
        result: _Result,
        attempt: outcome.Attempt,
        *,
        acting: frozenset[ClaimUid],
    ) -> None:
        """Record what came of the call; the claims stop being busy under their fact locks."""
        appender = self._appender
        taken = await appender.facts.take(self._keys(step))
        appender.busy.remove(step.claims)
        drafts = outcome.decide(self._node, step, result, attempt=attempt, acting=acting)
        if not drafts or appender.failure is not None:
            appender.release(taken)
            return
        try:
            await appender.append(appender.concluded(drafts, taken), taken)
        except (LogUnavailableError, FencedError, LogDamagedError):
            # The outcome waits in the log's pipe and the claims stay locked until it lands.
            return

    def _acting(self, step: CallStep) -> frozenset[ClaimUid]:
        now = self._world.monotonic()
        return frozenset(
            uid for uid in step.claims if self._acts_until.get((uid, step.driver), 0.0) > now
        )

    def _keys(self, step: CallStep) -> set[str]:
        """Return the keys of the claims, and of their pods: one of them may be closed with them."""
        keys: set[str] = set(step.claims)
        for uid in step.claims:
            if claim := self._node.claims.get(uid):
                keys.add(str(claim.ref))
                keys.update(map(pod_key, pods_of(claim)))
        return keys

    def _adapter_claim(self, uid: ClaimUid, driver: DriverName) -> Claim:
        claim = self._node.claims[uid]
        answer = claim.answer(driver)
        assert claim.allocation is not None
        return Claim(
            ref=claim.ref,
            allocation=claim.allocation,
            devices=answer.devices if answer else (),
            config=self._node.configs.get(uid, b""),
        )
