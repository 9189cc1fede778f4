"""
What lies in a manifest directory: complete scans, and the last good content of each file.

A scan is complete or it does not count.  A file that no longer parses keeps what it said last; one
that never did is told apart, because nobody knows what it stands for; a file that is gone is only
reported as gone.  What that means is judged by `source` (rule 9).
"""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import msgspec
import structlog

from ...engine.errors import UsageError
from ..kubernetes.documents import TEXT_BYTES_MAX, parse_documents
from ..kubernetes.objects import ClaimDocument, PodDocument
from ..kubernetes.wishes import Manifest, read_manifest

__all__ = ["FILES_MAX", "ManifestDirectory", "Scan", "check_directory"]

FILES_MAX = 1024
_SUFFIXES = (".yaml", ".yml", ".json")

_log: Any = structlog.get_logger()


class _File(msgspec.Struct, kw_only=True):
    """A file's identity, and the last content of it that could be used, if there was one."""

    identity: tuple[int, int, int, int, int] | None = None
    manifest: Manifest | None = None
    #: Why the newest content is not it; empty if it is.
    problem: str = ""


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """What a complete scan has found."""

    #: What tells this directory from another one under its name.
    identity: tuple[int, int]
    manifest: Manifest
    #: Files of which nothing could be used so far.
    unread: frozenset[str]
    #: Whether a file differs from what it was in the scan before.
    is_changed: bool


_HINT = "the setting manifest.directory, or --manifests, names one"


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
        raise UsageError(f"{directory}: {error.strerror or error}", hint=_HINT) from None
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{directory} is no directory", hint=_HINT)
    if found.st_mode & stat.S_IWOTH:
        raise UsageError(f"{directory} can be written by everybody", hint=f"chmod o-w {directory}")


class ManifestDirectory:
    """The files of *path*, scanned one by one."""

    def __init__(self, path: Path, *, honour_skips: bool) -> None:
        self.path = path
        self._honour_skips = honour_skips
        self._files: dict[str, _File] = {}
        self._doubles: set[str] = set()

    def identity(self) -> tuple[int, int] | None:
        """Return what tells the directory from another one of its name; None: it is not there."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return (found.st_dev, found.st_ino)

    def scan(self) -> Scan:
        """
        Return all pods and claims that the files stand for.

        Raises:
            UsageError: The scan is not complete.
        """
        check_directory(self.path)
        identity = self.identity()
        names = self._names()
        if identity is None or identity != self.identity():
            raise UsageError(f"{self.path} is not there")
        is_changed = False
        for name in names:
            is_changed |= self._read(name)
        for name in set(self._files) - set(names):
            del self._files[name]
            is_changed = True
        unread = frozenset(name for name, file in self._files.items() if file.manifest is None)
        return Scan(
            identity=identity, manifest=self._merged(), unread=unread, is_changed=is_changed
        )

    def _names(self) -> list[str]:
        try:
            names = sorted(
                entry.name
                for entry in self.path.iterdir()
                if entry.suffix in _SUFFIXES and not entry.name.startswith(".")
            )
        except OSError as error:
            raise UsageError(f"{self.path}: {error.strerror or error}") from None
        if len(names) > FILES_MAX:
            raise UsageError(f"{self.path}: {len(names)} files, at most {FILES_MAX}")
        return names

    def _read(self, name: str) -> bool:
        """Read the file *name* if it is another one than before; return whether it is."""
        path = self.path / name
        old = self._files.get(name) or _File()
        identity: tuple[int, int, int, int, int] | None = None
        try:
            found = path.stat()
            identity = (
                found.st_dev,
                found.st_ino,
                found.st_mode,
                found.st_mtime_ns,
                found.st_size,
            )
            if old.identity == identity:
                return False
            manifest = self._parse(path, found)
        except (OSError, UsageError) as error:
            problem = (error.strerror if isinstance(error, OSError) else "") or str(error)
            if old.problem != problem:
                _log.warning("manifest_refused", file=name, error=problem)
            self._files[name] = _File(identity=identity, manifest=old.manifest, problem=problem)
            return True
        if old.problem:
            _log.info("manifest_taken", file=name)
        self._files[name] = _File(identity=identity, manifest=manifest)
        return True

    def _parse(self, path: Path, found: Any) -> Manifest:
        if not stat.S_ISREG(found.st_mode) or found.st_size > TEXT_BYTES_MAX:
            raise UsageError(f"{path.name} is no file of at most {TEXT_BYTES_MAX} bytes")
        if found.st_mode & stat.S_IWOTH:
            raise UsageError(f"{path.name} can be written by everybody: chmod o-w {path}")
        documents = parse_documents(path.read_bytes(), origin=path.name)
        return read_manifest(documents, honour_skips=self._honour_skips)

    def _merged(self) -> Manifest:
        pods: dict[tuple[str, str], PodDocument] = {}
        claims: dict[tuple[str, str], ClaimDocument] = {}
        doubles: set[str] = set()
        for name, file in sorted(self._files.items()):
            if file.manifest is None:
                continue
            for pod in file.manifest.pods:
                if pods.setdefault((pod.namespace, pod.name), pod) is not pod:
                    doubles.add(f"{name}: pod {pod.namespace}/{pod.name}")
            for claim in file.manifest.claims:
                if claims.setdefault((claim.namespace, claim.name), claim) is not claim:
                    doubles.add(f"{name}: claim {claim.namespace}/{claim.name}")
        for double in sorted(doubles - self._doubles):
            _log.warning("manifest_twice", object=double, taken="the first file that has it")
        self._doubles = doubles
        return Manifest(list(pods.values()), list(claims.values()))
