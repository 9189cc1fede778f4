"""
What lies in a manifest directory: complete scans, and the last good content of each file.

A scan is complete or it does not count.  A file that no longer parses keeps what it said last; a
file that is gone is only reported as gone.  What that means is judged by `source` (design.md rule
9).
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ...engine.errors import UsageError
from ..kubernetes.documents import TEXT_BYTES_MAX, parse_documents
from ..kubernetes.objects import ClaimDocument, PodDocument
from ..kubernetes.wishes import Manifest, read_manifest

__all__ = ["FILES_MAX", "ManifestDirectory", "check_directory"]

FILES_MAX = 1024
_SUFFIXES = (".yaml", ".yml", ".json")

_log: Any = structlog.get_logger()


class _File(msgspec.Struct):
    """A file's identity, and the last content of it that could be used."""

    identity: tuple[int, int, int, int]
    manifest: Manifest
    #: Why the newest content is not it; empty if it is.
    problem: str = ""


def check_directory(directory: Path) -> None:
    """
    Raise where everybody may write to *directory*: what lies there is done with drivers' power.

    Raises:
        UsageError: It is open to others, or no directory.
    """
    try:
        found = directory.stat()
    except FileNotFoundError:
        return  # it may come; until then the source is not in sync
    except OSError as error:
        raise UsageError(f"{directory}: {error.strerror or error}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{directory} is no directory")
    if found.st_mode & stat.S_IWOTH:
        raise UsageError(f"{directory} can be written by everybody", hint=f"chmod o-w {directory}")


class ManifestDirectory:
    """The files of *path*, scanned one by one."""

    def __init__(self, path: Path, *, honour_skips: bool) -> None:
        self.path = path
        self._honour_skips = honour_skips
        self._files: dict[str, _File] = {}

    def identity(self) -> tuple[int, int] | None:
        """Return what tells this directory from another one under its name; None: it is not there."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino)

    def scan(self) -> Manifest | None:
        """Return all pods and claims that the files stand for; None if the scan is not complete."""
        try:
            names = sorted(
                entry.name
                for entry in self.path.iterdir()
                if entry.suffix in _SUFFIXES and not entry.name.startswith(".")
            )
        except OSError as error:
            _log.warning("manifests_unreadable", directory=str(self.path), error=str(error))
            return None
        if len(names) > FILES_MAX:
            _log.warning("manifests_too_many", files=len(names), files_max=FILES_MAX)
            return None
        for name in names:
            self._read(name)
        for name in set(self._files) - set(names):
            del self._files[name]
        return self._merged()

    def problems(self) -> Mapping[str, str]:
        """Return why the newest content of a file is not used, by its name."""
        return {name: file.problem for name, file in self._files.items() if file.problem}

    def _read(self, name: str) -> None:
        path = self.path / name
        old = self._files.get(name)
        try:
            found = path.stat()
            identity = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if old is not None and old.identity == identity:
                return
            if not stat.S_ISREG(found.st_mode) or found.st_size > TEXT_BYTES_MAX:
                raise UsageError(f"{name} is no file of at most {TEXT_BYTES_MAX} bytes")
            documents = parse_documents(path.read_bytes(), origin=name)
            manifest = read_manifest(documents, honour_skips=self._honour_skips)
        except (OSError, UsageError) as error:
            self._keep(name, str(error))
        else:
            self._files[name] = _File(identity=identity, manifest=manifest)

    def _keep(self, name: str, problem: str) -> None:
        """Keep what the file said last; say once why it is not taken as it is now."""
        old = self._files.get(name)
        if old is None:
            old = self._files[name] = _File(identity=(0, 0, 0, 0), manifest=Manifest([], []))
        if old.problem != problem:
            old.problem = problem
            _log.warning("manifest_refused", file=name, error=problem)

    def _merged(self) -> Manifest:
        pods: dict[tuple[str, str], PodDocument] = {}
        claims: dict[tuple[str, str], ClaimDocument] = {}
        for name, file in sorted(self._files.items()):
            for pod in file.manifest.pods:
                if pods.setdefault((pod.namespace, pod.name), pod) is not pod:
                    _log.warning("manifest_twice", file=name, pod=f"{pod.namespace}/{pod.name}")
            for claim in file.manifest.claims:
                claims.setdefault((claim.namespace, claim.name), claim)
        return Manifest(list(pods.values()), list(claims.values()))
