"""The settings that decisions depend on, as the engine takes them and as the log records them."""

from __future__ import annotations

import msgspec

from ...config.settings import Settings
from ...engine.state import Policy

__all__ = ["policy_fields", "policy_of"]


def policy_of(settings: Settings) -> Policy:
    """Return the settings that decisions depend on."""
    return Policy(
        reprepare_on=settings.prepare.reprepare_on,
        unused_claims=settings.prepare.unused_claims,
        unused_claims_by_driver=dict(settings.prepare.unused_claims_per_driver),
        overlap=settings.prepare.overlap,
        unprepared_retention_seconds=settings.retention.unprepared_seconds,
    )


def policy_fields(policy: Policy) -> dict[str, str]:
    """Return *policy* as it is recorded: its fields as text."""
    fields: dict[str, object] = msgspec.to_builtins(policy)
    return {name: str(value) for name, value in fields.items()}
