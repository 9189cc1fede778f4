"""Calls to real servers on real sockets: what is sent, and what each way to fail is called."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.adapters.plugins.driver_process import DRIVER, DriverProcess, eventually
from tests.adapters.plugins.local_driver import LocalDriver
from tests.adapters.plugins.node import Node, claim, claims

from claimlet.adapters.plugins.channel import FRAME_BYTES_MAX, DriverChannel
from claimlet.adapters.plugins.dra import DraAdapter
from claimlet.adapters.plugins.simulator.driver import PANIC_EXIT_CODE
from claimlet.adapters.plugins.wire import V1, V1BETA1
from claimlet.engine.answers import judge
from claimlet.engine.ports import DriverCallError, Failed, Prepared
from claimlet.engine.texts import TEXT_BYTES_MAX
from claimlet.events.values import ClaimUid, PreparedDevice


class TestWhatIsSent:
    """All claims of a driver in one call, and nothing that would confuse it."""

    @pytest.mark.field(43)
    @pytest.mark.rule("R3")
    async def test_one_call_for_all_claims(self, root: Path) -> None:
        """Three claims are one call, and each has its own result."""
        async with LocalDriver(root) as driver:
            driver.script({"fail": "busy", "claim": "b"})

            outcomes = await driver.prepare(*claims("a", "b", "c"))

        assert driver.batches() == [["a", "b", "c"]]
        assert [type(outcome) for outcome in outcomes.values()] == [Prepared, Failed, Prepared]

    async def test_no_claim_twice(self, root: Path) -> None:
        """A claim that is named twice is sent once."""
        async with LocalDriver(root) as driver:
            outcomes = await driver.prepare(*claims("a", "b", "a"))

        assert driver.batches() == [["a", "b"]]
        assert set(outcomes) == {"uid-a", "uid-b"}

    async def test_no_empty_uid(self, root: Path) -> None:
        """A claim without a UID is never sent: drivers answer yes to it, and it means nothing."""
        async with LocalDriver(root) as driver:
            outcomes = await driver.unprepare(claim("a", uid=""), claim("b"))

        assert driver.batches("unprepare") == [["b"]]
        assert outcomes[ClaimUid("uid-b")] is None
        refused = outcomes[ClaimUid("")]
        assert isinstance(refused, Failed)
        assert (refused.outcome, refused.code) == ("invalid", "no_uid")

    async def test_no_empty_call(self, root: Path) -> None:
        """No claims are no call."""
        async with LocalDriver(root) as driver:
            assert await driver.prepare() == {}

        assert driver.batches() == []

    async def test_large_batches_are_split(self, root: Path) -> None:
        """More claims than a throttled driver can read in time go in several calls."""
        names = [f"c{number}" for number in range(450)]
        async with LocalDriver(root, in_memory=True) as driver:
            outcomes = await driver.prepare(*claims(*names))

        assert [len(call) for call in driver.batches()] == [200, 200, 50]
        assert all(isinstance(outcome, Prepared) for outcome in outcomes.values())
        assert len(outcomes) == 450

    async def test_a_failed_part_costs_no_other(self, root: Path) -> None:
        """Where a later part fails, earlier results stay and what was not sent is told apart."""
        names = [f"c{number}" for number in range(450)]
        async with LocalDriver(root, in_memory=True) as driver:
            driver.script({"status": "INTERNAL", "text": "boom", "claim": "c250"})

            outcomes = await driver.prepare(*claims(*names))

        assert [len(call) for call in driver.batches()] == [200, 200]
        assert isinstance(outcomes[ClaimUid("uid-c0")], Prepared)
        assert outcomes[ClaimUid("uid-c250")] == Failed("boom", "refused", "INTERNAL")
        not_sent = outcomes[ClaimUid("uid-c449")]
        assert isinstance(not_sent, Failed)
        assert (not_sent.outcome, not_sent.code) == ("unreachable", "not_sent")

    async def test_older_version(self, root: Path) -> None:
        """A driver that only has v1beta1 is called through it."""
        async with LocalDriver(root, api=V1BETA1, versions=("v1beta1.DRAPlugin",)) as driver:
            prepared = await driver.prepare(*claims("a"))
            unprepared = await driver.unprepare(*claims("a"))

        assert isinstance(prepared[ClaimUid("uid-a")], Prepared)
        assert unprepared == {"uid-a": None}
        assert {call.get("api") for call in driver.calls()} == {"v1beta1"}


class TestAnswers:
    """What drivers get wrong costs the claim it is about, and no more."""

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            ({"answer": "bad_cdi"}, "cdi_id"),
            ({"answer": "many_cdi", "count": 33}, "too_large"),
            ({"answer": "many_devices", "count": 257}, "too_large"),
            ({"answer": "huge"}, "too_large"),
        ],
    )
    async def test_one_bad_claim(self, root: Path, answer: dict[str, Any], code: str) -> None:
        """An answer that is invalid or too large is that claim's failure."""
        async with LocalDriver(root) as driver:
            driver.script({"claim": "b", **answer})

            outcomes = await driver.prepare(*claims("a", "b"))

        assert isinstance(judge(outcomes[ClaimUid("uid-a")]), Prepared)
        failed = judge(outcomes[ClaimUid("uid-b")])
        assert isinstance(failed, Failed)
        assert (failed.outcome, failed.code) == ("invalid", code)

    @pytest.mark.field(42)
    async def test_missing_and_unasked(self, root: Path) -> None:
        """What is missing is left out, what nobody asked for is reported, and life goes on."""
        async with LocalDriver(root) as driver:
            driver.script({"claim": "b", "answer": "missing"}, {"answer": "unasked"})

            outcomes = await driver.prepare(*claims("a", "b"))

        assert ClaimUid("uid-b") not in outcomes
        assert {uid for uid in outcomes if "unasked" in uid}

    async def test_entry_without_devices(self, root: Path) -> None:
        """An empty entry is a success without devices."""
        async with LocalDriver(root) as driver:
            driver.script({"answer": "empty"})

            outcomes = await driver.prepare(*claims("a"))

        assert outcomes == {"uid-a": Prepared()}

    async def test_undecodable(self, root: Path) -> None:
        """Bytes that are no answer are an invalid answer, and the next call works."""
        async with LocalDriver(root) as driver:
            driver.script({"answer": "garbage", "times": 1})

            error = await driver.fails("a")
            after = await driver.prepare(*claims("a"))

        assert (error.outcome, error.code) == ("invalid", "undecodable")
        assert isinstance(after[ClaimUid("uid-a")], Prepared)

    async def test_frame_over_the_limit(self, root: Path) -> None:
        """A frame of more than 4 MiB is refused clearly, and the next call works."""
        async with LocalDriver(root) as driver:
            driver.script({"answer": "huge", "size_bytes": FRAME_BYTES_MAX + 1, "times": 1})

            error = await driver.fails("a")
            after = await driver.prepare(*claims("a"))

        assert (error.outcome, error.code) == ("invalid", "RESOURCE_EXHAUSTED")
        assert "larger than max" in str(error)
        assert isinstance(after[ClaimUid("uid-a")], Prepared)

    async def test_unprepare_of_what_nobody_knows(self, root: Path) -> None:
        """Unprepare says yes to claims that were never prepared, and again when repeated."""
        async with LocalDriver(root) as driver:
            for _ in range(2):
                done = await driver.unprepare(*claims("a", "b"))

                assert done == {"uid-a": None, "uid-b": None}


class TestFailedCalls:
    """An error of the call says nothing about single claims, and says what may have happened."""

    @pytest.mark.parametrize(
        ("status", "outcome"),
        [
            ("UNKNOWN", "refused"),
            ("INTERNAL", "refused"),
            ("FAILED_PRECONDITION", "refused"),
            # A driver's own word for "no devices left", not gRPC's for a frame that is too large.
            ("RESOURCE_EXHAUSTED", "refused"),
            ("UNAVAILABLE", "unknown"),
            ("DEADLINE_EXCEEDED", "unknown"),
            ("CANCELLED", "unknown"),
        ],
    )
    async def test_status(self, root: Path, status: str, outcome: str) -> None:
        """The status decides, not the text; the text is kept."""
        async with LocalDriver(root) as driver:
            driver.script({"status": status, "text": "Insufficient Resources"})

            error = await driver.fails("a")

        assert (error.outcome, error.code) == (outcome, status)
        assert "Insufficient Resources" in str(error)

    async def test_version_that_is_not_served(self, root: Path) -> None:
        """A service that the driver does not have is a refusal."""
        async with LocalDriver(root, api=V1BETA1, versions=("v1.DRAPlugin",)) as driver:
            error = await driver.fails("a")

        assert (error.outcome, error.code) == ("refused", "UNIMPLEMENTED")

    async def test_long_text(self, root: Path) -> None:
        """A status text of many kilobytes is cut to 4 KiB with a mark, not lost."""
        async with LocalDriver(root) as driver:
            driver.script({"status": "INTERNAL", "text": "stack trace " * 2000})

            error = await driver.fails("a")

        assert (error.outcome, error.code) == ("refused", "INTERNAL")
        assert str(error).startswith("stack trace")
        assert str(error).endswith("(cut)")
        assert len(str(error).encode()) <= TEXT_BYTES_MAX

    async def test_deadline(self, root: Path) -> None:
        """A driver that is too slow may have acted, or act later."""
        async with LocalDriver(root) as driver:
            driver.script({"delay_seconds": 0.3})

            error = await driver.fails("a", seconds=0.1)
            await eventually(lambda: driver.calls("prepare")[0].get("answer"), "it acted")

        assert (error.outcome, error.code) == ("unknown", "DEADLINE_EXCEEDED")

    async def test_hang(self, root: Path) -> None:
        """A driver that never answers is left at the deadline."""
        async with LocalDriver(root) as driver:
            driver.script({"hang": True})

            error = await driver.fails("a", seconds=0.1)

        assert error.outcome == "unknown"

    async def test_nobody_there(self, root: Path) -> None:
        """Without a socket, or with one that nobody serves, the call was never made."""
        driver = LocalDriver(root)
        path = driver.options.service_socket

        missing = await driver.fails("a")
        with socket.socket(socket.AF_UNIX) as unserved:
            unserved.bind(str(path))
        stale = await driver.fails("a")
        await driver.channel.close()

        assert path.exists()
        assert (missing.outcome, missing.code) == ("unreachable", "UNAVAILABLE")
        assert (stale.outcome, stale.code) == ("unreachable", "UNAVAILABLE")

    async def test_accepts_and_says_nothing(self, root: Path) -> None:
        """A peer that takes the connection and says nothing was never called."""
        path = root / "mute.sock"
        with socket.socket(socket.AF_UNIX) as mute:
            mute.bind(str(path))
            mute.listen()
            channel = DriverChannel(str(path))
            adapter = DraAdapter(DRIVER, channel=channel, api=V1)

            with pytest.raises(DriverCallError) as caught:
                await adapter.prepare(claims("a"), timeout_seconds=1.0)
            await channel.close()

        assert caught.value.outcome == "unreachable"

    async def test_speaks_something_else(self, root: Path) -> None:
        """A peer that speaks no HTTP/2 was never called."""
        path = root / "other.sock"

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n" * 1000)
            writer.close()

        async with await asyncio.start_unix_server(answer, path):
            channel = DriverChannel(str(path))
            adapter = DraAdapter(DRIVER, channel=channel, api=V1)

            with pytest.raises(DriverCallError) as caught:
                await adapter.prepare(claims("a"), timeout_seconds=1.0)
            await channel.close()

        assert caught.value.outcome == "unreachable"

    async def test_connection_closed_by_us(self, root: Path) -> None:
        """A call whose connection is closed on our side has no outcome, and no cancellation."""
        async with LocalDriver(root) as driver:
            driver.script({"hang": True})
            failing = asyncio.ensure_future(driver.fails("a"))
            await eventually(driver.calls, "the call has arrived")

            await driver.channel.close()
            error = await failing

        assert (error.outcome, error.code) == ("unknown", "CANCELLED")

    async def test_connection_closed_in_peace(self, root: Path) -> None:
        """A call in flight may end when its connection is closed with patience."""
        async with LocalDriver(root) as driver:
            driver.script({"delay_seconds": 0.2})
            call = asyncio.ensure_future(driver.prepare(*claims("a")))
            await eventually(driver.calls, "the call has arrived")

            await driver.channel.close(grace_seconds=10.0)

        assert isinstance((await call)[ClaimUid("uid-a")], Prepared)

    async def test_instance_that_was_let_go(self, root: Path) -> None:
        """Who still holds the adapter of an instance that is gone reaches nobody and is told so."""
        async with LocalDriver(root) as driver:
            driver.script({"hang": True, "times": 1})
            hanging = asyncio.ensure_future(driver.fails("a"))
            await eventually(driver.batches, "the call has arrived")
            closing = asyncio.ensure_future(driver.channel.close(grace_seconds=1.0))
            await asyncio.sleep(0)

            while_closing = await driver.fails("b")
            await driver.channel.close()
            afterwards = await driver.fails("c")
            await asyncio.gather(hanging, closing)

        assert (while_closing.outcome, afterwards.outcome) == ("unreachable", "unreachable")
        assert driver.batches() == [["a"]]

    async def test_caller_leaves(self, root: Path) -> None:
        """A caller that is cancelled is cancelled, and the connection is good for the next call."""
        async with LocalDriver(root) as driver:
            driver.script({"hang": True, "times": 1})
            call = asyncio.ensure_future(driver.prepare(*claims("a")))
            await eventually(driver.calls, "the call has arrived")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call

            after = await driver.prepare(*claims("a"))

        assert isinstance(after[ClaimUid("uid-a")], Prepared)


class TestProcesses:
    """Drivers that die and come back."""

    @pytest.mark.parametrize("when", ["before", "after"])
    async def test_panic(self, root: Path, when: str) -> None:
        """A driver that dies during the call may have acted: unknown, not failed."""
        panic = {"panic": True, "when": when, "times": 1, "method": "prepare"}
        async with Node(root) as node, DriverProcess(root, steps=[panic]) as driver:
            first = await node.instance()
            with pytest.raises(DriverCallError) as caught:
                await node.prepare(claim("a"))
            assert await driver.wait() == PANIC_EXIT_CODE
            await node.is_gone(first)

            await driver.start()
            await node.instance()
            after = await node.prepare(claim("a"))

        assert caught.value.outcome == "unknown"
        assert isinstance(after[ClaimUid("uid-a")], Prepared)

    async def test_same_answer_after_a_kill(self, root: Path) -> None:
        """A prepare that is repeated, also by a new process, gives the same devices."""
        async with Node(root) as node, DriverProcess(root) as driver:
            first = await node.instance()
            answers = [await node.prepare(claim("a")) for _ in range(2)]
            await driver.kill()
            await node.is_gone(first)
            await driver.start()
            await node.instance()
            answers.append(await node.prepare(claim("a")))

        assert answers[0] == answers[1] == answers[2]

    async def test_same_answer_through_the_older_version(self, root: Path) -> None:
        """The version makes no difference to what is prepared."""
        async with Node(root) as node:
            async with DriverProcess(root, DRIVER, "--versions", "v1.DRAPlugin") as driver:
                await node.instance()
                newer = await node.prepare(claim("a"))
                await driver.stop()
            await eventually(lambda: not node.connected, "the driver is gone")
            async with DriverProcess(root, DRIVER, "--versions", "v1beta1.DRAPlugin"):
                instance = await node.instance()
                older = await node.prepare(claim("a"))

        assert instance.api == "v1beta1"
        assert newer == older

    async def test_devices_by_table(self, root: Path) -> None:
        """The driver answers with the devices that its script has for the claim."""
        device = {"pool": "node-a", "device": "gpu-7", "requests": ["gpu"]}
        async with Node(root) as node, DriverProcess(root, devices={"a": [device]}):
            await node.instance()
            outcome = (await node.prepare(claim("a")))[ClaimUid("uid-a")]

        assert outcome == Prepared(
            devices=(
                PreparedDevice(
                    pool="node-a",
                    device="gpu-7",
                    requests=("gpu",),
                    cdi_device_ids=("k8s.gpu.example.com/device=uid-a-gpu-7",),
                ),
            )
        )
