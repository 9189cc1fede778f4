"""
What each verb of the control interface does, apart from how it is carried.

A wish is stored before its reply goes out; a reply may be held back until the pod is prepared or
unprepared, bounded by `HOLD_SECONDS_MAX`, so that `--wait` costs one request.  Who asks is
recorded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from claimlet import __version__

from ...engine.errors import AmbiguousError, NotFoundError, RefusedError, UsageError
from ...engine.loop import NodeLoop
from ...engine.outcome import find_claim
from ...engine.pod import PreparePod
from ...engine.state import ClaimState, PodState, Refusal
from ...engine.views import ClaimView, ObjectView, claim_view
from ...events.errors import ClaimletError
from ...events.facts import UnprepareRequested
from ...events.values import ClaimUid, DriverName, PodRef, PodUid
from ...events.world import World
from ..kubernetes.wishes import read_manifest, wishes
from . import state as state_view
from .protocol import (
    HOLD_SECONDS_MAX,
    Count,
    Hello,
    Imported,
    ImportRequest,
    ObjectRequest,
    PodClaims,
    PrepareRequest,
    ReplayView,
    Reply,
    RotateRequest,
    StateReply,
    TeardownRequest,
    WaiveRequest,
    fault_of,
)

__all__ = ["Handlers"]

T = TypeVar("T")
_NAME_CHARACTERS_MAX = 253
_Handler = Callable[[bytes, str], Awaitable[Any]]


class Handlers:
    """The verbs, on one node's loop."""

    def __init__(
        self,
        loop: NodeLoop,
        *,
        world: World,
        honour_skips: bool,
        rotate_keys: Callable[[Sequence[str], str], Sequence[str]],
        replay: ReplayView | None = None,
    ) -> None:
        self._loop = loop
        self._replayed = replay
        self._node = loop.node
        self._world = world
        self._honour_skips = honour_skips
        self._rotate_keys = rotate_keys
        self._verbs: dict[str, _Handler] = {
            "hello": self._hello,
            "prepare": self._prepare,
            "unprepare": self._unprepare,
            "state": self._state,
            "reprepare": self._reprepare,
            "replay": self._replay,
            "waive": self._waive,
            "settle": self._settle,
            "rotate": self._rotate,
            "import": self._import,
        }

    async def handle(self, verb: str, data: bytes, *, actor: str) -> bytes:
        """Return the reply to a request; an error of ours becomes a fault in it."""
        try:
            result = await self._verbs[verb](data, actor)
        except ClaimletError as error:
            return msgspec.json.encode(Reply(fault=fault_of(error)))
        return msgspec.json.encode(Reply(result=msgspec.Raw(msgspec.json.encode(result))))

    async def _hello(self, _: bytes, __: str) -> Hello:
        return Hello(
            node=self._node.name,
            version=__version__,
            writer=self._node.writer,
            boot=self._node.boot,
            sequence=self._node.sequence,
            is_log_available=self._loop.is_log_available,
            replay=self._replayed,
        )

    async def _state(self, _: bytes, __: str) -> StateReply:
        return state_view.of_loop(self._loop, self._world)

    # --- pods ------------------------------------------------------------------------------------

    async def _prepare(self, data: bytes, actor: str) -> list[PodClaims]:
        request = _decode(data, PrepareRequest)
        manifest = read_manifest(request.documents, honour_skips=self._honour_skips)
        if not manifest.pods:
            raise UsageError(
                "there is no Pod among the objects", hint="-f takes a Pod and its claims"
            )
        wanted = wishes(
            manifest, self._node, source="control", actor=actor, new_id=self._world.new_id
        )
        refusals = await asyncio.gather(*(self._wish(wish) for wish in wanted))
        if request.wait_seconds > 0 and not any(refusals):
            await self._hold(
                request.wait_seconds, lambda: all(self._is_settled(w.pod.ref.uid) for w in wanted)
            )
        return [
            self._pod_claims(wish.pod.ref, reasons)
            for wish, reasons in zip(wanted, refusals, strict=True)
        ]

    async def _wish(self, wish: PreparePod) -> tuple[str, ...]:
        """Store the wish; return why it was refused, if it was."""
        try:
            await self._loop.prepare_pod(wish)
        except RefusedError as error:
            return error.reasons
        return ()

    def _is_settled(self, pod_uid: PodUid) -> bool:
        pod = self._node.pods.get(pod_uid)
        return pod is None or state_view.pod_state(self._node, pod)[0] == "prepared"

    async def _unprepare(self, data: bytes, actor: str) -> PodClaims:
        request = _decode(data, TeardownRequest)
        pod = self._find_pod(request)
        if pod is None:
            ref = PodRef(uid=PodUid(request.uid), namespace=request.namespace, name=request.name)
            return PodClaims(pod=_object(ref), state="unknown", reasons=[], claims=[])
        claims = [claim.ref for claim in self._node.claims_of(pod.uid)]
        fact = UnprepareRequested(reason=request.reason, source="control")
        await self._loop.end_pod(pod.uid, fact, actor=actor)
        if request.wait_seconds > 0:
            await self._hold(request.wait_seconds, lambda: pod.uid not in self._node.pods)
        ended = self._node.pods.get(pod.uid)
        return PodClaims(
            pod=_object(pod),
            state="unpreparing" if ended else "closed",
            reasons=[f"{ended.ended}"] if ended else [],
            claims=[self._claim_view(ref.uid) for ref in claims if ref.uid in self._node.claims],
        )

    def _find_pod(self, request: TeardownRequest) -> PodRef | None:
        """
        Return the pod that the request means: the open one of that name, else one that still ends.

        Raises:
            AmbiguousError: There are several open ones.
        """
        pods: list[PodState | Refusal] = [*self._node.pods.values(), *self._node.refusals.values()]
        pods += [PodState(ref=ref) for ref in self._restored_pods()]
        refs = {
            _ref(pod).uid: pod
            for pod in pods
            if (_ref(pod).namespace, _ref(pod).name) == (request.namespace, request.name)
            and request.uid in ("", _ref(pod).uid)
        }
        live = [p for p in refs.values() if isinstance(p, PodState) and not p.ended]
        found: list[PodState | Refusal] = [*live] or list(refs.values())
        if len(live) > 1:
            uids = ", ".join(sorted(_ref(pod).uid for pod in live))
            raise AmbiguousError(
                f"{request.namespace}/{request.name} means several pods: {uids}",
                hint="--uid chooses one",
            )
        return _ref(found[-1]) if found else None

    def _restored_pods(self) -> list[PodRef]:
        """Return the pods that hold a claim and whose request is not in the log."""
        return [
            consumer.pod
            for claim in self._node.claims.values()
            for consumer in claim.consumers
            if consumer.restored and consumer.pod.uid not in self._node.pods
        ]

    async def _hold(self, seconds: float, is_so: Callable[[], bool]) -> None:
        """Wait until *is_so* holds, or long enough that the client should hear something."""
        try:
            async with self._world.timeout(min(seconds, HOLD_SECONDS_MAX)):
                await self._loop.wait_until(is_so)
        except TimeoutError:
            return

    def _pod_claims(self, ref: PodRef, reasons: Sequence[str]) -> PodClaims:
        pod = self._node.pods.get(ref.uid)
        state, waiting = state_view.pod_state(self._node, pod) if pod else ("refused", [])
        if reasons:
            state, waiting = "refused", list(reasons)
        return PodClaims(
            pod=_object(ref),
            state=state,
            reasons=waiting,
            claims=[self._claim_view(c.uid) for c in self._node.claims_of(ref.uid)],
        )

    def _claim_view(self, uid: ClaimUid) -> ClaimView:
        return claim_view(
            self._node,
            self._node.claims[uid],
            now_ns=self._world.wall_time_ns(),
            live=state_view.live(self._loop, self._world),
        )

    # --- operators -------------------------------------------------------------------------------

    async def _reprepare(self, data: bytes, actor: str) -> ClaimView:
        claim = self._find_claim(_decode(data, ObjectRequest))
        await self._loop.reprepare(claim.uid, actor=actor)
        return self._claim_view(claim.uid)

    async def _replay(self, data: bytes, actor: str) -> Count:
        driver = DriverName(_decode(data, ObjectRequest).name)
        return Count(count=await self._loop.replay_driver(driver, actor=actor))

    async def _waive(self, data: bytes, actor: str) -> ClaimView:
        request = _decode(data, WaiveRequest)
        if not request.reason.strip():
            raise UsageError("a waiver needs a reason", hint="--reason TEXT")
        claim = self._find_claim(
            ObjectRequest(namespace=request.namespace, name=request.name, uid=request.uid)
        )
        await self._loop.waive(claim.uid, DriverName(request.driver), who=actor, why=request.reason)
        return self._claim_view(claim.uid)

    async def _rotate(self, data: bytes, actor: str) -> list[str]:
        return list(self._rotate_keys(_decode(data, RotateRequest).users, actor))

    async def _import(self, data: bytes, actor: str) -> Imported:
        request = _decode(data, ImportRequest)
        why = f"kubelet checkpoint, sha256 {request.digest[:64]}"
        new, known = await self._loop.import_claims(request.claims, why=why, actor=actor)
        return Imported(claims=new, known=known)

    async def _settle(self, data: bytes, actor: str) -> Count:
        request = _decode(data, WaiveRequest)
        found = [
            waiver
            for waiver in self._node.waivers.values()
            if (waiver.claim.namespace, waiver.claim.name) == (request.namespace, request.name)
            and waiver.driver == request.driver
            and request.uid in ("", waiver.claim.uid)
        ]
        if not found:
            raise NotFoundError(
                f"no waived debt of {request.driver} for {request.namespace}/{request.name}",
                hint=f"claimlet drivers can-stop {request.driver} lists them",
            )
        for waiver in found:
            await self._loop.settle(waiver.claim.uid, waiver.driver, who=actor, why=request.reason)
        return Count(count=len(found))

    def _find_claim(self, request: ObjectRequest) -> ClaimState:
        """
        Return the claim that a name means: the open one, else the newest; or the one with the UID.

        Raises:
            NotFoundError: There is none.
            AmbiguousError: There are several open ones.
        """
        found = find_claim(self._node, request.namespace, request.name)
        if request.uid:
            uids = self._node.by_name.get((request.namespace, request.name), ())
            found = [self._node.claims[uid] for uid in uids if uid == request.uid]
        if not found:
            raise NotFoundError(
                f"there is no claim {request.namespace}/{request.name} on this node",
                hint="claimlet claims list -A",
            )
        if len(found) > 1:
            rows = ", ".join(f"{c.uid} ({c.phase.value})" for c in found)
            raise AmbiguousError(
                f"{request.namespace}/{request.name} means several claims: {rows}",
                hint="--uid chooses one",
            )
        return found[0]


def _decode(data: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(
            f"the request cannot be read: {error}",
            hint="is the client of the service's version? claimlet version",
        ) from None


def _object(ref: PodRef) -> ObjectView:
    # Of a refused pod the names may be of any length.
    namespace, name, uid = (x[:_NAME_CHARACTERS_MAX] for x in (ref.namespace, ref.name, ref.uid))
    return ObjectView(namespace=namespace, name=name, uid=uid)


def _ref(pod: PodState | Refusal) -> PodRef:
    return pod.ref if isinstance(pod, PodState) else pod.pod
