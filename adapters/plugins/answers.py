"""
What a driver's answer means for each claim.

Pure: bytes in, outcomes per claim out.  A claim's own fault never costs another claim its result; a
claim that is missing from the answer is left out here and counted as failed by the loop (rule R3).
Grammar and bounds of what is answered are the engine's to judge, for every adapter alike.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...engine.answers import too_large
from ...engine.ports import Claim, Failed, Prepared
from ...engine.texts import cut
from ...events.values import ClaimUid
from .wire import ClaimAnswer, DraApi, decode_prepare, decode_unprepare

__all__ = ["read_prepare", "read_unprepare"]


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
        return too_large(answer.too_large)
    return Prepared(devices=answer.devices)
