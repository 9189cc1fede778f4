"""
The driver itself: registration and claims, on two sockets or on one.

Work for a call goes on when the caller has left, as in drivers that do not look at their deadline;
that is how a prepare that timed out can still act.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

import grpc
from grpc import aio

from ....events.values import ClaimRef, PreparedDevice
from ..wire import (
    APIS,
    GET_INFO,
    NOTIFY,
    ClaimAnswer,
    DraApi,
    PluginInfo,
    decode_claims,
    decode_status,
    encode_info,
    encode_prepare,
    encode_unprepare,
)
from .answers import GARBAGE, spoiled
from .claims import ClaimReader, ClaimReadError
from .ledger import Ledger
from .options import DriverOptions
from .script import Method, ScriptFile, Step
from .server import Ended, Handle, serve
from .state import DriverState, default_devices

__all__ = ["PANIC_EXIT_CODE", "SimulatedDriver"]

_T = TypeVar("_T")

#: The exit code of a driver that was told to panic.
PANIC_EXIT_CODE = 70


class SimulatedDriver:
    """A driver with *options*; it serves inside of `async with`."""

    def __init__(self, options: DriverOptions) -> None:
        self.options = options
        options.data_dir.mkdir(parents=True, exist_ok=True)
        options.registration_socket.parent.mkdir(parents=True, exist_ok=True)
        kept = not options.in_memory
        uses = options.data_dir / "script-uses.json"
        self._script = ScriptFile(options.script, uses=uses if kept else None)
        self._state = DriverState(
            options.driver,
            data_dir=options.data_dir if kept else None,
            cdi_dir=(options.cdi_dir or options.root / "cdi") if kept else None,
        )
        self._ledger = Ledger(options.ledger, instance=options.instance)
        self._reader = ClaimReader(options.kubeconfig) if options.kubeconfig else None
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turn = asyncio.Lock()
        self._registration: aio.Server | None = None
        self._service: aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        if not self.options.one_socket:
            if self.options.service_delay_seconds:
                self._spawn(self._start_service_later())
            else:
                await self.start_service()
        calls: dict[str, Handle] = {GET_INFO: self._get_info, NOTIFY: self._notify}
        if self.options.one_socket:
            calls |= self._claim_calls()
        self._registration = await serve(self.options.registration_socket, calls)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._registration is not None:
            await self._registration.stop(None)
        await self.stop_service()
        for task in self._tasks:
            task.cancel()
        if isinstance(error, Exception):
            kind = error = traceback = None  # it goes on as it is, not wrapped into a group
        await self._group.__aexit__(kind, error, traceback)
        self._ledger.close()

    async def start_service(self) -> None:
        """Open the socket that serves claims."""
        options = self.options
        self._service = await serve(
            options.service_socket, self._claim_calls(), options.server_options
        )

    async def stop_service(self) -> None:
        """Close the socket that serves claims; the registration stays."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop(None)

    # --- registration ---------------------------------------------------------------------------

    async def _get_info(self, request: bytes, context: Any) -> bytes:
        async def work() -> bytes | Ended:
            call = self._ledger.arrived("get_info", ())
            steps = self._script.take("get_info")
            if ended := await self._interfere(steps, when="before"):
                return ended
            options = self.options
            endpoint = options.advertise or str(options.service_socket)
            info = PluginInfo(
                type=options.plugin_type,
                name=options.driver,
                endpoint="" if options.one_socket else endpoint,
                supported_versions=options.versions,
            )
            self._ledger.answered(call, "get_info", info)
            return encode_info(info)

        return await self._finish(work(), context)

    async def _notify(self, request: bytes, context: Any) -> bytes:
        status = decode_status(request)

        async def work() -> bytes | Ended:
            call = self._ledger.arrived("notify", (), status=status)
            if ended := await self._interfere(self._script.take("notify"), when="before"):
                return ended
            self._ledger.answered(call, "notify", None)
            if not status.registered:
                # As upstream's helper does: the refusal comes back as an error.
                return Ended(grpc.StatusCode.UNKNOWN, f"failed registration: {status.error}")
            return b""

        return await self._finish(work(), context)

    # --- claims ---------------------------------------------------------------------------------

    def _claim_calls(self) -> dict[str, Handle]:
        calls: dict[str, Handle] = {}
        for api in (APIS[version] for version in self.options.versions if version in APIS):
            calls[api.prepare] = self._claims_call(api, "prepare")
            calls[api.unprepare] = self._claims_call(api, "unprepare")
        return calls

    def _claims_call(self, api: DraApi, method: Method) -> Handle:
        async def handle(request: bytes, context: Any) -> bytes:
            claims = decode_claims(api, request)
            return await self._finish(self._work(api, method, claims), context)

        return handle

    async def _work(self, api: DraApi, method: Method, claims: Sequence[ClaimRef]) -> bytes | Ended:
        call = self._ledger.arrived(method, claims, api=api.name)
        seconds = self._script.now().serialize_seconds
        if seconds is None:
            return await self._answer(api, method, claims, call=call)
        async with self._turn:
            await asyncio.sleep(seconds)
            return await self._answer(api, method, claims, call=call)

    async def _answer(
        self, api: DraApi, method: Method, claims: Sequence[ClaimRef], *, call: str
    ) -> bytes | Ended:
        steps = self._script.take(method, claims)
        ended = await self._interfere(steps, when="before")
        answers: dict[str, ClaimAnswer] = {}
        if ended is None:
            try:
                answers = await self._act(method, claims, steps)
            except ClaimReadError as error:
                ended = Ended(grpc.StatusCode.UNKNOWN, str(error))
            else:
                ended = await self._interfere(steps, when="after")
        if ended is not None:
            self._ledger.answered(call, method, {"status": ended.code.name, "text": ended.text})
            return ended
        answers = spoiled(answers, steps, claims)
        self._ledger.answered(call, method, answers)
        if any(step.answer == "garbage" for step in steps):
            return GARBAGE
        if method == "prepare":
            return encode_prepare(api, answers)
        return encode_unprepare(api, {uid: answer.error for uid, answer in answers.items()})

    async def _act(
        self, method: Method, claims: Sequence[ClaimRef], steps: Sequence[Step]
    ) -> dict[str, ClaimAnswer]:
        # All claims are read before any is prepared, as in upstream's helper.
        devices = [await self._devices(claim) for claim in claims] if method == "prepare" else []
        answers: dict[str, ClaimAnswer] = {}
        for index, claim in enumerate(claims):
            failures = [step.fail for step in steps if step.fail and step.is_for(claim)]
            try:
                if failures:
                    answers[claim.uid] = ClaimAnswer(error=failures[0])
                elif method == "prepare":
                    prepared = self._state.prepare(claim, devices[index])
                    answers[claim.uid] = ClaimAnswer(devices=prepared)
                else:
                    self._state.unprepare(claim)
                    answers[claim.uid] = ClaimAnswer()
            except (OSError, ValueError) as error:
                answers[claim.uid] = ClaimAnswer(error=str(error))
        return answers

    async def _devices(self, claim: ClaimRef) -> tuple[PreparedDevice, ...]:
        listed = self._script.now().devices_of(claim)
        if listed is not None:
            return listed
        if self._reader is not None:
            return await self._reader.devices(claim, driver=self.options.driver)
        return default_devices(claim, pool=self.options.driver)

    # --- faults ---------------------------------------------------------------------------------

    async def _interfere(self, steps: Sequence[Step], *, when: str) -> Ended | None:
        if when == "before":
            await asyncio.sleep(sum(step.delay_seconds for step in steps))
        for step in steps:
            if step.when != when:
                continue
            if step.panic:
                os._exit(PANIC_EXIT_CODE)
            if step.hang:
                await asyncio.Event().wait()
            if step.status:
                return Ended(grpc.StatusCode[step.status], step.text)
        return None

    async def _finish(self, work: Coroutine[Any, Any, bytes | Ended], context: Any) -> bytes:
        result = await asyncio.shield(self._spawn(work))
        if not isinstance(result, Ended):
            return result
        await context.abort(result.code, result.text)
        return b""

    def _spawn(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _start_service_later(self) -> None:
        await asyncio.sleep(self.options.service_delay_seconds)
        await self.start_service()
