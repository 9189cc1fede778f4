"""One fact of each word, with every field set to something that is not its default."""

from __future__ import annotations

import msgspec

from claimlet.events import facts as f
from claimlet.events.values import (
    AllocatedDevice,
    Allocation,
    Call,
    ClaimUid,
    ContainerUse,
    DriverName,
    ExtendedMapping,
    Link,
    PodClaim,
    PodRef,
    PodUid,
    PreparedDevice,
)

__all__ = ["SAMPLES"]

POD = PodRef(uid=PodUid("pod-1"), namespace="team-a", name="train")
DRIVER = DriverName("gpu.example.com")
CALLS = (Call(driver=DRIVER, instance="i-1", endpoint="/run/dra.sock"),)
DEVICES = (
    PreparedDevice(
        pool="node-a",
        device="gpu-0",
        requests=("gpu",),
        cdi_device_ids=("example.com/gpu=0",),
        share_id="share-1",
    ),
)
ALLOCATION = Allocation(
    digest="sha256:00",
    devices=(
        AllocatedDevice(
            driver=DRIVER,
            pool="node-a",
            device="gpu-0",
            request="gpu",
            share_id="share-1",
            admin_access=True,
            skip_prepare=True,
            skip_unprepare=True,
        ),
    ),
    verbatim=msgspec.Raw(b'{"devices":{"results":[]}}'),
)

_FACTS: list[f.Fact] = [
    f.Generated(origin="template", pod_claim="gpu"),
    f.Bound(pod=POD, allocation=ALLOCATION, attributes={"d/p/g": {"model": "x"}}),
    f.ConsumerJoined(pod=POD),
    f.ConsumerLeft(pod_uid=POD.uid, reason="gone"),
    f.PrepareSkipped(pod_uid=POD.uid, reason="driver"),
    f.PrepareStarted(operation="op-1", pod_uid=POD.uid, calls=CALLS, why="reprepare"),
    f.DriverPrepared(
        driver=DRIVER, boot="boot-1", devices=DEVICES, duration_seconds=0.5, changed=True
    ),
    f.DriverFailed(
        driver=DRIVER,
        outcome="refused",
        code="INTERNAL",
        text="no",
        attempts=3,
        first_seen="2026-01-01T00:00:00Z",
        retry_delay_seconds=2.0,
    ),
    f.Prepared(),
    f.ReprepareNeeded(why="boot"),
    f.UnprepareStarted(operation="op-2", calls=CALLS),
    f.DriverUnprepared(driver=DRIVER, duration_seconds=0.5, final=False),
    f.DebtWaived(driver=DRIVER, who="me", why="broken", last_error="no"),
    f.Unprepared(),
    f.ObjectLost(how="reallocated"),
    f.Deallocated(),
    f.Deleted(),
    f.Retired(),
    f.Restored(allocation=ALLOCATION, consumers=(POD,), debts=(DRIVER,), devices={DRIVER: DEVICES}),
    f.AnomalyFound(
        kind="device_overlap",
        driver=DRIVER,
        text="two",
        pool="node-a",
        device="gpu-0",
        other_claim_uid=ClaimUid("other"),
    ),
    f.ConfigRecorded(config=msgspec.Raw(b'{"secret":1}')),
    f.PrepareRequested(
        source="control",
        claims=(PodClaim(name="gpu", claim_uid=ClaimUid("c-1")),),
        containers=(
            ContainerUse(name="main", kind="init", claims=(Link(name="gpu", request="r"),)),
        ),
        extended=(
            ExtendedMapping(
                container="main",
                resource="example.com/gpu",
                request="r",
                claim_uid=ClaimUid("c-1"),
            ),
        ),
    ),
    f.PrepareRefused(source="control", reasons=("no",), attempts=2),
    f.PodFinished(phase="Failed"),
    f.UnprepareRequested(reason="gone", source="control"),
    f.PodClosed(),
    f.WriterStarted(writer="w", boot="b", claimlet_version="1", pid=7),
    f.SourceSynced(source="control"),
    f.Booted(boot="b2", previous="b1"),
    f.Stopped(reason="asked"),
    f.DriverRegistered(
        driver=DRIVER,
        instance="i",
        endpoint="/run/dra.sock",
        api="v1",
        supported_versions=("v1.DRAPlugin",),
    ),
    f.DriverGone(driver=DRIVER, instance="i", reason="gone"),
    f.WaiverSettled(claim_uid=ClaimUid("c-1"), driver=DRIVER, who="me", why="fixed"),
    f.SettingsChanged(settings={"overlap": "wait"}),
    f.SnapshotTaken(
        sequence=812,
        digest="ab",
        fold_version=1,
        slot="a",
        chunks=2,
        size_bytes=700_000,
        content_digest="cd",
        previous=406,
    ),
    f.LogGapAcknowledged(
        from_sequence=27,
        to_sequence=30,
        link_before="ab" * 32,
        missing=3,
        why="a bad disk",
        link_after="cd" * 32,
        copy="gap-27-30.jsonl",
        copy_digest="ef" * 32,
    ),
]

SAMPLES = {fact.word: fact for fact in _FACTS}
