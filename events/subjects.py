"""
Subjects: where a fact is published, and what a token may be (events/README.md).

``dra.<node>.claim.<namespace>.<claim uid>.<fact>`` · ``dra.<node>.pod.<namespace>.<pod
uid>.<fact>`` · ``dra.<node>.node.<fact>`` · ``dra.<node>.private.<namespace>.<claim
uid>.config_recorded``.

A token is checked before it is used: a dot, star or blank in one would aim a fact at another
subject.
"""

from __future__ import annotations

import re

from .errors import PermanentError
from .facts import ClaimFact, ConfigRecorded, PodFact
from .record import Record
from .values import ClaimRef, PodRef

__all__ = [
    "LIVE_PREFIX",
    "InvalidTokenError",
    "check_claim_name",
    "check_namespace",
    "check_uid",
    "node_token",
    "subject",
]

#: The stream republishes what it has stored under this prefix.
LIVE_PREFIX = "live"

_UID = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_SUBDOMAIN = re.compile(rf"(?=.{{1,253}}\Z){_LABEL.pattern}(\.{_LABEL.pattern})*", re.ASCII)


class InvalidTokenError(PermanentError):
    """A name or UID that cannot be part of a subject."""

    exit_code = 2


def check_uid(uid: str) -> None:
    """
    Raise unless *uid* may stand in a subject: letters, digits and dashes, at most 64.

    Raises:
        InvalidTokenError: It may not.
    """
    if not _UID.fullmatch(uid):
        raise InvalidTokenError(f"{_shown(uid)} is no UID: letters, digits and dashes, at most 64")


def check_namespace(namespace: str) -> None:
    """
    Raise unless *namespace* is a DNS label.

    Raises:
        InvalidTokenError: It is not.
    """
    if not _LABEL.fullmatch(namespace):
        raise InvalidTokenError(f"{_shown(namespace)} is no namespace: it must be a DNS label")


def check_claim_name(name: str) -> None:
    """
    Raise unless *name*, of a claim or a pod, is a DNS subdomain.

    Raises:
        InvalidTokenError: It is not.
    """
    if not _SUBDOMAIN.fullmatch(name):
        raise InvalidTokenError(f"{_shown(name)} is no object name: it must be a DNS subdomain")


def node_token(node: str) -> str:
    """
    Return the token of *node*: its name with dots as underscores.

    Raises:
        InvalidTokenError: The name is no DNS subdomain (so that it cannot hold an underscore).
    """
    if not _SUBDOMAIN.fullmatch(node):
        raise InvalidTokenError(f"{_shown(node)} is no node name: it must be a DNS subdomain")
    return node.replace(".", "_")


def subject(record: Record) -> str:
    """
    Return the subject of *record*.

    Raises:
        InvalidTokenError: A part of it may not stand in a subject.
    """
    prefix = f"dra.{node_token(record.node)}"
    fact = record.fact
    about: ClaimRef | PodRef | None
    if isinstance(fact, ClaimFact | ConfigRecorded):
        about, kind = record.claim, "private" if isinstance(fact, ConfigRecorded) else "claim"
    elif isinstance(fact, PodFact):
        about, kind = record.pod, "pod"
    else:
        return f"{prefix}.node.{record.word}"
    if about is None:
        raise InvalidTokenError(f"a {record.word} says of no {kind} that it is about")
    check_uid(about.uid)
    check_namespace(about.namespace)
    return f"{prefix}.{kind}.{about.namespace}.{about.uid}.{record.word}"


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:80] + "…")
