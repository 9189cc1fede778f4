"""
The boot id: what tells a reboot from a restart (rule R1).

The kernel's file holds one UUID.  Anything else refuses the start: to guess a boot would either
call drivers for nothing or let containers start on devices that are gone.
"""

from __future__ import annotations

import re
from pathlib import Path

from ...engine.errors import UsageError

__all__ = ["read_boot_id"]

_BOOT_ID = re.compile(rb"[0-9A-Za-z][0-9A-Za-z-]{0,63}", re.ASCII)
_BYTES_MAX = 4096


def read_boot_id(path: Path) -> str:
    """
    Return the boot id in *path*.

    Raises:
        UsageError: The file cannot be read or holds no boot id.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX).strip()
    except OSError as error:
        raise UsageError(
            f"the boot id cannot be read: {path}: {error.strerror or error}",
            hint="--boot-id-file names the file; the kernel's is /proc/sys/kernel/random/boot_id",
        ) from None
    if not _BOOT_ID.fullmatch(text):
        raise UsageError(
            f"{path} holds no boot id: letters, digits and dashes, at most 64",
            hint="--boot-id-file names the file; the kernel's is /proc/sys/kernel/random/boot_id",
        )
    return text.decode()
