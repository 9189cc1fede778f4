"""Pods and claims as Kubernetes writes them: decoded, or refused with the path of what is wrong."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest

from claimlet.adapters.kubernetes.objects import (
    DEVICES_ANNOTATION,
    ClaimDocument,
    decode_claim,
    decode_pod,
)
from claimlet.engine.errors import UsageError
from claimlet.engine.ports import PodClaimObject
from claimlet.events.values import ContainerUse, Link

_SECRET = "c3VwZXItc2VjcmV0"


def _pod(spec: Any = None, status: Any = None, **metadata: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "p1", "namespace": "ml"}}
    document["metadata"] |= metadata
    if spec is not None:
        document["spec"] = spec
    if status is not None:
        document["status"] = status
    return document


def _claim(status: Any = None, **metadata: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"kind": "ResourceClaim", "metadata": {"name": "c1"} | metadata}
    if status is not None:
        document["status"] = status
    return document


def _result(**more: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": "a.example.com", "pool": "p", "device": "d0"} | more


def _allocated(*results: Any, **devices: Any) -> dict[str, Any]:
    return _claim({"allocation": {"devices": {"results": list(results)} | devices}})


def _decode(document: dict[str, Any], *, honour_skips: bool = True) -> ClaimDocument:
    return decode_claim(document, honour_skips=honour_skips)


class TestWrongPods:
    """A Pod with something that it cannot have."""

    @pytest.mark.parametrize(
        ("document", "path"),
        [
            ({"kind": "Pod"}, "`metadata`"),
            ({"kind": "Pod", "metadata": None}, "`$.metadata`"),
            ({"kind": "Pod", "metadata": []}, "`$.metadata`"),
            (_pod(name=""), "without metadata.name"),
            (_pod(name=5), "`$.metadata.name`"),
            (_pod(uid=5), "`$.metadata.uid`"),
            (_pod(spec=[]), "`$.spec`"),
            (_pod(spec={"containers": {}}), "`$.spec.containers`"),
            (_pod(spec={"containers": ["a"]}), "`$.spec.containers[0]`"),
            (_pod(spec={"resourceClaims": [{}]}), "`name`"),
            (
                _pod(spec={"resourceClaims": [{"name": "a", "resourceClaimName": 1}]}),
                "`$.spec.resourceClaims[0].resourceClaimName`",
            ),
            (
                _pod(spec={"containers": [{"resources": {"claims": [{"request": "a"}]}}]}),
                "`name`",
            ),
            (_pod(status={"resourceClaimStatuses": "a"}), "`$.status.resourceClaimStatuses`"),
            (_pod(status={"extendedResourceClaimStatus": {}}), "`resourceClaimName`"),
        ],
    )
    def test_are_refused_with_the_place(self, document: dict[str, Any], path: str) -> None:
        """The error names the object and the path."""
        with pytest.raises(UsageError) as caught:
            decode_pod(document)

        assert path in str(caught.value)
        assert "Pod" in str(caught.value)

    def test_a_long_name_does_not_fill_the_screen(self) -> None:
        """What the object says about itself is cut."""
        with pytest.raises(UsageError) as caught:
            decode_pod(_pod(name="x" * 10_000, uid=5))

        assert len(str(caught.value)) < 300


class TestPods:
    """A Pod as far as it is about claims."""

    @pytest.mark.scenario("V06", "V07", "V08")
    @pytest.mark.rule("R4", "R7")
    @pytest.mark.parametrize(
        ("entry", "status", "expected"),
        [
            ({"resourceClaimName": "c1"}, {}, {"claim_name": "c1"}),
            # A direct name wins over whatever the status says.
            ({"resourceClaimName": "c1"}, {"resourceClaimName": "c2"}, {"claim_name": "c1"}),
            (
                {"resourceClaimTemplateName": "t"},
                {"resourceClaimName": "p1-gpu-x7k2"},
                {"claim_name": "p1-gpu-x7k2", "from_template": True},
            ),
            ({"resourceClaimTemplateName": "t"}, {}, {"needed": False, "from_template": True}),
            (
                {"resourceClaimTemplateName": "t"},
                {"resourceClaimName": None},
                {"needed": False, "from_template": True},
            ),
            ({"resourceClaimTemplateName": "t"}, None, {"from_template": True}),
            ({}, {}, {"problem": "it has neither a claim name nor a template name"}),
            (
                {"fooName": "x"},
                None,
                {"problem": "it has neither a claim name nor a template name"},
            ),
        ],
    )
    def test_say_which_claim_an_entry_means(
        self, entry: dict[str, Any], status: dict[str, Any] | None, expected: dict[str, Any]
    ) -> None:
        """By name, by the status of a template's claim, not needed, not yet there, or wrong."""
        statuses = [] if status is None else [{"name": "gpu"} | status]
        spec = {"resourceClaims": [{"name": "gpu"} | entry]}

        pod = decode_pod(_pod(spec, {"resourceClaimStatuses": statuses}))

        assert pod.claims == (PodClaimObject(name="gpu", **expected),)

    def test_tell_kinds_of_containers_apart(self) -> None:
        """Init containers, sidecars and regular ones use claims, whole or by request."""
        uses = {"resources": {"claims": [{"name": "gpu", "request": "big"}, {"name": "nic"}]}}
        spec = {
            "initContainers": [
                {"name": "setup"} | uses,
                {"name": "proxy", "restartPolicy": "Always"},
            ],
            "containers": [{"name": "main", "resources": {}}, {"name": "other"}],
        }

        pod = decode_pod(_pod(spec))

        links = (Link(name="gpu", request="big"), Link(name="nic", request=""))
        assert pod.containers == (
            ContainerUse(name="setup", kind="init", claims=links),
            ContainerUse(name="proxy", kind="sidecar"),
            ContainerUse(name="main", kind="regular"),
            ContainerUse(name="other", kind="regular"),
        )

    @pytest.mark.scenario("P16")
    def test_take_the_extended_resources_claim(self) -> None:
        """The status names the claim and which container asked for what."""
        mapping = {"containerName": "main", "resourceName": "a.com/gpu", "requestName": "r0"}
        extended = {"resourceClaimName": "p1-ext", "requestMappings": [mapping]}

        pod = decode_pod(_pod({}, {"extendedResourceClaimStatus": extended}))

        assert pod.extended_claim_name == "p1-ext"
        assert pod.extended == (("main", "a.com/gpu", "r0"),)

    def test_without_claims_are_pods_too(self) -> None:
        """Null lists are empty ones, unknown fields are nobody's business."""
        spec = {"containers": None, "resourceClaims": None, "nodeName": "x", "volumes": [1]}

        pod = decode_pod(_pod(spec, None, labels={"a": "b"}))

        assert (pod.namespace, pod.name, pod.uid) == ("ml", "p1", "")
        assert pod.claims == ()
        assert pod.containers == ()


class TestWrongClaims:
    """A ResourceClaim with something that it cannot have."""

    @pytest.mark.parametrize(
        ("document", "says"),
        [
            (_claim(name=""), "without metadata.name"),
            (_claim(annotations={"a": 5}), "`$.metadata.annotations[...]`"),
            (_claim(ownerReferences=[{"controller": "yes"}]), "ownerReferences[0].controller"),
            (_claim({"allocation": {"devices": None}}), "`$.status.allocation.devices`"),
            (_claim({"allocation": []}), "`$.status.allocation`"),
            (_claim({"reservedFor": [{"uid": 5}]}), "`$.status.reservedFor[0].uid`"),
            (_allocated({"request": "a"}), "`driver`"),
            (_allocated(_result(device=5)), "results[0].device"),
            (_allocated(_result(skipNodeOperations="*")), "skipNodeOperations"),
            (_allocated(_result(shareID=5)), "shareID"),
            (_allocated(config=5), "`$.status.allocation.devices.config`"),
            (_allocated(config="secret"), "`$.status.allocation.devices.config`"),
            (_allocated(config={"opaque": {}}), "`$.status.allocation.devices.config`"),
            (_allocated(config=["secret"]), "devices.config[0]"),
            (_allocated(config=[{"opaque": "secret"}]), "devices.config[0].opaque"),
            (_claim(annotations={DEVICES_ANNOTATION: "a.com"}), "no driver/pool/device"),
            (_claim(annotations={DEVICES_ANNOTATION: "a.com/p"}), "no driver/pool/device"),
            (_claim(annotations={DEVICES_ANNOTATION: "a.com//d"}), "no driver/pool/device"),
            (_claim(annotations={DEVICES_ANNOTATION: "a/p/d;b/p/d,/p/d"}), "'/p/d'"),
        ],
    )
    def test_are_refused_with_the_place(self, document: dict[str, Any], says: str) -> None:
        """The error names the path or the item, and repeats nothing secret."""
        with pytest.raises(UsageError) as caught:
            _decode(document)

        assert says in str(caught.value)
        assert "secret" not in str(caught.value)


class TestAllocations:
    """What was allocated, or is simulated."""

    @pytest.mark.scenario("V09")
    def test_may_be_missing(self) -> None:
        """A claim with neither an allocation nor the annotation has none."""
        assert _decode(_claim()).allocation is None
        assert _decode(_claim({"allocation": None})).allocation is None

    @pytest.mark.scenario("V13")
    def test_may_be_empty(self) -> None:
        """An allocation without results is an allocation."""
        allocation = _decode(_claim({"allocation": {}})).allocation

        assert allocation is not None
        assert allocation.devices == ()

    @pytest.mark.scenario("P15")
    def test_keep_what_tells_devices_apart(self) -> None:
        """Share id and admin access are kept as they are."""
        claim = _decode(_allocated(_result(shareID="s1"), _result(adminAccess=True)))

        assert claim.allocation is not None
        assert [d.share_id for d in claim.allocation.devices] == ["s1", None]
        assert [d.admin_access for d in claim.allocation.devices] == [False, True]

    @pytest.mark.scenario("K01", "K02")
    @pytest.mark.parametrize(
        ("operations", "prepare", "unprepare"),
        [
            (None, False, False),
            ([], False, False),
            (["*"], True, True),
            (["NodePrepareResources", "NodeUnprepareResources"], True, True),
            (["NodeUnprepareResources"], False, True),
            # The first without the second would leave nothing that could be undone.
            (["NodePrepareResources"], False, False),
            (["Reboot"], False, False),
            (["*", "Reboot"], True, True),
        ],
    )
    def test_may_skip_node_operations(
        self, operations: list[str] | None, prepare: bool, unprepare: bool
    ) -> None:
        """The skip flags count where the setting honours them, and only there."""
        document = _allocated(_result(skipNodeOperations=operations))
        honoured, ignored = (_decode(document, honour_skips=h).allocation for h in (True, False))

        assert honoured is not None
        assert ignored is not None
        device = honoured.devices[0]
        assert (device.skip_prepare, device.skip_unprepare) == (prepare, unprepare)
        assert (ignored.devices[0].skip_prepare, ignored.devices[0].skip_unprepare) == (False,) * 2

    def test_differ_by_digest(self) -> None:
        """Any difference is another allocation; the order of keys is none."""
        one = _allocated(_result())
        turned = _allocated(dict(reversed(_result().items())))
        other = _allocated(_result(), config=[{"opaque": {"parameters": {"a": 1}}}])
        digests = [a.digest for d in (one, turned, other) if (a := _decode(d).allocation)]

        assert digests[0] == digests[1]
        assert digests[0] != digests[2]

    @pytest.mark.parametrize(
        ("text", "devices"),
        [
            ("", []),
            ("a.com/p/d0", [("devices", "a.com", "p", "d0")]),
            (" gpu = a.com/p/d0 ", [("gpu", "a.com", "p", "d0")]),
            (
                "gpu=a.com/p/d0, b.com/q/d1,",
                [("gpu", "a.com", "p", "d0"), ("devices", "b.com", "q", "d1")],
            ),
            ("a.com/rack-1/node-a/d0", [("devices", "a.com", "rack-1/node-a", "d0")]),
        ],
    )
    def test_are_simulated_where_the_claim_asks_for_it(
        self, text: str, devices: list[tuple[str, ...]]
    ) -> None:
        """The annotation names request, driver, pool and device; spaces around items are none."""
        claim = _decode(_claim(annotations={DEVICES_ANNOTATION: text}))

        assert claim.is_simulated
        assert claim.allocation is not None
        found = [(d.request, d.driver, d.pool, d.device) for d in claim.allocation.devices]
        assert found == devices

    def test_are_not_simulated_where_there_is_one(self) -> None:
        """A real allocation wins over the annotation."""
        document = _allocated(_result())
        document["metadata"]["annotations"] = {DEVICES_ANNOTATION: "b.com/p/d9"}
        claim = _decode(document)

        assert not claim.is_simulated
        assert claim.allocation is not None
        assert [d.driver for d in claim.allocation.devices] == ["a.example.com"]


class TestOpaqueParameters:
    """What only the driver understands may hold secrets."""

    def test_leave_only_a_digest(self) -> None:
        """They are in the private part and nowhere else; the rest stays verbatim."""
        parameters = {"token": _SECRET}
        config = [
            {"source": "FromClaim", "requests": ["gpu"]},
            {
                "opaque": {"driver": "a.example.com", "parameters": parameters},
                "source": "FromClass",
            },
        ]
        claim = _decode(_allocated(_result(), config=config))

        assert claim.allocation is not None
        public = msgspec.json.decode(claim.allocation.verbatim)
        digest = sha256(msgspec.json.encode(parameters)).hexdigest()
        assert _SECRET.encode() not in msgspec.json.encode(claim.allocation)
        assert public["devices"]["config"] == [
            config[0],
            {
                "opaque": {"driver": "a.example.com", "parametersDigest": digest},
                "source": "FromClass",
            },
        ]
        assert msgspec.json.decode(claim.config) == [None, parameters]

    @pytest.mark.parametrize("parameters", [_SECRET, [_SECRET], {"a": {"b": [_SECRET]}}, 5, True])
    def test_may_be_anything(self, parameters: Any) -> None:
        """Parameters are whatever the driver takes."""
        entry = {"opaque": {"driver": "a.example.com", "parameters": parameters}}
        claim = _decode(_allocated(_result(), config=[entry]))

        assert claim.allocation is not None
        assert _SECRET.encode() not in bytes(claim.allocation.verbatim)
        assert msgspec.json.decode(claim.config) == [parameters]

    def test_are_not_recorded_where_there_are_none(self) -> None:
        """Without parameters there is nothing private."""
        assert _decode(_allocated(_result(), config=[{"requests": ["a"]}])).config == b""
        assert _decode(_allocated(_result(), config=None)).config == b""


class TestReferences:
    """Owners and reservations."""

    @pytest.mark.scenario("V04", "V12")
    def test_only_the_controlling_owner_counts(self) -> None:
        """An owner that does not control is none."""
        owners = [{"kind": "A", "uid": "1"}, {"kind": "Pod", "name": "p", "controller": True}]

        owner = _decode(_claim(ownerReferences=owners)).owner

        assert owner is not None
        assert owner.kind == "Pod"
        assert _decode(_claim(ownerReferences=owners[:1])).owner is None

    def test_only_pods_can_reserve(self) -> None:
        """Reservations by something else than a pod, or without a UID, do not count."""
        reserved = [
            {"resource": "pods", "name": "p1", "uid": "u1"},
            {"resource": "pods", "name": "p2"},
            {"resource": "podgroups", "apiGroup": "scheduling.k8s.io", "name": "g", "uid": "u2"},
            {"resource": "pods", "apiGroup": "metrics.k8s.io", "name": "x", "uid": "u3"},
        ]

        assert _decode(_claim({"reservedFor": reserved})).reserved_for == {"u1": "p1"}

    def test_the_pod_claims_name_is_an_annotation(self) -> None:
        """The annotation tells which entry of the pod the claim was made for (rule R5)."""
        annotations = {"resource.kubernetes.io/pod-claim-name": "gpu"}

        assert _decode(_claim(annotations=annotations)).pod_claim_name == "gpu"
