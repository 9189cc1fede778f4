"""What a script does to answers on their way out."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ....events.values import ClaimRef, PreparedDevice
from ..wire import ClaimAnswer
from .script import Step

__all__ = ["GARBAGE", "spoiled"]

#: Bytes that are no protobuf message.
GARBAGE = b"\xff" * 16

_UNASKED = "00000000-0000-0000-0000-unasked00000"


def spoiled(
    answers: dict[str, ClaimAnswer], steps: Sequence[Step], claims: Sequence[ClaimRef]
) -> dict[str, ClaimAnswer]:
    """Return *answers* with what the steps want to be wrong about them."""
    result = dict(answers)
    for step in steps:
        if step.answer == "unasked":
            result[_UNASKED] = ClaimAnswer(devices=(PreparedDevice(pool="p", device="unasked"),))
            continue
        for claim in claims:
            if not step.is_for(claim):
                continue
            if step.answer == "missing":
                result.pop(claim.uid, None)
            elif claim.uid in result:
                result[claim.uid] = _spoil(result[claim.uid], step)
    return result


def _spoil(answer: ClaimAnswer, step: Step) -> ClaimAnswer:
    devices = answer.devices
    first = devices[0] if devices else PreparedDevice(pool="p", device="d")
    replace = msgspec.structs.replace
    match step.answer:
        case "empty":
            devices = ()
        case "duplicate":
            devices = (*devices, *devices)
        case "wrong_device":
            devices = (replace(first, device="not-yours"),)
        case "bad_cdi":
            devices = (replace(first, cdi_device_ids=("no cdi id",)),)
        case "many_cdi":
            ids = tuple(f"vendor.com/class=device-{n}" for n in range(step.count))
            devices = (replace(first, cdi_device_ids=ids),)
        case "many_devices":
            devices = tuple(replace(first, device=f"device-{n}") for n in range(step.count))
        case "huge":
            devices = (replace(first, pool="x" * step.size_bytes),)
        case _:
            return answer
    return replace(answer, devices=devices)
