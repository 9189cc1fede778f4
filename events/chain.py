"""
The hash chain: each record's link covers the one before, its subject and its bytes.

It shows change, removal, insertion and reorder between two known links. The link lies in a header,
so that the record stays clean and the chain survives sourcing.
"""

from __future__ import annotations

from hashlib import sha256

__all__ = ["CHAIN_HEADER", "genesis", "link"]

CHAIN_HEADER = "Claimlet-Chain"


def genesis(node: str) -> bytes:
    """Return the link before the first record of *node*'s log."""
    return sha256(b"claimlet EVENTS\n" + node.encode()).digest()


def link(previous: bytes, subject: str, data: bytes) -> bytes:
    """Return the link of the record with *data* on *subject* that follows *previous*."""
    return sha256(previous + subject.encode() + b"\n" + data).digest()
