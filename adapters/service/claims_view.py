"""The claims gateway's view of the node: what a driver may read of a claim, from the fold."""

from __future__ import annotations

from ...engine.node import Node
from ...engine.outcome import find_claim
from ..gateway.claims import GatewayClaim

__all__ = ["NodeClaims"]


class NodeClaims:
    """The open claims of *node*, by name."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def claim(self, namespace: str, name: str) -> GatewayClaim | None:
        """Return the open claim of this name, or None."""
        found = [c for c in find_claim(self._node, namespace, name) if c.allocation is not None]
        if not found:
            return None
        claim = found[-1]
        assert claim.allocation is not None
        return GatewayClaim(
            ref=claim.ref,
            allocation=claim.allocation,
            config=self._node.configs.get(claim.uid, b""),
            consumers=tuple(consumer.pod for consumer in claim.consumers),
            pod_claim_name=claim.pod_claim,
        )
