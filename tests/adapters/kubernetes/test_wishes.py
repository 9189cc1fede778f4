"""From documents to wishes: which pods are asked for, and under which UIDs."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from tests.simulation.rig import Rig
from tests.simulation.virtual import simulate

from claimlet.adapters.kubernetes.objects import DEVICES_ANNOTATION
from claimlet.adapters.kubernetes.wishes import read_manifest, wishes
from claimlet.engine.errors import RefusedError, UsageError
from claimlet.engine.node import Node
from claimlet.engine.pod import PreparePod
from claimlet.engine.state import Policy

_DEVICE = "gpu.example.com/pool/dev0"


def pod(name: str = "p1", *claims: str, uid: str = "", **more: Any) -> dict[str, Any]:
    """Return a Pod that uses *claims*, an entry of the same name each."""
    spec = {
        "containers": [{"name": "main", "resources": {"claims": [{"name": c} for c in claims]}}],
        "resourceClaims": [{"name": c, "resourceClaimName": c} for c in claims],
    }
    metadata = {"name": name, "namespace": "ml"} | ({"uid": uid} if uid else {})
    return {"kind": "Pod", "metadata": metadata, "spec": spec} | more


def claim(
    name: str = "c1", *, uid: str = "", devices: str = _DEVICE, **more: Any
) -> dict[str, Any]:
    """Return a ResourceClaim with a simulated allocation."""
    metadata: dict[str, Any] = {"name": name, "namespace": "ml"} | ({"uid": uid} if uid else {})
    metadata["annotations"] = {DEVICES_ANNOTATION: devices} if devices else {}
    return {"kind": "ResourceClaim", "metadata": metadata | more.pop("metadata", {})} | more


def allocated(name: str, *reserved_for: tuple[str, str], **more: Any) -> dict[str, Any]:
    """Return a claim with a real allocation, reserved for pods by name and UID."""
    result = {"request": "r", "driver": "gpu.example.com", "pool": "pool", "device": "dev0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": n, "uid": u} for n, u in reserved_for],
    }
    return claim(name, devices="", status=status, **more)


def wanted(node: Node, *documents: dict[str, Any], ids: Any = None) -> list[PreparePod]:
    """Return the wishes of *documents* at *node*; new UIDs count."""
    ids = ids or count(1)
    return wishes(
        read_manifest(documents, honour_skips=True),
        node,
        source="control",
        actor="me",
        new_id=lambda: f"new-{next(ids)}",
    )


def only(node: Node, *documents: dict[str, Any], ids: Any = None) -> PreparePod:
    """Return the only wish of *documents*."""
    (wish,) = wanted(node, *documents, ids=ids)
    return wish


@pytest.fixture
def node() -> Node:
    return Node("node-a", Policy())


class TestManifests:
    """Which documents are taken at all."""

    def test_other_kinds_may_lie_beside(self) -> None:
        """What a set of manifests usually has beside pods and claims is left alone."""
        others = [{"kind": k} for k in ("Namespace", "ConfigMap", "ResourceClaimTemplate")]
        manifest = read_manifest([*others, pod(), claim()], honour_skips=True)

        assert [p.name for p in manifest.pods] == ["p1"]
        assert [c.name for c in manifest.claims] == ["c1"]

    @pytest.mark.parametrize("kind", ["Deployment", "List", None, 5, ["Pod"], "x" * 10_000])
    def test_unknown_kinds_are_refused(self, kind: Any) -> None:
        """What cannot be meant for a node is no silent nothing."""
        with pytest.raises(UsageError, match="only Pods and ResourceClaims are taken") as caught:
            read_manifest([{"kind": kind}], honour_skips=True)

        assert len(str(caught.value)) < 200

    @pytest.mark.parametrize("document", [pod(), claim()])
    def test_an_object_stands_there_once(self, document: dict[str, Any]) -> None:
        """Two objects of one kind and name are a mistake."""
        with pytest.raises(UsageError, match="stands there twice"):
            read_manifest([document, document], honour_skips=True)

    def test_one_name_in_two_namespaces_is_two_objects(self, node: Node) -> None:
        """A claim is looked for in the pod's own namespace."""
        other = claim("c1")
        other["metadata"]["namespace"] = "other"

        assert only(node, pod("p1", "c1"), other).claims == {}


class TestUids:
    """Which UID an object gets that was written without one."""

    def test_what_is_written_stays(self, node: Node) -> None:
        """A UID in the document is the UID."""
        wish = only(node, pod("p1", "c1", uid="pu"), claim("c1", uid="cu"))

        assert wish.pod.ref.uid == "pu"
        assert wish.claims["c1"].ref.uid == "cu"

    def test_new_objects_get_new_ones(self, node: Node) -> None:
        """What is not here yet gets a UID that nobody else has."""
        wish = only(node, pod("p1", "c1"), claim("c1"))

        assert {wish.pod.ref.uid, wish.claims["c1"].ref.uid} == {"new-1", "new-2"}

    def test_live_objects_keep_theirs(self) -> None:
        """The same names once more mean the same objects, across a restart too."""

        async def play() -> None:
            rig = await Rig().start()
            first = only(rig.node, pod("p1", "c1"), claim("c1"))
            await rig.prepare(first)
            for _ in range(2):
                again = only(rig.node, pod("p1", "c1"), claim("c1"), ids=count(100))

                assert again.pod.ref == first.pod.ref
                assert again.claims["c1"].ref == first.claims["c1"].ref
                await rig.restart()
            await rig.prepare(only(rig.node, pod("p1", "c1"), claim("c1"), ids=count(100)))

            assert rig.gpu.ledger == [("prepare", ("c1",))]

        simulate(play)

    def test_ended_objects_are_not_meant(self) -> None:
        """After its end a name means a new object, which waits for the old one to be gone."""

        async def play() -> None:
            rig = await Rig().start()
            first = only(rig.node, pod("p1", "c1"), claim("c1"))
            await rig.prepare(first)
            await rig.unprepare(first.pod.ref.uid)
            again = only(rig.node, pod("p1", "c1"), claim("c1"), ids=count(100))

            assert again.pod.ref.uid != first.pod.ref.uid
            assert again.claims["c1"].ref.uid != first.claims["c1"].ref.uid

        simulate(play)

    def test_a_refused_pod_keeps_its_uid(self) -> None:
        """Asking again for a refused pod is one history, not many."""

        async def play() -> None:
            rig = await Rig().start()
            for n in range(3):
                wish = only(rig.node, pod("p1", "missing"), ids=count(100 * n))
                with pytest.raises(RefusedError):
                    await rig.loop.prepare_pod(wish)
                await rig.passes(0.1)

            assert len(rig.node.refusals) == 1

        simulate(play)

    def test_a_pod_has_the_uid_that_it_is_reserved_under(self, node: Node) -> None:
        """Where the allocation is real the reservation knows the pod's UID."""
        wish = only(node, pod("p1", "c1"), allocated("c1", ("p2", "u2"), ("p1", "u1")))

        assert wish.pod.ref.uid == "u1"
        assert wish.claims["c1"].reserved_for == ("u1", "u2")

    @pytest.mark.scenario("V03")
    def test_a_reservation_under_another_uid_is_another_pods(self, node: Node) -> None:
        """The UID in the document stands; that it is not reserved is for the engine to say."""
        wish = only(node, pod("p1", "c1", uid="mine"), allocated("c1", ("p1", "u1")))

        assert wish.pod.ref.uid == "mine"
        assert wish.claims["c1"].reserved_for == ("u1",)


class TestReservations:
    """For whom a claim is reserved."""

    def test_simulated_ones_are_for_the_pods_that_stand_beside(self, node: Node) -> None:
        """Whoever simulates an allocation simulates its reservations, in its namespace only."""
        foreign = pod("p3", uid="u3")
        foreign["metadata"]["namespace"] = "other"
        documents = [pod("p1", "c1", uid="u1"), pod("p2", "c1", uid="u2"), foreign, claim("c1")]
        wish = wanted(node, *documents)[0]

        assert wish.claims["c1"].reserved_for == ("u1", "u2")

    def test_real_ones_are_not_widened(self, node: Node) -> None:
        """A real allocation's reservations are what its status says."""
        wish = only(node, pod("p1", "c1", uid="u1"), allocated("c1"))

        assert wish.claims["c1"].reserved_for == ()


class TestOwners:
    """Whom a claim was made for."""

    @pytest.mark.scenario("V04")
    def test_a_foreign_owner_is_refused_for_a_templates_claim(self) -> None:
        """A claim of another pod cannot be had by naming it in the status."""

        async def play() -> None:
            rig = await Rig().start()
            owner = {"kind": "Pod", "name": "p9", "uid": "u9", "controller": True}
            document = pod("p1", uid="u1")
            document["spec"]["resourceClaims"] = [{"name": "g", "resourceClaimTemplateName": "t"}]
            document["status"] = {
                "resourceClaimStatuses": [{"name": "g", "resourceClaimName": "c1"}]
            }
            wish = only(rig.node, document, claim("c1", metadata={"ownerReferences": [owner]}))

            assert "was not made for this pod" in await rig.refused(wish)
            assert not rig.node.claims

        simulate(play)

    def test_an_owner_without_a_uid_is_the_pod_of_that_name(self, node: Node) -> None:
        """In manifests written by hand the owner is known by name."""
        owner = {"kind": "Pod", "name": "p1", "controller": True}
        documents = [pod("p1", "c1", uid="u1"), claim("c1", metadata={"ownerReferences": [owner]})]

        assert only(node, *documents).claims["c1"].owner_uid == "u1"

    def test_an_owner_of_another_kind_is_no_pod(self, node: Node) -> None:
        """A Job of the pod's name is not the pod."""
        owner = {"kind": "Job", "name": "p1", "controller": True}
        documents = [pod("p1", "c1", uid="u1"), claim("c1", metadata={"ownerReferences": [owner]})]

        assert only(node, *documents).claims["c1"].owner_uid == ""


class TestTokens:
    """What cannot stand in a subject gets no further than a refusal."""

    @pytest.mark.parametrize("uid", ["a.b", "a*", ">", "a b", "ä", "x" * 65, "a\n", "-\0"])
    @pytest.mark.parametrize("kind", ["pod", "claim"])
    def test_uids_are_letters_digits_and_dashes(self, uid: str, kind: str) -> None:
        """A UID with a dot or a star is refused with that reason and leaves no trace of itself."""

        async def play() -> None:
            rig = await Rig().start()
            uids = {"pod": "u1", "claim": "v1"} | {kind: uid}
            documents = [pod("p1", "c1", uid=uids["pod"]), claim("c1", uid=uids["claim"])]

            assert "is no UID" in await rig.refused(only(rig.node, *documents))
            assert not rig.node.claims
            assert not rig.node.pods
            await rig.passes(0.1)

        simulate(play)

    @pytest.mark.parametrize("name", ["a/b", "A", "a*", "a b", ".", "a..b", "a\0b", "x" * 254])
    def test_names_are_dns_subdomains(self, name: str) -> None:
        """So is a name that no object can have."""

        async def play() -> None:
            rig = await Rig().start()
            for documents in ([pod(name, "c1"), claim("c1")], [pod("p1", name), claim(name)]):
                assert "is no object name" in await rig.refused(only(rig.node, *documents))
            assert not rig.node.claims
            await rig.passes(0.1)

        simulate(play)

    @pytest.mark.parametrize("namespace", ["a.b", "*", ">", "A", "", "x" * 64])
    def test_namespaces_are_dns_labels(self, namespace: str) -> None:
        """So is a namespace that none can be."""

        async def play() -> None:
            rig = await Rig().start()
            document = pod("p1")
            document["metadata"]["namespace"] = namespace

            assert "namespace" in await rig.refused(only(rig.node, document))
            await rig.passes(0.1)

        simulate(play)
