"""
From documents to wishes: which pods a set of manifests asks for, with every UID filled in.

An object without a UID means the live one of that kind and name, else a new one. A pod that a
claim's reservation names by UID gets that UID.  Used by every source that reads manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...engine.errors import UsageError
from ...engine.lifecycle import Phase
from ...engine.node import Node
from ...engine.pod import PreparePod
from ...engine.ports import ClaimObject, PodObject
from ...events.values import ClaimRef, ClaimUid, PodRef, PodUid
from .objects import ClaimDocument, PodDocument, decode_claim, decode_pod

__all__ = ["Manifest", "read_manifest", "wishes"]

_OTHER_KINDS = ("ResourceClaimTemplate", "Namespace", "ConfigMap", "DeviceClass", "ResourceSlice")


class Manifest:
    """The pods and claims of one set of documents."""

    def __init__(self, pods: list[PodDocument], claims: list[ClaimDocument]) -> None:
        self.pods = pods
        self.claims = claims


def read_manifest(documents: Iterable[Mapping[str, Any]], *, honour_skips: bool) -> Manifest:
    """
    Return the pods and claims among *documents*.

    Raises:
        UsageError: One of them is wrong, of an unknown kind, or stands there twice.
    """
    pods: dict[tuple[str, str], PodDocument] = {}
    claims: dict[tuple[str, str], ClaimDocument] = {}
    for document in documents:
        kind = document.get("kind")
        if kind == "Pod":
            pod = decode_pod(document)
            _add(pods, (pod.namespace, pod.name), pod)
        elif kind == "ResourceClaim":
            claim = decode_claim(document, honour_skips=honour_skips)
            _add(claims, (claim.namespace, claim.name), claim)
        elif kind not in _OTHER_KINDS:
            raise UsageError(
                f"an object of kind {str(kind)[:60]!r}: only Pods and ResourceClaims are taken"
            )
    return Manifest(list(pods.values()), list(claims.values()))


def wishes(
    manifest: Manifest,
    node: Node,
    *,
    source: str,
    actor: str,
    new_id: Callable[[], str],
) -> list[PreparePod]:
    """Return one wish for each pod of *manifest*."""
    pod_uids = {
        (pod.namespace, pod.name): _pod_uid(pod, manifest.claims, node) or new_id()
        for pod in manifest.pods
    }
    claims = {
        (claim.namespace, claim.name): _claim(
            claim, pod_uids, uid=claim.uid or _claim_uid(claim, node) or new_id()
        )
        for claim in manifest.claims
    }
    return [
        PreparePod(
            pod=_pod(pod, pod_uids[pod.namespace, pod.name]),
            claims={
                name: claim
                for name in _claim_names(pod)
                if (claim := claims.get((pod.namespace, name)))
            },
            source=source,
            actor=actor,
        )
        for pod in manifest.pods
    ]


def _add(found: dict[tuple[str, str], Any], key: tuple[str, str], value: Any) -> None:
    if key in found:
        raise UsageError(f"{key[0]}/{key[1]} stands there twice")
    found[key] = value


def _claim_names(pod: PodDocument) -> list[str]:
    names = [claim.claim_name for claim in pod.claims if claim.claim_name]
    return [*names, pod.extended_claim_name] if pod.extended_claim_name else names


def _pod(pod: PodDocument, uid: str) -> PodObject:
    return PodObject(
        ref=PodRef(uid=PodUid(uid), namespace=pod.namespace, name=pod.name),
        claims=pod.claims,
        containers=pod.containers,
        extended=pod.extended,
        extended_claim_name=pod.extended_claim_name,
    )


def _pod_uid(pod: PodDocument, claims: list[ClaimDocument], node: Node) -> str:
    """Return the UID that the pod has, is reserved under, or lives here under."""
    if pod.uid:
        return pod.uid
    names = set(_claim_names(pod))
    for claim in claims:
        if claim.namespace == pod.namespace and claim.name in names:
            for uid, name in claim.reserved_for.items():
                if name == pod.name:
                    return uid
    for state in node.pods.values():
        if (state.ref.namespace, state.ref.name) == (pod.namespace, pod.name) and not state.ended:
            return state.ref.uid
    for refusal in node.refusals.values():
        if (refusal.pod.namespace, refusal.pod.name) == (pod.namespace, pod.name):
            return refusal.pod.uid
    return ""


def _claim_uid(claim: ClaimDocument, node: Node) -> str:
    for uid in reversed(node.by_name.get((claim.namespace, claim.name), ())):
        if node.claims[uid].phase is not Phase.UNPREPARED:
            return uid
    return ""


def _claim(
    claim: ClaimDocument, pod_uids: Mapping[tuple[str, str], str], *, uid: str
) -> ClaimObject:
    reserved = set(claim.reserved_for)
    if claim.is_simulated:
        # Whoever asks for a simulated allocation asks for its reservations too.
        reserved |= {u for (namespace, _), u in pod_uids.items() if namespace == claim.namespace}
    owner_uid = None
    if claim.owner is not None:
        owner_uid = claim.owner.uid
        if not owner_uid and claim.owner.kind == "Pod":
            owner_uid = pod_uids.get((claim.namespace, claim.owner.name), "")
    return ClaimObject(
        ref=ClaimRef(uid=ClaimUid(uid), namespace=claim.namespace, name=claim.name),
        allocation=claim.allocation,
        reserved_for=tuple(sorted(reserved)),
        owner_uid=owner_uid,
        owner_kind=claim.owner.kind if claim.owner else "",
        pod_claim_name=claim.pod_claim_name,
        config=claim.config,
    )
