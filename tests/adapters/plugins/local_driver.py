"""A simulated driver in the test's own process, on real sockets, with an adapter that calls it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from tests.adapters.plugins.driver_process import DRIVER, calls_in, write_script
from tests.adapters.plugins.node import CALL_SECONDS, claims

from claimlet.adapters.plugins.channel import DriverChannel
from claimlet.adapters.plugins.dra import DraAdapter
from claimlet.adapters.plugins.simulator.driver import SimulatedDriver
from claimlet.adapters.plugins.simulator.options import DriverOptions
from claimlet.adapters.plugins.wire import V1, DraApi
from claimlet.engine.ports import Claim, DriverCallError, Failed, Prepared
from claimlet.events.values import ClaimUid

__all__ = ["LocalDriver"]


class LocalDriver(SimulatedDriver):
    """A driver below *root* that does *steps*; `async with` serves."""

    def __init__(
        self, root: Path, *steps: dict[str, Any], api: DraApi = V1, **options: Any
    ) -> None:
        name = f"{options.setdefault('driver', DRIVER)}{options.get('instance', '')}"
        self.ledger = root / f"{name}.ledger"
        self.script_file = root / f"{name}.script.json"
        self.script(*steps)
        super().__init__(
            DriverOptions(root=root, script=self.script_file, ledger=self.ledger, **options)
        )
        self.channel = DriverChannel(str(self.options.service_socket))
        self.adapter = DraAdapter(self.options.driver, channel=self.channel, api=api)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.channel.close()
        await super().__aexit__(kind, error, traceback)

    def script(self, *steps: dict[str, Any], **more: Any) -> None:
        """Let it do *steps* from now on."""
        write_script(self.script_file, steps=steps, **more)

    def calls(self, method: str = "") -> list[dict[str, Any]]:
        """Return the calls that arrived; those that were answered have an `answer`."""
        return calls_in(self.ledger, method)

    def batches(self, method: str = "prepare") -> list[list[str]]:
        """Return the names of the claims of each call."""
        return [[found["name"] for found in call["claims"]] for call in self.calls(method)]

    def told(self) -> list[tuple[bool, str]]:
        """Return what the driver was told about its registration."""
        statuses = [call["status"] for call in self.calls("notify")]
        return [(status["registered"], status["error"]) for status in statuses]

    async def prepare(self, *wanted: Claim) -> Mapping[ClaimUid, Prepared | Failed]:
        """Prepare the claims, without a registry."""
        return await self.adapter.prepare(wanted, timeout_seconds=CALL_SECONDS)

    async def unprepare(self, *wanted: Claim) -> Mapping[ClaimUid, Failed | None]:
        """Unprepare the claims, without a registry."""
        return await self.adapter.unprepare(wanted, timeout_seconds=CALL_SECONDS)

    async def fails(self, *names: str, seconds: float = CALL_SECONDS) -> DriverCallError:
        """Prepare claims and return how the call as a whole went wrong."""
        with pytest.raises(DriverCallError) as caught:
            await self.adapter.prepare(claims(*names), timeout_seconds=seconds)
        return caught.value
