"""The scriptable driver is a good driver until its script says otherwise."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from tests.adapters.gateway.client import NODE, Claims, gateway_claim
from tests.adapters.plugins.driver_process import DRIVER, DriverProcess, eventually
from tests.adapters.plugins.local_driver import LocalDriver
from tests.adapters.plugins.node import CALL_SECONDS, Node, claim, claims, devices_of, text_of

from claimlet.adapters.gateway.server import ClaimsGateway
from claimlet.adapters.plugins.simulator.driver import PANIC_EXIT_CODE, SimulatedDriver
from claimlet.adapters.plugins.simulator.options import DriverOptions
from claimlet.adapters.plugins.wire import V1, encode_claims
from claimlet.adapters.world import RealWorld
from claimlet.engine.answers import is_cdi_id
from claimlet.engine.ports import Claim, DriverCallError, Failed, Prepared
from claimlet.events.values import ClaimUid

A = ClaimUid("uid-a")


class TestCdiFiles:
    """What a container runtime gets to read."""

    async def test_written_and_removed(self, root: Path) -> None:
        """A prepared claim has a valid file that defines its ids; an unprepared one has none."""
        async with LocalDriver(root) as driver:
            outcomes = await driver.prepare(*claims("a", "b"))
            (device,) = devices_of(outcomes[A])
            spec = json.loads((root / "cdi" / f"{DRIVER}_uid-a.json").read_text())
            await driver.unprepare(claim("a"))

        (cdi_id,) = device.cdi_device_ids
        assert is_cdi_id(cdi_id)
        assert spec["cdiVersion"] == "0.6.0"
        assert cdi_id == f"{spec['kind']}={spec['devices'][0]['name']}"
        assert spec["devices"][0]["containerEdits"]["env"]
        assert [path.name for path in (root / "cdi").iterdir()] == [f"{DRIVER}_uid-b.json"]

    async def test_restored(self, root: Path) -> None:
        """After a reboot the checkpoint is there and the files are not: prepare restores them."""
        async with LocalDriver(root, cdi_dir=root / "run") as driver:
            before = await driver.prepare(claim("a"))
            (file,) = (root / "run").iterdir()
            file.unlink()

            assert await driver.prepare(claim("a")) == before
            assert file.exists()

    async def test_none_in_memory(self, root: Path) -> None:
        """In memory there is nothing but the answer."""
        async with LocalDriver(root, in_memory=True) as driver:
            first = await driver.prepare(claim("a"))

            assert await driver.prepare(claim("a")) == first
            assert await driver.unprepare(claim("a")) == {A: None}

        assert not (root / "cdi").exists()
        assert not [path for path in driver.options.data_dir.iterdir() if path.is_file()]

    async def test_uid_that_is_a_path(self, root: Path) -> None:
        """A UID that could be a path is that claim's error."""
        async with LocalDriver(root) as driver:
            outcomes = await driver.prepare(claim("a", uid="../../a"), claim("b"))

        assert isinstance(outcomes[ClaimUid("../../a")], Failed)
        assert isinstance(outcomes[ClaimUid("uid-b")], Prepared)


class TestLedger:
    """What tests count."""

    async def test_calls_and_answers(self, root: Path) -> None:
        """Each call is noted with its claims and its answer."""
        async with LocalDriver(root) as driver:
            await driver.prepare(*claims("a", "b"))
            await driver.unprepare(claim("a"))

        (prepare,) = driver.calls("prepare")
        (unprepare,) = driver.calls("unprepare")
        assert [found["name"] for found in prepare["claims"]] == ["a", "b"]
        assert set(prepare["answer"]) == {"uid-a", "uid-b"}
        assert unprepare["answer"]["uid-a"]["error"] == ""
        assert prepare["call"] != unprepare["call"]

    async def test_call_without_an_answer(self, root: Path) -> None:
        """A call that never gets an answer is noted all the same."""
        async with LocalDriver(root) as driver:
            driver.script({"hang": True})
            with pytest.raises(DriverCallError):
                await driver.adapter.prepare(claims("a"), timeout_seconds=0.1)

        (call,) = driver.calls("prepare")
        assert "answer" not in call

    async def test_empty_call(self, root: Path) -> None:
        """A liveness probe's prepare without claims is answered, and is a call without claims."""
        async with LocalDriver(root) as driver:
            request = encode_claims(V1, [])
            answer = await driver.channel.call(V1.prepare, request, timeout_seconds=CALL_SECONDS)

        assert answer == b""
        assert driver.calls("prepare")[0]["claims"] == []


class TestScript:
    """It is read live, and its uses are counted."""

    async def test_failures_by_claim_and_count(self, root: Path) -> None:
        """A step fails the claim that it names so many times, by UID or by name."""
        async with LocalDriver(root) as driver:
            driver.script({"fail": "busy", "claim": "default/a", "times": 2, "method": "prepare"})
            outcomes = [(await driver.prepare(*claims("a", "b"))) for _ in range(3)]

        assert [type(found[A]) for found in outcomes] == [Failed, Failed, Prepared]
        assert all(isinstance(found[ClaimUid("uid-b")], Prepared) for found in outcomes)

    async def test_changes_while_it_runs(self, root: Path) -> None:
        """A new script is what happens from then on; a broken one changes nothing."""
        async with LocalDriver(root) as driver:
            driver.script({"fail": "first"})
            first = await driver.prepare(claim("a"))
            driver.script({"fail": "second"})
            second = await driver.prepare(claim("a"))
            driver.script_file.write_text("{")
            third = await driver.prepare(claim("a"))

        assert [text_of(found[A]) for found in (first, second, third)] == [
            "first",
            "second",
            "second",
        ]

    async def test_counts_outlive_the_process(self, root: Path) -> None:
        """A step that kills the process once does not kill the next one; an id makes it anew."""
        step = {"panic": True, "times": 1}
        async with Node(root) as node, DriverProcess(root, steps=[step]) as driver:
            for again in ({}, {"id": "second"}):
                driver.script({**step, **again})
                await node.instance()
                with pytest.raises(DriverCallError):
                    await node.prepare(claim("a"))
                assert await driver.wait() == PANIC_EXIT_CODE
                await eventually(lambda: not node.connected, "the driver is gone")
                await driver.start()
            await node.instance()

            assert isinstance((await node.prepare(claim("a")))[A], Prepared)

    async def test_one_after_another(self, root: Path) -> None:
        """A serialised driver answers one call after another, each taking its time."""
        async with LocalDriver(root, in_memory=True) as driver:
            driver.script(serialize_seconds=0.03)
            await asyncio.gather(*(driver.prepare(claim(name)) for name in "abcd"))

        lines = map(json.loads, driver.ledger.read_text().splitlines())
        times = [
            datetime.fromisoformat(line["time"]) for line in lines if line["event"] == "answered"
        ]
        gaps = [(b - a).total_seconds() for a, b in pairwise(times)]
        assert min(gaps) >= 0.03  # a lower bound: a busy machine only makes it longer

    async def test_from_standard_input(self, root: Path) -> None:
        """The script may come from standard input, once."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "claimlet.adapters.plugins.simulator", "--root", str(root)),
            *("--driver", DRIVER, "--script", "-"),
            stdin=asyncio.subprocess.PIPE,
        )
        async with Node(root) as node:
            assert process.stdin is not None
            process.stdin.write(b'{"steps": [{"fail": "from stdin"}]}')
            process.stdin.close()
            await node.instance()
            outcome = (await node.prepare(claim("a")))[A]
            process.terminate()

            assert await process.wait() == 0

        assert isinstance(outcome, Failed)
        assert outcome.text == "from stdin"

    @pytest.mark.parametrize(
        "script", ["{", '{"steps": [{"times": "two"}]}', '{"stops": []}', '{"steps": [{"f": 1}]}']
    )
    async def test_broken_from_the_start(self, root: Path, script: str) -> None:
        """A script that cannot be read is one clear line and exit code 2."""
        (root / "script.json").write_text(script)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "claimlet.adapters.plugins.simulator", "--root", str(root)),
            *("--driver", DRIVER, "--script", str(root / "script.json")),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()

        assert process.returncode == 2
        assert said.startswith(b"error: ")
        assert len(said.splitlines()) == 1


class TestSockets:
    """What it leaves behind."""

    async def test_stop_and_kill(self, root: Path) -> None:
        """A driver that stops takes its sockets with it; a killed one leaves both."""
        async with Node(root) as node, DriverProcess(root) as driver:
            sockets = driver.paths.registration_socket, driver.paths.service_socket
            await node.instance()
            await driver.stop()
            assert not any(path.exists() for path in sockets)

            await eventually(lambda: not node.connected, "the driver is gone")
            await driver.start()
            await node.instance()
            await driver.kill()

            assert all(path.is_socket() for path in sockets)


class TestReadingClaims:
    """With a kubeconfig it reads allocations, as drivers on upstream's helper do."""

    @pytest.fixture
    async def gateway(self, root: Path) -> AsyncIterator[ClaimsGateway]:
        known = Claims(
            gateway_claim("a", DRIVER, "nic.example.com"),
            gateway_claim("b", DRIVER),
            gateway_claim("replaced", DRIVER),
        )
        async with (
            RealWorld() as world,
            ClaimsGateway(known, state_dir=root / "state", node=NODE, world=world) as gateway,
        ):
            yield gateway

    async def test_devices_of_the_allocation(self, root: Path, gateway: ClaimsGateway) -> None:
        """It prepares what was allocated for it, and nothing of other drivers."""
        async with LocalDriver(root, kubeconfig=gateway.kubeconfig_for(DRIVER)) as driver:
            outcomes = await driver.prepare(claim("a"))

        (device,) = devices_of(outcomes[A])
        assert (device.pool, device.device, device.requests) == (NODE, "dev-0", ("r0",))

    @pytest.mark.parametrize("wrong", [claim("nope"), claim("replaced", uid="uid-other")])
    async def test_one_wrong_claim_fails_the_call(
        self, root: Path, gateway: ClaimsGateway, wrong: Claim
    ) -> None:
        """A claim that is missing or was replaced fails the whole call, and nothing was done."""
        async with LocalDriver(root, kubeconfig=gateway.kubeconfig_for(DRIVER)) as driver:
            with pytest.raises(DriverCallError, match=wrong.ref.name) as caught:
                await driver.prepare(claim("b"), wrong)

        assert (caught.value.outcome, caught.value.code) == ("refused", "UNKNOWN")
        assert not list((root / "cdi").iterdir())

    async def test_unprepare_reads_nothing(self, root: Path, gateway: ClaimsGateway) -> None:
        """Unprepare never asks the API server."""
        async with LocalDriver(root, kubeconfig=gateway.kubeconfig_for(DRIVER)) as driver:
            done = await driver.unprepare(claim("nope"))

        assert done == {"uid-nope": None}

    def test_bad_kubeconfig(self, root: Path) -> None:
        """A file that names no server is refused where it is named."""
        path = root / "kubeconfig"
        path.write_text("clusters: []")

        with pytest.raises(ValueError, match="kubeconfig"):
            SimulatedDriver(DriverOptions(root=root, driver=DRIVER, kubeconfig=path))
