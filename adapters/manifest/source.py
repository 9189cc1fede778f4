"""
The manifest source: it asks for the pods of a directory, and says when one is gone.

A pod is gone when its file is missing in two complete scans, some time apart, of the directory that
was seen first.  A missing directory, another one under its name, or all of several pods missing at
once say nothing: the source is *not in sync* until a pod is there again, or an operator unprepares
the pods by hand (design.md rule 9).  Each file is requested once per boot; a refused one is offered
again with backoff.  A missing file means that the pod's containers have ended: the devices are
taken back.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any, Self

import msgspec
import structlog
from watchfiles import awatch

from ...config.settings import Settings
from ...engine.errors import ClaimletError, RefusedError
from ...engine.loop import NodeLoop
from ...engine.pod import PreparePod
from ...events.facts import UnprepareRequested
from ...events.values import PodUid
from ...events.world import World
from ..kubernetes.wishes import Manifest, wishes
from .directory import ManifestDirectory, check_directory

__all__ = ["ManifestSource"]

_SOURCE = "manifest"
#: How far apart the two scans must be that miss a pod.
_APART_SECONDS = 1.0
_OFFER_SECONDS_FIRST, _OFFER_SECONDS_MAX = 1.0, 60.0

_log: Any = structlog.get_logger()


class _Offer(msgspec.Struct):
    """A refused pod: when it is offered again."""

    due: float = 0.0
    delay_seconds: float = _OFFER_SECONDS_FIRST


class ManifestSource:
    """Watches a directory for *loop*; use it as `async with`."""

    def __init__(self, settings: Settings, loop: NodeLoop, *, world: World) -> None:
        assert settings.manifest.directory is not None
        check_directory(settings.manifest.directory)
        self._directory = ManifestDirectory(
            settings.manifest.directory, honour_skips=settings.prepare.skip_node_operations
        )
        self._scan_seconds = settings.manifest.scan_seconds
        self._loop = loop
        self._world = world
        self._first_identity: tuple[int, int] | None = None
        self._missing_since: dict[PodUid, float] = {}
        self._offers: dict[PodUid, _Offer] = {}
        self._is_in_sync = True
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._world.spawn(self._run(), name="manifests")
        self._world.spawn(self._watch(), name="manifests watch")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._wake.set()

    @property
    def name(self) -> str:
        """Return the source's name."""
        return _SOURCE

    @property
    def is_in_sync(self) -> bool:
        """Return whether a missing file means anything now."""
        return self._is_in_sync

    async def _watch(self) -> None:
        """Wake `_run` when something in the directory changes; its own scans find the rest."""
        while not self._stop.is_set():
            if self._directory.identity() is None:
                await self._world.sleep(min(self._scan_seconds, 1.0))
                continue
            async for _ in awatch(
                self._directory.path,
                watch_filter=None,
                debounce=50,
                step=10,
                recursive=False,
                rust_timeout=1000,
                yield_on_timeout=True,
                stop_event=self._stop,
            ):
                if _:
                    self._wake.set()
                if self._directory.identity() != self._first_identity:
                    break

    async def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.clear()
            try:
                pause = await self._round()
            except ClaimletError as error:
                if error.exit_code == _FENCED:
                    raise
                _log.warning("manifests_wait", reason=str(error))
                pause = _APART_SECONDS
            try:
                async with self._world.timeout(pause):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _round(self) -> float:
        """Scan once and do what follows; return in how many seconds to scan again at the latest."""
        identity = self._directory.identity()
        manifest = self._directory.scan() if identity is not None else None
        if manifest is None:
            self._lose_sync("the directory cannot be read")
            return min(self._scan_seconds, _APART_SECONDS)
        if self._first_identity is None:
            self._first_identity = identity
        wanted = wishes(
            manifest,
            self._loop.node,
            source=_SOURCE,
            actor=_SOURCE,
            new_id=self._world.new_id,
        )
        for wish in wanted:
            await self._offer(wish)
        await self._loop.sync_source(_SOURCE)
        await self._judge_missing(manifest, identity)
        waiting = [offer.due - self._world.monotonic() for offer in self._offers.values()]
        soonest = min([*waiting, *([_APART_SECONDS] if self._missing_since else [])], default=60.0)
        return max(min(self._scan_seconds, soonest), 0.05)

    async def _offer(self, wish: PreparePod) -> None:
        uid = wish.pod.ref.uid
        offer = self._offers.get(uid)
        if offer is not None and self._world.monotonic() < offer.due:
            return
        try:
            await self._loop.prepare_pod(wish)
        except RefusedError as error:
            offer = self._offers.setdefault(uid, _Offer())
            offer.due = self._world.monotonic() + offer.delay_seconds
            offer.delay_seconds = min(2 * offer.delay_seconds, _OFFER_SECONDS_MAX)
            _log.info("manifest_pod_refused", pod=str(wish.pod.ref), reasons=error.reasons)
        else:
            self._offers.pop(uid, None)

    async def _judge_missing(self, manifest: Manifest, identity: tuple[int, int] | None) -> None:
        """Say of a pod that it is gone, where the scans are evidence of that."""
        node = self._loop.node
        names = {(pod.namespace, pod.name) for pod in manifest.pods}
        own = [
            pod
            for pod in node.pods.values()
            if pod.request is not None and pod.request.source == _SOURCE and not pod.ended
        ]
        missing = [pod for pod in own if (pod.ref.namespace, pod.ref.name) not in names]
        if identity != self._first_identity:
            self._lose_sync("another directory stands in its place")
            return
        if len(missing) > 1 and len(missing) == len(own):
            self._lose_sync(f"all {len(missing)} pods are missing at once")
            return
        if not self._is_in_sync:
            self._is_in_sync = True
            _log.info("manifests_in_sync", pods=len(own))
        now = self._world.monotonic()
        seen = {pod.ref.uid for pod in missing}
        self._missing_since = {u: t for u, t in self._missing_since.items() if u in seen}
        for pod in missing:
            since = self._missing_since.setdefault(pod.ref.uid, now)
            if now - since >= _APART_SECONDS:
                fact = UnprepareRequested(reason="manifest removed", source=_SOURCE)
                await self._loop.end_pod(pod.ref.uid, fact, actor=_SOURCE)
                del self._missing_since[pod.ref.uid]

    def _lose_sync(self, why: str) -> None:
        self._missing_since.clear()
        if self._is_in_sync:
            self._is_in_sync = False
            _log.warning(
                "manifests_not_in_sync",
                directory=str(self._directory.path),
                reason=why,
                hint="nothing is unprepared; bring the files back, or use claimlet pod unprepare",
            )


#: The log belongs to another writer: no source goes on.
_FENCED = 6
