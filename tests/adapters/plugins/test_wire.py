"""The bytes of the driver protocol: what is committed, what is bounded, what can live beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from tests.adapters.plugins.descriptors import COMMITTED, PROTO, compile_protos
from tests.adapters.plugins.node import claim

from claimlet.adapters.plugins.wire import (
    APIS,
    V1,
    V1BETA1,
    ClaimAnswer,
    DraApi,
    PluginInfo,
    RegistrationStatus,
    WireError,
    decode_claims,
    decode_info,
    decode_prepare,
    decode_status,
    decode_unprepare,
    encode_claims,
    encode_info,
    encode_prepare,
    encode_status,
    encode_unprepare,
)
from claimlet.events.values import ClaimUid, PreparedDevice

DEVICE = PreparedDevice(
    pool="node-a",
    device="gpu-0",
    requests=("gpu",),
    cdi_device_ids=("vendor.com/gpu=common", "vendor.com/gpu=0"),
    share_id="share-1",
)
A = ClaimUid("uid-a")

#: What another distribution with generated modules of the same symbols does.
FOREIGN = f"""
import sys
sys.path.insert(0, sys.argv[1])
import claimlet_dra_v1_pb2 as foreign
request = foreign.NodePrepareResourcesRequest(claims=[foreign.Claim(uid="u")])
assert request.DESCRIPTOR.full_name == "{V1.package}.NodePrepareResourcesRequest"
"""
OURS = """
from claimlet.adapters.plugins.wire import V1, decode_claims, encode_claims
from claimlet.events.values import ClaimRef
ref = ClaimRef(uid="u", namespace="n", name="c")
assert decode_claims(V1, encode_claims(V1, [ref])) == (ref,)
"""


class TestDescriptors:
    """The committed descriptor set and the pool it is loaded into."""

    def test_are_made_from_the_committed_files(self) -> None:
        """The committed descriptor set is what the compiler makes of the `.proto` files."""
        parse = descriptor_pb2.FileDescriptorSet.FromString

        assert parse(COMMITTED.read_bytes()) == parse(compile_protos())

    def test_have_names_of_their_own(self) -> None:
        """No file is called `api.proto`, which every other project calls its own."""
        files = descriptor_pb2.FileDescriptorSet.FromString(COMMITTED.read_bytes()).file

        assert all(file.name.startswith("claimlet_") for file in files)

    @pytest.mark.parametrize("order", [(OURS, FOREIGN), (FOREIGN, OURS)])
    def test_leave_room_for_generated_modules(self, order: tuple[str, str], tmp_path: Path) -> None:
        """Generated modules of others with the same symbols load beside ours, in any order."""
        compiler = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
        subprocess.run([*compiler, f"--python_out={tmp_path}", "claimlet_dra_v1.proto"], check=True)

        done = subprocess.run([sys.executable, "-c", "".join(order), str(tmp_path)], check=False)

        assert done.returncode == 0


class TestNames:
    """What stands in paths and announcements."""

    def test_announced_names_are_not_those_of_grpc(self) -> None:
        """Drivers announce `v1.DRAPlugin`, and the call goes to the full name."""
        assert list(APIS) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"]
        assert V1.prepare == "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources"
        assert V1BETA1.unprepare == (
            "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources"
        )


class TestMessages:
    """Each message, there and back."""

    def test_info(self) -> None:
        """What a driver says about itself arrives as it was said."""
        info = PluginInfo(
            type="DRAPlugin", name="d", endpoint="/e", supported_versions=("v1.DRAPlugin",)
        )

        assert decode_info(encode_info(info)) == info

    def test_status(self) -> None:
        """A refusal arrives with its text."""
        status = RegistrationStatus(registered=False, error="no")

        assert decode_status(encode_status(status)) == status

    @pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
    def test_claims(self, api: DraApi) -> None:
        """A request holds namespace, name and UID of each claim, in order."""
        refs = (claim("a").ref, claim("b").ref)

        assert decode_claims(api, encode_claims(api, refs)) == refs

    def test_prepared_devices(self) -> None:
        """A device arrives with its pool, requests, share and all its CDI ids, in order."""
        data = encode_prepare(V1, {"uid-a": ClaimAnswer(devices=(DEVICE,))})

        assert decode_prepare(V1, data, [A])[A].devices == (DEVICE,)

    def test_older_version_has_no_shares(self) -> None:
        """The older version carries the same without the share."""
        data = encode_prepare(V1BETA1, {"uid-a": ClaimAnswer(devices=(DEVICE,))})

        (device,) = decode_prepare(V1BETA1, data, [A])[A].devices

        assert device.share_id is None
        assert device.cdi_device_ids == DEVICE.cdi_device_ids

    def test_error_voids_devices(self) -> None:
        """Devices beside an error mean nothing."""
        data = encode_prepare(V1, {"uid-a": ClaimAnswer(devices=(DEVICE,), error="busy")})

        assert decode_prepare(V1, data, [A])[A] == ClaimAnswer(error="busy")

    def test_unprepared(self) -> None:
        """An unprepare has an error or nothing for each claim."""
        data = encode_unprepare(V1, {"uid-a": "", "uid-b": "busy"})

        assert decode_unprepare(V1, data, [A]) == {"uid-a": "", "uid-b": "busy"}


class TestHostileBytes:
    """What is no message, or more of one than anybody needs."""

    @pytest.mark.parametrize("data", [b"\xff" * 16, b"\x0a\xff"])
    def test_undecodable(self, data: bytes) -> None:
        """Bytes that are no message are an error of their own, for every message."""
        for decode in (
            decode_info,
            decode_status,
            lambda d: decode_claims(V1, d),
            lambda d: decode_prepare(V1, d, [A]),
            lambda d: decode_unprepare(V1, d, [A]),
        ):
            with pytest.raises(WireError):
                decode(data)

    def test_huge_info(self) -> None:
        """A driver that says megabytes about itself is not read."""
        info = PluginInfo(type="DRAPlugin", name="d", supported_versions=("v",) * 100_000)

        with pytest.raises(WireError, match="bytes"):
            decode_info(encode_info(info))

    def test_foreign_claims_are_bounded(self) -> None:
        """Of a million answers that nobody asked for only a few are read, and the asked one is."""
        data = encode_unprepare(V1, {f"uid-{n}": "" for n in range(20_000)} | {"uid-a": "mine"})

        read = decode_unprepare(V1, data, [A])

        assert read[A] == "mine"
        assert len(read) < 50

    def test_foreign_names_are_bounded(self) -> None:
        """A UID that nobody asked for is cut where no UID is that long."""
        data = encode_unprepare(V1, {"u" * 100_000: ""})

        (uid,) = decode_unprepare(V1, data, [A])

        assert len(uid) < 300

    def test_devices_are_counted_before_they_are_read(self) -> None:
        """A hundred thousand devices are refused by their number."""
        many = ClaimAnswer(devices=(PreparedDevice(pool="p", device="d"),) * 100_000)
        data = encode_prepare(V1, {"uid-a": many})

        answer = decode_prepare(V1, data, [A])[A]

        assert not answer.devices
        assert "100000 devices" in answer.too_large
