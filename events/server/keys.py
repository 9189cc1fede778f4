"""
The nkey seeds of the server's users: one file each, readable by its owner only.

A seed is made once, on first need, and put in place in one step with its bytes on disk, so that no
crash leaves a half one.  A seed that others can read is refused, not mended: it may be known.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import nkeys

from ..errors import LogSetupError
from .files import make_private_directory, replace_file, usable

__all__ = [
    "ADMIN",
    "OPERATOR",
    "READER",
    "SERVICE",
    "USERS",
    "WRITER",
    "check_seed_file",
    "ensure_keys",
    "inbox_prefix",
    "namespace_reader",
    "public_key",
    "renew",
    "seed_file",
]

#: Account LOG: creates the stream, later archives it; publishes no facts.
ADMIN = "admin"
#: Account LOG: publishes the facts of this node.
WRITER = "writer"
#: Account LOG: reads everything but private facts.
READER = "reader"
#: Account CONTROL: answers commands.
SERVICE = "service"
#: Account CONTROL: gives commands.
OPERATOR = "operator"

USERS = (ADMIN, WRITER, READER, SERVICE, OPERATOR)

_SEED_BYTES_MAX = 256


def seed_file(directory: Path, user: str) -> Path:
    """Return where the seed of *user* lies."""
    return directory / f"{user}.nk"


def namespace_reader(name: str) -> str:
    """Return the user that is the reader *name* of one namespace."""
    return f"{READER}-{name}"


def inbox_prefix(user: str) -> str:
    """Return the prefix under which the server lets *user*, and nobody else, get answers."""
    return f"_INBOX.{user}"


def ensure_keys(directory: Path, users: Sequence[str] = USERS) -> Mapping[str, str]:
    """
    Return the public key of each of *users*, making seeds that are not there yet.

    Raises:
        LogSetupError: A seed is loose or no seed, or the directory cannot be used.
    """
    make_private_directory(directory)
    return {user: _ensure(seed_file(directory, user)) for user in users}


def renew(directory: Path, users: Sequence[str]) -> Mapping[str, str]:
    """
    Give each of *users* a new seed and return the new public keys.

    The server knows them once it runs with a configuration that has them.

    Raises:
        LogSetupError: The directory cannot be used.
    """
    for user in users:
        replace_file(seed_file(directory, user), _new_seed() + b"\n")
    return ensure_keys(directory, users)


def public_key(path: Path) -> str:
    """
    Return the public key of the seed at *path*.

    Raises:
        LogSetupError: It is loose, or no seed.
    """
    check_seed_file(path)
    with usable(path), path.open("rb") as file:
        seed = file.read(_SEED_BYTES_MAX).strip()
    try:
        pair = nkeys.from_seed(bytearray(seed))
        public: Any = pair.public_key  # typed by nkeys as what it is made from
    except (nkeys.NkeysError, ValueError, IndexError) as error:
        raise LogSetupError(
            f"{path} holds no nkey seed",
            hint="remove it to have a new one made; the server then restarts with it",
        ) from error
    if not public.startswith(b"U"):
        raise LogSetupError(f"{path} holds a seed that is no user's")
    return str(public, "ascii")


def check_seed_file(path: Path) -> None:
    """
    Raise unless *path* is a seed file that only its owner can read.

    Raises:
        LogSetupError: It is not there, or open to others.
    """
    with usable(path):
        mode = path.stat().st_mode
    if mode & 0o077:
        raise LogSetupError(
            f"{path} can be read or changed by others (mode {mode & 0o777:04o})",
            hint=f"chmod 600 {path}, and consider the key known: remove it to have a new one made",
        )


def _ensure(path: Path) -> str:
    if not path.exists():
        replace_file(path, _new_seed() + b"\n")
    return public_key(path)


def _new_seed() -> bytes:
    seed: bytes = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    return seed
