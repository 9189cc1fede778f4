"""
What a driver's answer means for each claim.

Pure: bytes in, outcomes per claim out.  A claim's own fault never costs another claim its result; a
claim that is missing from the answer is left out here and counted as failed by the loop (rule R3).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ...engine.ports import Claim, Failed, Prepared
from ...engine.texts import cut
from ...events.values import ClaimUid, PreparedDevice
from .wire import ClaimAnswer, DraApi, decode_prepare, decode_unprepare

__all__ = ["is_cdi_id", "read_prepare", "read_unprepare"]

#: `vendor/class=name`; vendor and class have two characters at least, because the reference parser
#: panics on one, and with it a container runtime would.
_CDI_ID = re.compile(
    r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
    r"=[A-Za-z0-9](?:[A-Za-z0-9_.:-]*[A-Za-z0-9])?",
    re.ASCII,
)


def is_cdi_id(text: str) -> bool:
    """Return whether *text* is a fully qualified CDI device name."""
    return _CDI_ID.fullmatch(text) is not None


def read_prepare(
    api: DraApi, data: bytes, claims: Sequence[Claim]
) -> dict[ClaimUid, Prepared | Failed]:
    """
    Return what the answer *data* says of each of *claims*, and of others under their UIDs.

    Raises:
        WireError: The bytes are no answer.
    """
    answers = decode_prepare(api, data, [claim.uid for claim in claims])
    return {uid: _outcome(answer) for uid, answer in answers.items()}


def read_unprepare(
    api: DraApi, data: bytes, claims: Sequence[Claim]
) -> dict[ClaimUid, Failed | None]:
    """
    Return what the answer *data* says of each of *claims*, and of others under their UIDs.

    Raises:
        WireError: The bytes are no answer.
    """
    errors = decode_unprepare(api, data, [claim.uid for claim in claims])
    return {uid: _refused(error) if error else None for uid, error in errors.items()}


def _refused(text: str) -> Failed:
    return Failed(cut(text), outcome="refused", code="driver_error")


def _outcome(answer: ClaimAnswer) -> Prepared | Failed:
    if answer.error:
        return _refused(answer.error)
    if answer.too_large:
        text = f"the answer is too large: {answer.too_large}"
        return Failed(text, outcome="invalid", code="answer_too_large")
    if wrong := _wrong_cdi_id(answer.devices):
        shown = repr(wrong if len(wrong) <= 80 else wrong[:80] + "…")
        return Failed(f"{shown} is no CDI device name", outcome="invalid", code="cdi_id")
    return Prepared(devices=answer.devices)


def _wrong_cdi_id(devices: Sequence[PreparedDevice]) -> str | None:
    for device in devices:
        for cdi_id in device.cdi_device_ids:
            if not is_cdi_id(cdi_id):
                return cdi_id or " "
    return None
