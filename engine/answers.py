"""
Bounds and grammar of what a driver adapter answers, whoever wrote it (events/README.md, rule 7).

An answer that breaks them is that claim's failure, `invalid`; the other claims of the call stand.
What passes can be stored and read back: an adapter written in Python may hand over anything, and a
fact that cannot be decoded would make the whole log unreadable.
"""

from __future__ import annotations

import re
from typing import get_args

import msgspec

from ..events.values import FailureOutcome, PreparedDevice
from .ports import CdiFault, DriverCallError, Failed, Prepared
from .texts import cut

__all__ = [
    "ANSWER_BYTES_MAX",
    "CDI_IDS_MAX",
    "DEVICES_MAX",
    "is_cdi_id",
    "judge",
    "judge_error",
    "judge_unprepared",
    "too_large",
]

DEVICES_MAX = 256
CDI_IDS_MAX = 32
#: Of one claim's devices as they are stored, escapes and all.
ANSWER_BYTES_MAX = 256 * 1024

#: A code is a label of metrics and log lines.
_CODE_CHARACTERS_MAX = 64

#: `vendor/class=name` as the CDI specification has it; a one-letter vendor or class
#: makes the reference parser panic, so two are the least.
_CDI_ID = re.compile(
    r"[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]"
    r"=[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?",
    re.ASCII,
)

_encoder = msgspec.json.Encoder()
_devices = msgspec.json.Decoder(tuple[PreparedDevice, ...])
_faults = msgspec.json.Decoder(dict[str, CdiFault])


def is_cdi_id(text: str) -> bool:
    """Return whether *text* is a qualified CDI device name."""
    return _CDI_ID.fullmatch(text) is not None


def judge(answer: object) -> Prepared | Failed:
    """Return a driver's *answer* to a prepare as it can be stored, or why it cannot be taken."""
    if isinstance(answer, Failed):
        return _storable(answer.text, answer.outcome, answer.code)
    if not isinstance(answer, Prepared):
        return _odd(f"a {type(answer).__name__} where Prepared or Failed was due")
    try:
        if len(answer.devices) > DEVICES_MAX:
            return too_large(f"{len(answer.devices)} devices, more than {DEVICES_MAX}")
        data = _encoder.encode(answer.devices)
        if len(data) > ANSWER_BYTES_MAX:
            return too_large(f"{len(data)} bytes for one claim, more than {ANSWER_BYTES_MAX}")
        devices = _devices.decode(data)
        ids = {i for device in devices for i in device.cdi_device_ids}
        faults = _faults.decode(
            _encoder.encode({i: fault for i, fault in answer.cdi_faults.items() if i in ids})
        )
    except (msgspec.MsgspecError, AttributeError, TypeError, UnicodeError) as error:
        return _odd(str(error))
    return _wrong_id(devices) or Prepared(devices=devices, cdi_faults=faults)


def judge_unprepared(answer: object) -> Failed | None:
    """Return a driver's *answer* to an unprepare as it can be stored; None means done."""
    if answer is None:
        return None
    if isinstance(answer, Failed):
        return _storable(answer.text, answer.outcome, answer.code)
    return _odd(f"a {type(answer).__name__} where None or Failed was due")


def judge_error(error: DriverCallError) -> Failed:
    """Return the error of a whole call as the failure of one of its claims."""
    return _storable(str(error), error.outcome, error.code)


def _storable(text: object, outcome: object, code: object) -> Failed:
    known: FailureOutcome = "invalid"
    for name in get_args(FailureOutcome):
        if outcome == name:
            known = name
    return Failed(cut(str(text)), outcome=known, code=cut(str(code))[:_CODE_CHARACTERS_MAX])


def _wrong_id(devices: tuple[PreparedDevice, ...]) -> Failed | None:
    for device in devices:
        ids = device.cdi_device_ids
        if len(ids) > CDI_IDS_MAX:
            return too_large(f"{len(ids)} CDI ids for one device, more than {CDI_IDS_MAX}")
        if bad := next((i for i in ids if not is_cdi_id(i)), None):
            text = f"the driver answered {bad[:200]!r}, which is no CDI id (vendor/class=name)"
            return Failed(text, outcome="invalid", code="cdi_id")
    return None


def too_large(what: str) -> Failed:
    """Return the failure of a claim whose answer has *what*, which is beyond a bound."""
    return Failed(f"the driver's answer is too large: {what}", outcome="invalid", code="too_large")


def _odd(what: str) -> Failed:
    return Failed(
        cut(f"the driver's answer cannot be stored: {what}"), outcome="invalid", code="bad_answer"
    )
