"""kubelet's checkpoint: what is read from it, what is refused, and what is written."""

from __future__ import annotations

import json
from typing import Any
from zlib import crc32

import msgspec
import pytest

from claimlet.adapters.kubernetes.checkpoint import (
    CHECKPOINT_BYTES_MAX,
    read_checkpoint,
    write_checkpoint,
)
from claimlet.engine.errors import UsageError
from claimlet.engine.node import Node
from claimlet.engine.restore import ForeignClaim, decide_import
from claimlet.engine.views import ClaimView, claim_views
from claimlet.events.record import Stamp, stamp

#: A kubelet 1.32 with one prepared claim, byte for byte.
ONE = (
    rb'{"Data":"{\"kind\":\"DRACheckpoint\",\"apiVersion\":\"checkpoint.dra.kubelet.k8s.io/v1\",'
    rb"\"ClaimInfoStateList\":[{\"ClaimUID\":\"067798be-454e-4be4-9047-1aa06aea63f7\","
    rb"\"ClaimName\":\"example\",\"Namespace\":\"default\","
    rb"\"PodUIDs\":{\"139cdb46-f989-4f17-9561-ca10cfb509a6\":{}},"
    rb"\"DriverState\":{\"test-driver.cdi.k8s.io\":{\"Devices\":[{\"PoolName\":\"worker-1\","
    rb"\"DeviceName\":\"dev-1\",\"RequestNames\":[\"test request\"],"
    rb'\"CDIDeviceIDs\":[\"example.com/example=cdi-example\"]}]}}}]}","Checksum":1656016162}'
)


def checkpoint(*claims: dict[str, Any], **changes: Any) -> bytes:
    """Return a checkpoint of *claims* with a checksum that fits."""
    inner = {
        "kind": "DRACheckpoint",
        "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1",
        "ClaimInfoStateList": list(claims),
    } | changes
    data = json.dumps(inner)
    return json.dumps({"Data": data, "Checksum": crc32(data.encode())}).encode()


def entry(name: str, **changes: Any) -> dict[str, Any]:
    """Return the entry of one claim."""
    return {
        "ClaimUID": f"{name}-uid",
        "ClaimName": name,
        "Namespace": "ml",
        "PodUIDs": {"p1": {}},
        "DriverState": {"gpu.example.com": {"Devices": [{"PoolName": "a", "DeviceName": "gpu-0"}]}},
    } | changes


def views(*claims: ForeignClaim) -> list[ClaimView]:
    """Return *claims* as a node shows them that has taken them over."""
    node = Node("node-a")
    by = Stamp(node="node-a", boot="b1", writer="w1")
    for draft in decide_import(node, claims, why="test", actor="test"):
        node.fold(stamp(draft, by, sequence=node.sequence + 1, record_id="", wall_time_ns=0))
    return claim_views(node)


@pytest.mark.scenario("R15")
class TestReading:
    def test_one_claim(self) -> None:
        """All that kubelet knows of a claim is read: its pods, and each driver's devices."""
        (claim,) = read_checkpoint(ONE)

        assert str(claim.ref) == "default/example"
        assert claim.pods == ("139cdb46-f989-4f17-9561-ca10cfb509a6",)
        (device,) = claim.drivers["test-driver.cdi.k8s.io"]
        assert (device.pool, device.device, device.share_id) == ("worker-1", "dev-1", None)
        assert device.requests == ("test request",)
        assert device.cdi_device_ids == ("example.com/example=cdi-example",)

    def test_two_claims(self) -> None:
        """Several claims are read in the order of the file, which is random."""
        found = read_checkpoint(checkpoint(entry("c2"), entry("c1")))

        assert [claim.ref.name for claim in found] == ["c2", "c1"]

    @pytest.mark.parametrize(
        ("claims", "checksum"), [("[]", 2361995144), ("null", 4010664294)], ids=["empty", "null"]
    )
    def test_no_claims(self, claims: str, checksum: int) -> None:
        """A kubelet that holds nothing writes an empty list, or null when it starts."""
        data = (
            '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1",'
            f'"ClaimInfoStateList":{claims}}}'
        )
        content = json.dumps({"Data": data, "Checksum": checksum}).encode()

        assert read_checkpoint(content) == []

    def test_null_lists(self) -> None:
        """Go writes null for what is empty, and for a share id that is not there."""
        device = {
            "PoolName": "a",
            "DeviceName": "gpu-0",
            "ShareID": None,
            "RequestNames": None,
            "CDIDeviceIDs": None,
        }
        state = {"gpu.example.com": {"Devices": [device]}, "nic.example.com": {"Devices": None}}
        full, bare = read_checkpoint(
            checkpoint(entry("c1", DriverState=state), entry("c2", DriverState=None, PodUIDs=None))
        )

        (found,) = full.drivers["gpu.example.com"]
        assert (found.share_id, found.requests, found.cdi_device_ids) == (None, (), ())
        assert full.drivers["nic.example.com"] == ()
        assert (bare.pods, bare.drivers) == ((), {})

    def test_devices_that_were_appended(self) -> None:
        """A device that a kubelet has listed again and again counts once."""
        devices = [{"PoolName": "a", "DeviceName": "gpu-0"}] * 80
        (claim,) = read_checkpoint(
            checkpoint(entry("c1", DriverState={"gpu.example.com": {"Devices": devices}}))
        )

        assert len(claim.drivers["gpu.example.com"]) == 1

    def test_a_wrong_checksum(self) -> None:
        """A flipped byte is refused, with both checksums."""
        with pytest.raises(UsageError, match=r"damaged: its checksum is \d+, not the 1656016162"):
            read_checkpoint(ONE.replace(b"dev-1", b"dev-2"))

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"\xff\xfe",
            b'{"Data": 1, "Checksum": 1}',
            b'{"Data": "\\ud800", "Checksum": 1}',
            json.dumps({"Data": "{", "Checksum": crc32(b"{")}).encode(),
            json.dumps({"Data": "[" * 9999, "Checksum": crc32(b"[" * 9999)}).encode(),
            b'{"version":"v1","entries":[],"checksum":1}',
            checkpoint(entry("c1", PodUIDs=["p1"])),
            checkpoint({"ClaimName": "c1"}),
        ],
        ids=range(11),
    )
    def test_broken_json(self, content: bytes) -> None:
        """What is no checkpoint is refused in one line, with a hint."""
        with pytest.raises(UsageError, match="cannot be read") as refused:
            read_checkpoint(content)
        assert refused.value.hint

    @pytest.mark.parametrize(
        "changes", [{"kind": "CPUManager"}, {"apiVersion": "checkpoint.dra.kubelet.k8s.io/v2"}]
    )
    def test_another_kind(self, changes: dict[str, Any]) -> None:
        """A kind or version that is not known is not guessed at."""
        with pytest.raises(UsageError, match=r"not a checkpoint\.dra\.kubelet\.k8s\.io/v1"):
            read_checkpoint(checkpoint(**changes))

    def test_a_file_without_end(self) -> None:
        """A file beyond all that a kubelet writes is not even decoded."""
        with pytest.raises(UsageError, match="more than"):
            read_checkpoint(b" " * (CHECKPOINT_BYTES_MAX + 1))


@pytest.mark.scenario("R16")
class TestWriting:
    def test_is_what_kubelet_writes(self) -> None:
        """What was read from a kubelet is written as it was, checksum and all."""
        assert write_checkpoint(views(*read_checkpoint(ONE))) == ONE

    def test_of_nothing(self) -> None:
        """A node that holds nothing writes the empty list of a kubelet."""
        assert json.loads(write_checkpoint([]))["Checksum"] == 2361995144

    def test_is_read_again(self) -> None:
        """Share ids, drivers without devices and claims without pods come back as they were."""
        device = {"PoolName": "a", "DeviceName": "gpu-0", "ShareID": "s1", "RequestNames": ["r"]}
        state = {"gpu.example.com": {"Devices": [device]}, "nic.example.com": {"Devices": []}}
        read = read_checkpoint(
            checkpoint(entry("c1", DriverState=state), entry("c2", PodUIDs={}), entry("c3"))
        )

        assert read_checkpoint(write_checkpoint(views(*read))) == read

    def test_leaves_out_what_kubelet_has_forgotten(self) -> None:
        """A claim that is unprepared, or was never bound, has no entry."""
        (view,) = views(*read_checkpoint(ONE))
        phases = ("generated", "unprepared", "bound", "needs_unpreparing")
        content = write_checkpoint(
            msgspec.structs.replace(view, phase=phase, name=phase) for phase in phases
        )

        names = [claim.ref.name for claim in read_checkpoint(content)]
        assert names == ["bound", "needs_unpreparing"]
