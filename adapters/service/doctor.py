"""
Look at everything that claimlet stands on, and say by name what is wrong and what to do about it.

It changes nothing, and it works whatever is broken: a check that cannot be made is a finding of its
own and ends none of the others.  The log is read whole: by its writer's key where no service runs,
so that the damage is named exactly, else as anybody may.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

import msgspec

from ...config.settings import Settings
from ...engine.errors import NotReadyError
from ...engine.node import Node
from ...events.errors import ClaimletError, LockHeldError
from ...events.jetstream.connection import Connection
from ...events.jetstream.log import LOST_HINT
from ...events.jetstream.stream import check_server, check_stream, stream_info
from ...events.record import GAP_WORD, Record, time_text
from ...events.server import keys
from ...events.server.anchor import anchor_file, read_anchor
from ...events.server.locks import hold
from ...events.server.process import ServerSettings
from ...events.server.status import read_ports, read_status
from ..control.client import connect_control
from ..control.protocol import Hello
from .addresses import server_settings
from .boot import read_boot_id
from .clock import turned_back
from .gaps import rows_of, survey_log
from .policy import policy_of
from .reading import control_address, reader_address, records_of_log

__all__ = ["Finding", "examine"]

#: What drivers' sockets add to the root, at least; a path of 108 bytes is no address any more.
_SOCKET_NAME_LENGTH = 48
_SOCKET_LENGTH_MAX = 107
_SPACE_WARN, _SPACE_BAD = 0.7, 0.9
_FREE_BYTES_MIN = 64 * 1024**2
_HEALTH_SECONDS = 3.0
_STUCK_ATTEMPTS = 5
_NAMES_MAX = 5

_ACKNOWLEDGE = "claimlet log gap acknowledge --from {0} --to {1} --why TEXT [--copy PATH]"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What one check has found."""

    check: str
    state: Literal["ok", "warn", "error"]
    text: str
    #: What to do about it.
    hint: str = ""


async def examine(settings: Settings) -> list[Finding]:
    """Return what there is to say, check by check, in a stable order."""
    doctor = _Doctor(settings)
    findings: list[Finding] = []
    for name, check in doctor.checks():
        try:
            findings += await check()
        except ClaimletError as error:
            findings.append(Finding(check=name, state="error", text=str(error), hint=error.hint))
        except OSError as error:
            place = f"{error.filename}: " if error.filename else ""
            findings.append(
                Finding(check=name, state="error", text=f"{place}{error.strerror or error}")
            )
    return findings


class _Doctor:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hello: Hello | None = None
        self._lacks_keys = False
        self._records: Sequence[Record] = ()

    def checks(self) -> Iterator[tuple[str, Callable[[], Awaitable[list[Finding]]]]]:
        """Yield each check with its name; later ones use what earlier ones have found."""
        yield "boot id", self._boot_id
        yield "root", self._root
        yield "state directory", self._state_dir
        yield "disk", self._disk
        yield "nats-server", self._program
        yield "keys", self._keys
        yield "service", self._service
        if self._lacks_keys:
            # Starting a server would make them, and reading would need them.
            yield "log", self._unread
        elif self._has_log():
            yield "log server", self._server
            yield "stream", self._stream
            yield "log", self._log
            yield "clock", self._clock
            yield "claims", self._claims
        else:
            yield "log", self._no_log

    def _has_log(self) -> bool:
        return bool(self._settings.log.url) or (self._settings.state_dir / "server.json").exists()

    # --- the machine -----------------------------------------------------------------------------

    async def _boot_id(self) -> list[Finding]:
        boot = read_boot_id(self._settings.boot_id_file)
        return [_ok("boot id", f"{boot}, from {self._settings.boot_id_file}")]

    async def _root(self) -> list[Finding]:
        root = self._settings.root
        longest = len(os.fsencode(root / "plugins_registry")) + _SOCKET_NAME_LENGTH
        if longest > _SOCKET_LENGTH_MAX:
            text = f"{root} is so long that sockets of drivers with long names do not fit"
            return [_warn("root", text, "--root names a shorter one")]
        if root.exists() and not os.access(root, os.W_OK | os.X_OK):
            text = f"{root} cannot be written by this user"
            return [_bad("root", text, "run as the user of the service, or name another --root")]
        return [_ok("root", f"{root}" if root.exists() else f"{root}, made at the first start")]

    async def _state_dir(self) -> list[Finding]:
        path = self._settings.state_dir
        if not path.exists():
            return [_ok("state directory", f"{path}, made at the first start")]
        mode = path.stat().st_mode & 0o777
        if mode & 0o022:
            text = f"others can write to {path} (mode {mode:04o})"
            return [_bad("state directory", text, f"chmod 700 {path}")]
        if not os.access(path, os.W_OK | os.X_OK):
            return [_bad("state directory", f"{path} cannot be written by this user", _AS_USER)]
        if mode & 0o055:
            text = f"others can look into {path} (mode {mode:04o})"
            return [_warn("state directory", text, f"chmod 700 {path}")]
        return [_ok("state directory", f"{path}")]

    async def _disk(self) -> list[Finding]:
        path = self._settings.state_dir
        while not path.exists() and path != path.parent:
            path = path.parent
        free = shutil.disk_usage(path).free
        text = f"{_size(free)} free where {path} lies"
        if free < _FREE_BYTES_MIN:
            hint = "make room: the log's server stops taking facts when there is none"
            return [_bad("disk", text, hint)]
        used = _size_of(path / "js") if path == self._settings.state_dir else 0
        wanted = max(0, self._settings.log.max_file_store_bytes - used)
        if not self._settings.log.url and free < wanted:
            hint = f"the log may still grow by {_size(wanted)} (log.max_file_store_bytes)"
            return [_warn("disk", text, hint)]
        return [_ok("disk", text)]

    # --- the log's server ------------------------------------------------------------------------

    def _own(self) -> ServerSettings:
        return server_settings(self._settings)

    async def _program(self) -> list[Finding]:
        if self._settings.log.url:
            return [_ok("nats-server", f"the one at {self._settings.log.url} is used")]
        return [_ok("nats-server", f"{self._own().program}")]

    async def _keys(self) -> list[Finding]:
        settings = self._settings
        if settings.log.url:
            directory = settings.log.keys_dir or settings.state_dir / "keys"
            users: Sequence[str] = keys.USERS
        else:
            directory, users = settings.state_dir / "keys", (*keys.USERS,)
        if not self._has_log():
            return [_ok("keys", "made at the first start")]
        files = {user: keys.seed_file(directory, user) for user in users}
        missing = [user for user, file in files.items() if not file.exists()]
        for user in set(files) - set(missing):
            keys.check_seed_file(files[user])
        if missing and not settings.log.url:
            self._lacks_keys = True
            hint = "start the service anew: it makes new ones, and its server then knows them"
            return [_bad("keys", f"missing in {directory}: {', '.join(missing)}", hint)]
        if missing:
            text = f"none for {', '.join(missing)}: these go without"
            return [_warn("keys", text, "right where that server asks nobody")]
        return [_ok("keys", f"{len(files)} in {directory}")]

    async def _service(self) -> list[Finding]:
        settings = self._settings
        try:
            async with connect_control(
                await control_address(settings), node=settings.node
            ) as client:
                hello = self._hello = await client.ask("hello", None, Hello)
        except NotReadyError as error:
            if _is_held(settings.state_dir / "service.lock"):
                text = f"a service holds {settings.state_dir} and does not answer: {error}"
                return [_bad("service", text, "its log lines say why; it may still be starting")]
            return [_ok("service", "not running")]
        findings = [_ok("service", f"claimlet {hello.version}, at {hello.sequence}")]
        if not hello.is_log_available:
            hint = "nothing new is prepared until it does; it goes on by itself then"
            findings = [_bad("service", "the log does not answer it", hint)]
        replay = hello.replay
        if replay is not None and replay.mismatch:
            hint = "compare `claimlet history node` with what is; the replay counts"
            findings.append(_bad("snapshot", replay.mismatch, hint))
        elif replay is not None and replay.problem:
            findings.append(_warn("snapshot", replay.problem, "it cost the time of a replay"))
        return findings

    async def _server(self) -> list[Finding]:
        if self._settings.log.url:
            return []
        own = self._own()
        status = read_status(own.status_file)
        ports = read_ports(own.state_dir, status.pid) if status else None
        if self._hello is None or ports is None or not ports.monitoring:
            return []
        trouble = await asyncio.to_thread(_unhealthy, f"{ports.monitoring[0]}/healthz")
        if trouble:
            hint = f"its own words are in {own.log_file}; a full disk needs room and a restart"
            return [_bad("log server", trouble, hint)]
        return [_ok("log server", f"healthy, on port {ports.port}")]

    async def _stream(self) -> list[Finding]:
        async with reader_address(self._settings) as address:
            connection = await Connection.open(address, name="claimlet doctor")
            try:
                check_server(connection)
                info = await stream_info(connection)
            finally:
                await connection.close()
        if info is None:
            hint = "put its store back from a copy, or begin anew with an empty state directory"
            return [_bad("stream", "the log's stream is gone", hint)]
        check_stream(info, self._settings.node)
        bytes_max = int(info.config.get("max_bytes", 0))
        part = info.state.bytes / bytes_max if bytes_max > 0 else 0.0
        text = f"{info.state.messages} facts, {part:.0%} of its space"
        if part >= _SPACE_BAD:
            return [_bad("stream", text, _SPACE_HINT)]
        if part >= _SPACE_WARN:
            return [_warn("stream", text, _SPACE_HINT)]
        return [_ok("stream", text)]

    # --- what the log says -----------------------------------------------------------------------

    async def _no_log(self) -> list[Finding]:
        return [_ok("log", f"there is none in {self._settings.state_dir} yet")]

    async def _unread(self) -> list[Finding]:
        return [_warn("log", "not looked at: keys are missing", "claimlet doctor, once they are")]

    async def _log(self) -> list[Finding]:
        findings: list[Finding] = []
        try:
            async with survey_log(self._settings) as found:
                rows = rows_of(found)
                findings += self._beyond(found.last)
        except LockHeldError:
            rows = []  # a service runs: its log was whole when it started
        for row in rows:
            range_ = f"records {row.from_sequence} to {row.to_sequence}"
            if row.state == "damaged":
                where = f" ({', '.join(row.subjects)})" if row.subjects else ""
                hint = _ACKNOWLEDGE.format(row.from_sequence, row.to_sequence)
                text = f"EVENTS, {range_}{where}: {row.problem}"
                findings.append(_bad("log", text, hint))
        if findings:
            return findings
        self._records = await records_of_log(self._settings)
        gaps = sum(record.word == GAP_WORD for record in self._records)
        text = f"whole: {len(self._records)} public facts read and checked"
        return [_ok("log", f"{text}; gaps acknowledged: {gaps}" if gaps else text)]

    def _beyond(self, last: int) -> list[Finding]:
        """Return the finding that the log ends before what was acknowledged."""
        anchor = read_anchor(anchor_file(self._settings.state_dir))
        if anchor is None or anchor.sequence <= last:
            return []
        text = f"EVENTS ends at record {last}, but record {anchor.sequence} was acknowledged"
        return [_bad("log", text, LOST_HINT)]

    async def _clock(self) -> list[Finding]:
        if not self._records:
            return []
        steps = turned_back(self._records)
        now, last = time_text(time.time_ns()), self._records[-1].time
        if last > now:
            text = f"the clock is behind the last fact, which is of {last}"
            return [_warn("clock", text, _CLOCK_HINT)]
        if steps:
            before, after = steps[-1]
            text = f"went back {len(steps)} times, last at {after.sequence}: {before.time} to"
            return [_warn("clock", f"{text} {after.time}", _CLOCK_HINT)]
        return [_ok("clock", "never went back")]

    async def _claims(self) -> list[Finding]:
        if not self._records:
            return []
        node = Node(self._settings.node, policy_of(self._settings))
        for record in self._records:
            node.fold(record)
        claims = node.claims.values()
        suspects = [f"{c.ref}: {c.suspect}" for c in claims if c.suspect]
        overlaps = [f"{c.ref}" for c in claims if node.overlapping(c)]
        stuck = [
            f"{c.ref}: {f.driver} {f.outcome} {f.attempts} times: {f.text}"
            for c in claims
            for f in c.failures
            if f.attempts >= _STUCK_ATTEMPTS
        ]
        waived = [f"{w.claim}: {w.driver}" for w in node.waivers.values()]
        findings = [
            _warn("claims", f"{what}: {_some(names)}", hint)
            for what, names, hint in (
                ("suspect", suspects, "claimlet log gap list, while the service is stopped"),
                ("on a device that another holds", overlaps, "claimlet claims describe NS/NAME"),
                ("stuck", stuck, "claimlet claims describe NS/NAME; claimlet drivers list"),
                ("with a waived debt", waived, "claimlet unprepare waive --settled, once cleaned"),
            )
            if names
        ]
        return findings or [_ok("claims", f"{len(node.claims)} here, none in trouble")]


_AS_USER = "run as the user of the service"
_SPACE_HINT = "raise log.max_file_store_bytes; when it is full, nothing new is prepared"
_CLOCK_HINT = "times are only shown and never compared; set the clock right"


def _ok(check: str, text: str) -> Finding:
    return Finding(check=check, state="ok", text=text)


def _warn(check: str, text: str, hint: str) -> Finding:
    return Finding(check=check, state="warn", text=text, hint=hint)


def _bad(check: str, text: str, hint: str) -> Finding:
    return Finding(check=check, state="error", text=text, hint=hint)


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_MAX
    return "; ".join(names[:_NAMES_MAX]) + (f"; and {more} more" if more > 0 else "")


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _is_held(path: Path) -> bool:
    if not path.exists():
        return False
    try:
        hold(path, owns=str(path)).release()
    except LockHeldError:
        return True
    return False


def _unhealthy(url: str) -> str:
    """Return what the server says is wrong with it."""
    try:
        with urlopen(url, timeout=_HEALTH_SECONDS) as answer:  # noqa: S310 -- our server's own
            return "" if answer.status == 200 else f"{url} says {answer.status}"
    except OSError as error:  # HTTPError and URLError are such
        body = getattr(error, "read", lambda _: b"")(2048)
        return f"{url}: {body.decode(errors='replace').strip() or error}"
