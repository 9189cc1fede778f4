"""
Bounds and grammar of a driver's answer, whatever adapter it came through.

The bounds are those of design.md section 4, the grammar follows from rule 7.

An answer that breaks them is that claim's failure, `invalid`; the other claims of the call stand.
"""

from __future__ import annotations

import re

from ..events.values import PreparedDevice
from .ports import Failed, Prepared

__all__ = ["ANSWER_BYTES_MAX", "CDI_IDS_MAX", "DEVICES_MAX", "is_cdi_id", "judge"]

DEVICES_MAX = 256
CDI_IDS_MAX = 32
ANSWER_BYTES_MAX = 256 * 1024

#: `vendor/class=name` as spec/driver-protocol.md section 6 gives it; a one-letter vendor or class
#: makes the reference parser panic, so two are the least.
_CDI_ID = re.compile(
    r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?",
    re.ASCII,
)


def is_cdi_id(text: str) -> bool:
    """Return whether *text* is a qualified CDI device name."""
    return _CDI_ID.fullmatch(text) is not None


def judge(answer: Prepared) -> Prepared | Failed:
    """Return *answer*, or why it cannot be taken."""
    if len(answer.devices) > DEVICES_MAX:
        return _too_large(f"{len(answer.devices)} devices, more than {DEVICES_MAX}")
    size = 0
    for device in answer.devices:
        if len(device.cdi_device_ids) > CDI_IDS_MAX:
            return _too_large(
                f"{len(device.cdi_device_ids)} CDI ids for one device, more than {CDI_IDS_MAX}"
            )
        size += _size(device)
        if bad := next((i for i in device.cdi_device_ids if not is_cdi_id(i)), None):
            return Failed(
                f"the driver answered {bad[:200]!r}, which is no CDI id (vendor/class=name)",
                outcome="invalid",
                code="cdi_id",
            )
    if size > ANSWER_BYTES_MAX:
        return _too_large(f"{size} bytes for one claim, more than {ANSWER_BYTES_MAX}")
    return answer


def _too_large(what: str) -> Failed:
    return Failed(f"the driver's answer is too large: {what}", outcome="invalid", code="too_large")


def _size(device: PreparedDevice) -> int:
    texts = (device.pool, device.device, *device.requests, *device.cdi_device_ids)
    return sum(len(text.encode(errors="replace")) for text in texts)
