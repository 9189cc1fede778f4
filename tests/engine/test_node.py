"""The fold of a node: what is kept beside the claims, and what is passed over."""

from __future__ import annotations

from msgspec.structs import replace
from tests.engine.facts import pod_ref
from tests.simulation.lives import LIVES
from tests.simulation.rig import Rig, allocation, claim, pod
from tests.simulation.virtual import simulate, simulated

from claimlet.engine.node import Node
from claimlet.engine.outcome import find_claim
from claimlet.events import facts as f
from claimlet.events.record import Draft, Stamp, stamp
from claimlet.events.values import ClaimRef, ClaimUid, DriverName, PodUid

GPU = DriverName("gpu.example.com")
BY = Stamp(node="node-a", boot="b1", writer="w1")


class Folder:
    """A node that facts are told to one by one."""

    def __init__(self) -> None:
        self.node = Node("node-a")

    def fold(
        self, fact: f.Fact, *, claim_name: str = "", uid: str = "", pod_name: str = ""
    ) -> None:
        """Fold the next record."""
        ref = ClaimRef(uid=ClaimUid(uid or claim_name), namespace="ml", name=claim_name)
        draft = Draft(
            fact=fact,
            claim=ref if claim_name else None,
            pod=pod_ref(pod_name) if pod_name else None,
        )
        sequence = self.node.sequence + 1
        record_id = f"r{sequence}"
        self.node.fold(stamp(draft, BY, sequence=sequence, record_id=record_id, wall_time_ns=0))

    def bound(self, name: str, device: str, *, uid: str = "") -> None:
        """Fold a claim up to its first consumer."""
        self.fold(f.Generated(), claim_name=name, uid=uid)
        fact = f.Bound(pod=pod_ref("p1"), allocation=allocation(device))
        self.fold(fact, claim_name=name, uid=uid)


class TestFold:
    def test_passes_over_unknown_facts(self) -> None:
        """A fact of a later version is counted and changes nothing."""
        folder = Folder()
        folder.bound("c1", f"{GPU}/gpu-0")
        before = folder.node.digest()
        record = stamp(
            Draft(fact=f.SourceSynced(source="x")), BY, sequence=3, record_id="r", wall_time_ns=0
        )
        folder.node.fold(replace(record, fact=None, word="from_the_future"))

        assert folder.node.not_folded == 1
        assert folder.node.sequence == 3
        assert folder.node.digest() == before

    def test_passes_over_facts_about_nobody(self) -> None:
        """A claim or pod fact that names no claim or pod is counted, too."""
        folder = Folder()
        folder.fold(f.Prepared())
        folder.fold(f.PodClosed())
        folder.fold(f.ConfigRecorded(config=b"{}"))  # type: ignore[arg-type]

        assert folder.node.not_folded == 2
        assert folder.node.claims == {}

    def test_a_start_forgets_drivers_and_sources(self) -> None:
        """Drivers and sources are those that this process has heard of."""
        folder = Folder()
        folder.fold(f.DriverRegistered(driver=GPU, instance="1", endpoint="/a"))
        folder.fold(f.SourceSynced(source="control"))
        folder.fold(f.WriterStarted(writer="w2", boot="b1"))

        assert (folder.node.drivers, folder.node.synced) == ({}, frozenset())

    def test_keeps_the_newest_instance_last(self) -> None:
        """Several instances of a driver stand side by side, the newest last, until each is gone."""
        folder = Folder()
        for instance in ("1", "2"):
            fact = f.DriverRegistered(driver=GPU, instance=instance, endpoint=f"/{instance}")
            folder.fold(fact)
        both = [i.instance for i in folder.node.drivers[GPU]]
        folder.fold(f.DriverGone(driver=GPU, instance="1"))
        one = [i.instance for i in folder.node.drivers[GPU]]
        folder.fold(f.DriverGone(driver=GPU, instance="2"))

        assert (both, one) == (["1", "2"], ["2"])
        assert folder.node.drivers == {}

    def test_a_branch_changes_nothing(self) -> None:
        """What is tried on a branch stays there."""
        folder = Folder()
        folder.bound("c1", f"{GPU}/gpu-0")
        before = (folder.node.digest(), dict(folder.node.by_pod), folder.node.sequence)
        branch = Folder()
        branch.node = folder.node.branch()
        branch.fold(f.ConsumerLeft(pod_uid=PodUid("p1"), reason="x"), claim_name="c1")
        branch.bound("c2", f"{GPU}/gpu-0")

        assert branch.node.digest() != before[0]
        assert (folder.node.digest(), dict(folder.node.by_pod), folder.node.sequence) == before


class TestIndexes:
    def test_follow_the_claims(self) -> None:
        """At any moment of any life the indexes are what the claims say."""
        for life in LIVES.values():
            node = Node("node-a")
            for record in simulate(life).storage.decoded():
                node.fold(record)
                pods = {
                    (uid, c.uid)
                    for c in node.claims.values()
                    for uid in [*(k.pod.uid for k in c.consumers), c.released and c.released.uid]
                    if uid
                }
                assert {(k, uid) for k, uids in node.by_pod.items() for uid in uids} == pods
                names = {((c.ref.namespace, c.ref.name), c.uid) for c in node.claims.values()}
                assert {(k, uid) for k, uids in node.by_name.items() for uid in uids} == names
                open_ones = {(c.operation.id, c.uid) for c in node.claims.values() if c.operation}
                found = {(k, uid) for k, uids in node.by_operation.items() for uid in uids}
                assert found == open_ones


class TestFind:
    def test_the_open_one(self) -> None:
        """A name means the claim that is open under it."""
        folder = Folder()
        folder.bound("c1", f"{GPU}/gpu-0", uid="u1")
        folder.fold(f.ConsumerLeft(pod_uid=PodUid("p1"), reason="x"), claim_name="c1", uid="u1")
        folder.fold(f.Unprepared(), claim_name="c1", uid="u1")
        ended = [c.uid for c in find_claim(folder.node, "ml", "c1")]
        folder.bound("c1", f"{GPU}/gpu-0", uid="u2")

        assert ended == ["u1"]
        assert [c.uid for c in find_claim(folder.node, "ml", "c1")] == ["u2"]
        assert find_claim(folder.node, "ml", "c9") == []

    def test_the_newest_of_those_that_ended(self) -> None:
        """Where none is open a name means the one that was heard of last."""
        folder = Folder()
        for uid in ("u2", "u1"):
            folder.fold(f.Generated(), claim_name="c1", uid=uid)

        assert [c.uid for c in find_claim(folder.node, "ml", "c1")] == ["u1"]


class TestRefusals:
    @simulated
    async def test_are_bounded(self) -> None:
        """Only the last thousand refused pods are kept."""
        rig = await Rig().start()
        for n in range(1100):
            await rig.refused(pod(f"p{n}", claim("c1", "missing.example.com/x-0")))

        assert len(rig.node.refusals) == 1000
        assert "p1099" in rig.node.refusals

    @simulated
    async def test_end_with_the_pod(self) -> None:
        """A refused pod that ends is closed and forgotten."""
        rig = await Rig().start()
        await rig.refused(pod("p1", claim("c1", "missing.example.com/x-0")))
        await rig.unprepare("p1")

        assert rig.node.refusals == {}
        assert rig.node.pods == {}

    @simulated
    async def test_two_objects_of_one_uid_are_refused(self) -> None:
        """A UID belongs to one name: another pod or claim under it is refused."""
        rig = await Rig().start()
        await rig.prepare(pod("p1", claim("c1", f"{GPU}/gpu-0")))
        other_name = pod("p2", claim("c2", f"{GPU}/gpu-0", uid="c1-uid"))
        wish = pod("p9")
        twin = replace(wish, pod=replace(wish.pod, ref=replace(wish.pod.ref, uid=PodUid("p1"))))

        assert "belongs to ml/c1" in await rig.refused(other_name)
        assert "belongs to ml/p1" in await rig.refused(twin)
