"""
What the driver has prepared: a checkpoint and a CDI file for each claim.

One file per claim and no lock, so that two instances of one driver share them during an update.  A
prepare of a claim that is in the checkpoint gives the same answer and writes its CDI file again:
after a reboot the checkpoint is there and `/var/run/cdi` is empty.
"""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import msgspec

from ....events.values import ClaimRef, PreparedDevice
from .files import write_whole

__all__ = ["DriverState", "default_devices"]

_UID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)


def default_devices(claim: ClaimRef, *, pool: str) -> tuple[PreparedDevice, ...]:
    """Return the one device that a claim has where nothing else says which."""
    name = "device-" + sha256(claim.uid.encode()).hexdigest()[:8]
    return (PreparedDevice(pool=pool, device=name),)


class DriverState:
    """The claims that *driver* has prepared; without *data_dir* nothing outlives the process."""

    def __init__(self, driver: str, *, data_dir: Path | None, cdi_dir: Path | None) -> None:
        self._driver = driver
        self._cdi_dir = cdi_dir
        self._memory: dict[str, tuple[PreparedDevice, ...]] = {}
        self._claims_dir = None if data_dir is None else data_dir / "claims"
        for directory in (self._claims_dir, cdi_dir):
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)

    def prepared(self, claim: ClaimRef) -> tuple[PreparedDevice, ...] | None:
        """Return the answer that *claim* had, if it is prepared."""
        if self._claims_dir is None:
            return self._memory.get(claim.uid)
        try:
            data = (self._claims_dir / f"{_checked(claim)}.json").read_bytes()
        except FileNotFoundError:
            return None
        return msgspec.json.decode(data, type=tuple[PreparedDevice, ...])

    def prepare(
        self, claim: ClaimRef, devices: tuple[PreparedDevice, ...]
    ) -> tuple[PreparedDevice, ...]:
        """Return the devices of *claim* with their CDI names, the same ones each time."""
        answer = self.prepared(claim)
        if answer is None:
            answer = tuple(self._with_cdi_name(claim, device) for device in devices)
        if self._claims_dir is None:
            self._memory[claim.uid] = answer
        else:
            path = self._claims_dir / f"{_checked(claim)}.json"
            write_whole(path, msgspec.json.encode(answer))
        names = self._cdi_names(answer)
        if self._cdi_dir is not None and names:
            write_whole(self._cdi_path(claim), self._cdi_spec(names))
        return answer

    def unprepare(self, claim: ClaimRef) -> None:
        """Undo it; a claim that is not known is done."""
        if self._claims_dir is None:
            self._memory.pop(claim.uid, None)
        else:
            (self._claims_dir / f"{_checked(claim)}.json").unlink(missing_ok=True)
        if self._cdi_dir is not None:
            self._cdi_path(claim).unlink(missing_ok=True)

    @property
    def _kind(self) -> str:
        return f"k8s.{self._driver}/device"

    def _with_cdi_name(self, claim: ClaimRef, device: PreparedDevice) -> PreparedDevice:
        if device.cdi_device_ids:
            return device
        name = f"{self._kind}={claim.uid}-{device.device}"
        return msgspec.structs.replace(device, cdi_device_ids=(name,))

    def _cdi_path(self, claim: ClaimRef) -> Path:
        assert self._cdi_dir is not None
        return self._cdi_dir / f"{self._driver}_{_checked(claim)}.json"

    def _cdi_names(self, devices: tuple[PreparedDevice, ...]) -> dict[str, PreparedDevice]:
        own = f"{self._kind}="
        ids = ((cdi_id, device) for device in devices for cdi_id in device.cdi_device_ids)
        return {i.removeprefix(own): device for i, device in ids if i.startswith(own)}

    def _cdi_spec(self, names: dict[str, PreparedDevice]) -> bytes:
        variable = "CLAIMLET_" + re.sub(r"\W", "_", self._driver).upper()
        spec = {
            "cdiVersion": "0.6.0",
            "kind": self._kind,
            "devices": [
                {"name": name, "containerEdits": {"env": [f"{variable}={device.device}"]}}
                for name, device in names.items()
            ],
        }
        return msgspec.json.format(msgspec.json.encode(spec), indent=2)


def _checked(claim: ClaimRef) -> str:
    if not _UID.fullmatch(claim.uid):
        raise ValueError(f"{claim.uid!r} is no claim UID")
    return claim.uid
