"""
CDI files: whether containers could have what a driver says that it prepared.

A driver may answer from its own checkpoint after a reboot that took its files
(kubernetes/kubernetes#141433), or define one id in two files; then it says yes, and no container
starts.  Files are read as the CDI reference library reads them, as far as ids go: what is inside of
a device is the runtime's business.  They are never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from ...engine.answers import is_cdi_id
from ...engine.ports import (
    CdiFault,
    Claim,
    DriverAdapter,
    DriverInstance,
    Drivers,
    Failed,
    Prepared,
)
from ...events.errors import ClaimletError
from ...events.values import ClaimUid, DriverName
from ..kubernetes.documents import load_documents

__all__ = ["CdiFiles", "CheckedDrivers"]

_SUFFIXES = (".json", ".yaml")
_FILE_BYTES_MAX = 1024 * 1024


class CdiFiles:
    """The CDI files of *directories*, of which a later one goes before an earlier one."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        #: What a file defined when it was read last; it is read again where it was changed.
        self._known: dict[Path, tuple[tuple[int, int, int], frozenset[str]]] = {}

    def faults(self, ids: Collection[str]) -> dict[str, CdiFault]:
        """Return those of *ids* that no runtime could use, and why."""
        found: dict[str, int] = {}
        conflicts: set[str] = set()
        seen: dict[Path, tuple[tuple[int, int, int], frozenset[str]]] = {}
        for priority, directory in enumerate(self._directories):
            for path in _files(directory):
                for cdi_id in self._ids(path, seen):
                    if found.get(cdi_id) == priority:
                        conflicts.add(cdi_id)
                    found[cdi_id] = priority
        self._known = seen
        faults: dict[str, CdiFault] = {}
        for cdi_id in ids:
            if cdi_id in conflicts:
                faults[cdi_id] = "cdi_conflict"
            elif cdi_id not in found:
                faults[cdi_id] = "cdi_unresolved"
        return faults

    def _ids(
        self, path: Path, seen: dict[Path, tuple[tuple[int, int, int], frozenset[str]]]
    ) -> frozenset[str]:
        try:
            status = path.stat()
            key = (status.st_ino, status.st_mtime_ns, status.st_size)
            known = self._known.get(path)
            ids = known[1] if known and known[0] == key else _read(path)
        except (OSError, ClaimletError, msgspec.MsgspecError):
            # What cannot be read defines nothing, for a runtime too.
            return frozenset()
        seen[path] = key, ids
        return ids


def _files(directory: Path) -> list[Path]:
    try:
        return [p for p in directory.iterdir() if p.suffix in _SUFFIXES and p.is_file()]
    except OSError:
        return []


def _read(path: Path) -> frozenset[str]:
    """Return the ids that the file defines; an error where it is no CDI file."""
    with path.open("rb") as stream:
        data = stream.read(_FILE_BYTES_MAX + 1)
    documents = load_documents(data, str(path)) if len(data) <= _FILE_BYTES_MAX else []
    spec = msgspec.convert(next(iter(documents), None), _Spec)
    return frozenset(i for d in spec.devices if is_cdi_id(i := f"{spec.kind}={d.name}"))


class _Device(msgspec.Struct, frozen=True):
    name: str


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    cdi_version: str
    kind: str
    devices: tuple[_Device, ...]


class CheckedDrivers:
    """The *drivers*, whose answers are looked up in *files* before they are believed."""

    def __init__(self, drivers: Drivers, files: CdiFiles) -> None:
        self._drivers = drivers
        self._files = files

    def find(self, driver: DriverName) -> DriverInstance | None:
        """Return the newest connected instance of *driver*, else the newest, else None."""
        found = self._drivers.find(driver)
        if found is None:
            return None
        return msgspec.structs.replace(found, adapter=_Checked(found.adapter, self._files))


class _Checked:
    """An adapter whose yes names the CDI ids that no container could use now."""

    def __init__(self, adapter: DriverAdapter, files: CdiFiles) -> None:
        self._adapter = adapter
        self._files = files
        self.unprepare = adapter.unprepare

    @property
    def driver(self) -> str:
        """Return the driver's name."""
        return self._adapter.driver

    async def prepare(
        self, claims: Sequence[Claim], *, timeout_seconds: float
    ) -> Mapping[ClaimUid, Prepared | Failed]:
        """Prepare *claims*, and look at what is there then."""
        answers = await self._adapter.prepare(claims, timeout_seconds=timeout_seconds)
        ids = {
            uid: [i for device in answer.devices for i in device.cdi_device_ids]
            for uid, answer in answers.items()
            if isinstance(answer, Prepared)
        }
        wanted = frozenset(i for own in ids.values() for i in own)
        faults = await asyncio.to_thread(self._files.faults, wanted) if wanted else {}
        return {
            uid: msgspec.structs.replace(
                answer, cdi_faults={i: faults[i] for i in ids[uid] if i in faults}
            )
            if isinstance(answer, Prepared)
            else answer
            for uid, answer in answers.items()
        }
