"""
The settings: their shape, where their values come from, and what is wrong with a bad one.

A value is taken from the first of: flag, ``CLAIMLET_*`` in the environment, the file of
``--config``, ``/etc/claimlet/config.toml``, ``defaults.toml``.  Each layer is checked on its own,
so that an error names the place to mend, and the origin of each value is kept.  Imports nothing of
ours, creates nothing on disk, and does not ask whether a path exists.
"""

from __future__ import annotations

import difflib
import os
import re
import socket
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

__all__ = [
    "DEFAULTS_FILE",
    "SYSTEM_FILE",
    "DriverSettings",
    "GatewaySettings",
    "Host",
    "LoadedSettings",
    "LogSettings",
    "ManifestSettings",
    "PrepareSettings",
    "RetentionSettings",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "load_settings",
    "setting_types",
]

DEFAULTS_FILE = Path(__file__).with_name("defaults.toml")
SYSTEM_FILE = Path("/etc/claimlet/config.toml")
_PREFIX = "CLAIMLET_"
_FILE_BYTES_MAX = 1024 * 1024
_DNS_SUBDOMAIN = (
    r"^(?=.{1,253}$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$"
)

_Seconds = Annotated[float, Meta(gt=0, le=86_400)]
_DnsLabel = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
_Port = Annotated[int, Meta(ge=0, le=65_535)]
_Unused = Literal["skip", "prepare"]


class SettingsError(Exception):
    """A setting that cannot be used: one line that names its place, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all sections; defaults stand in `defaults.toml` alone."""


class LogSettings(_Section, frozen=True):
    """The log and its server."""

    url: str
    keys_dir: Path | None
    nats_server: Path | None
    max_file_store_bytes: Annotated[int, Meta(ge=16 * 1024 * 1024)]
    ballast_bytes: Annotated[int, Meta(ge=0)]
    append_timeout_seconds: _Seconds
    snapshot_every_facts: Annotated[int, Meta(ge=1)]
    namespace_readers: dict[_DnsLabel, _DnsLabel]


class PrepareSettings(_Section, frozen=True):
    """When and how drivers are called."""

    reprepare_on: Literal["boot", "start"]
    unused_claims: _Unused
    overlap: Literal["wait", "record"]
    skip_node_operations: bool
    call_timeout_seconds: _Seconds
    retry_first_seconds: _Seconds
    retry_max_seconds: _Seconds
    unused_claims_per_driver: dict[str, _Unused]


class RetentionSettings(_Section, frozen=True):
    """How long what has ended stays in sight."""

    unprepared_seconds: Annotated[float, Meta(ge=0)]


class ManifestSettings(_Section, frozen=True):
    """The watched directory of manifests."""

    directory: Path | None
    scan_seconds: _Seconds


class DriverSettings(_Section, frozen=True):
    """Where drivers are found."""

    rescan_seconds: _Seconds
    cdi_dirs: tuple[str, ...]
    endpoint_map: dict[str, str]


class GatewaySettings(_Section, frozen=True):
    """The claims gateway for drivers that read claims from an API server."""

    enabled: bool
    port: _Port


class ServiceSettings(_Section, frozen=True):
    """The process itself."""

    log_format: Literal["auto", "text", "json"]
    log_level: Literal["debug", "info", "warning", "error"]


class Settings(_Section, frozen=True):
    """All settings, complete and checked; `node`, `state_dir` and `root` are never empty."""

    node: str
    state_dir: Path
    root: Path
    boot_id_file: Path
    log: LogSettings
    prepare: PrepareSettings
    retention: RetentionSettings
    manifest: ManifestSettings
    drivers: DriverSettings
    gateway: GatewaySettings
    service: ServiceSettings


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the defaults ask of the machine."""

    name: str
    is_root: bool
    home: Path

    @classmethod
    def here(cls) -> Host:
        """Return the machine that this process runs on."""
        return cls(name=socket.gethostname(), is_root=os.geteuid() == 0, home=Path.home())


class LoadedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings, and where each value came from, by dotted name in the order of the file."""

    settings: Settings
    origins: dict[str, str]

    def values(self) -> dict[str, Any]:
        """Return each value by its dotted name, as plain data."""
        return {name: _plain(_get(self.settings, name)) for name in self.origins}


def load_settings(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    system_file: Path = SYSTEM_FILE,
    host: Host | None = None,
) -> LoadedSettings:
    """
    Return the settings from all layers; *flags* are given by dotted name.

    Raises:
        SettingsError: A file cannot be read, or a value cannot be used.
    """
    environ = os.environ if environ is None else environ
    host = host or Host.here()
    defaults = tomllib.loads(DEFAULTS_FILE.read_text("utf-8"))
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def lay(origin: str, layer: Iterator[tuple[str, Any]]) -> None:
        for name, value in layer:
            values[name] = value
            origins[name] = origin

    lay("default", _checked("defaults.toml", defaults))
    if system_file.exists():
        lay(str(system_file), _checked(str(system_file), _read(system_file)))
    if file is not None:
        lay(str(file), _checked(str(file), _read(file)))
    for variable, name, value in _environment(environ):
        lay(f"${variable}", iter([(name, value)]))
    for name, flag in (flags or {}).items():
        option = "--" + name.rpartition(".")[2].replace("_", "-")
        lay(option, iter([(name, _convert(option, name, flag, strict=False))]))
    _fill(values, environ=environ, host=host)
    settings = _build(Settings, values)
    _check_whole(settings, origins)
    return LoadedSettings(settings=settings, origins=origins)


@cache
def setting_types() -> Mapping[str, Any]:
    """Return the type of each setting by its dotted name; a table of names counts as one."""
    return MappingProxyType(dict(_types(Settings, "")))


def _types(section: type[_Section], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, kind in get_type_hints(section, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, _Section):
            yield from _types(kind, f"{prefix}{name}.")
        else:
            yield prefix + name, kind


def _checked(origin: str, layer: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted name, value) of a file's settings."""
    known = setting_types()
    for key, value in layer.items():
        name = prefix + key
        if name in known:
            yield name, _convert(origin, name, value, strict=True)
        elif not any(other.startswith(name + ".") for other in known):
            raise _unknown(origin, name)
        elif not isinstance(value, dict):
            raise SettingsError(f"{origin}: {name} is a section, not a value")
        else:
            yield from _checked(origin, value, name + ".")


def _environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str, Any]]:
    """
    Yield (variable, dotted name, value) of the settings in the environment.

    A variable with two underscores in a row can only be meant for a setting; others, such as the
    ones that Kubernetes sets for a service named claimlet, are left alone.
    """
    names = {_PREFIX + name.upper().replace(".", "__"): name for name in setting_types()}
    for variable, text in environ.items():
        if variable in names:
            name = names[variable]
            yield variable, name, _convert(f"${variable}", name, text, strict=False)
        elif variable.startswith(_PREFIX) and "__" in variable:
            name = variable.removeprefix(_PREFIX).lower().replace("__", ".")
            raise _unknown(f"${variable}", name)


def _unknown(origin: str, name: str) -> SettingsError:
    near = difflib.get_close_matches(name, setting_types(), n=1)
    hint = f"did you mean {near[0]}?" if near else "`claimlet config show` lists all settings"
    return SettingsError(f"{origin}: unknown setting {name}", hint=hint)


def _convert(origin: str, name: str, value: object, *, strict: bool) -> Any:
    """Return *value* as the type of the setting *name*; text is read as far as it can be meant."""
    kind = setting_types()[name]
    if kind in (Path, Path | None):
        return _path(origin, name, value)
    try:
        if not strict and isinstance(value, str) and get_origin(kind) in (dict, tuple):
            value = msgspec.json.decode(value)
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.MsgspecError as error:
        choices = ", ".join(get_args(kind)) if get_origin(kind) is Literal else ""
        hint = f"{name} is one of: {choices}" if choices else ""
        raise SettingsError(f"{origin}: {name}: {_tell(error)}", hint=hint) from None


def _path(origin: str, name: str, value: object) -> Path | None:
    if not isinstance(value, str | Path):
        raise SettingsError(f"{origin}: {name}: expected a path, got {type(value).__name__}")
    if "\0" in str(value):
        raise SettingsError(f"{origin}: {name}: a path cannot hold a null byte")
    try:
        return Path(value).expanduser().absolute() if str(value) else None
    except RuntimeError:
        raise SettingsError(f"{origin}: {name}: {value} names a user that is not here") from None


def _tell(error: msgspec.MsgspecError) -> str:
    text, _, place = str(error).replace("`", "").partition(" - at $")
    return text[:1].lower() + text[1:] + (f" (at {place.strip('.')})" if place else "")


def _fill(values: dict[str, Any], *, environ: Mapping[str, str], host: Host) -> None:
    """Put in what the defaults leave to the machine."""
    if values["node"] == "":
        values["node"] = host.name.lower()
    if values["state_dir"] is None:
        home = environ.get("XDG_STATE_HOME") or host.home / ".local" / "state"
        values["state_dir"] = Path("/var/lib" if host.is_root else home) / "claimlet"
    if values["root"] is None:
        values["root"] = values["state_dir"] / "root"


def _build(section: type[_Section], values: Mapping[str, Any], prefix: str = "") -> Any:
    fields: dict[str, Any] = {}
    for name, kind in get_type_hints(section).items():
        if isinstance(kind, type) and issubclass(kind, _Section):
            fields[name] = _build(kind, values, f"{prefix}{name}.")
        else:
            fields[name] = values[prefix + name]
    return section(**fields)


def _check_whole(settings: Settings, origins: Mapping[str, str]) -> None:
    """Raise where values that are good one by one cannot be used together."""
    if not re.match(_DNS_SUBDOMAIN, settings.node):
        raise SettingsError(
            f"{origins['node']}: {settings.node!r} is no node name: it must be a DNS subdomain",
            hint="name the node with --node or CLAIMLET_NODE",
        )
    prepare = settings.prepare
    if prepare.retry_first_seconds > prepare.retry_max_seconds:
        raise SettingsError(
            f"{origins['prepare.retry_first_seconds']}: prepare.retry_first_seconds"
            f" ({prepare.retry_first_seconds:g}) is above"
            f" prepare.retry_max_seconds ({prepare.retry_max_seconds:g})"
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_BYTES_MAX + 1)
        if len(data) > _FILE_BYTES_MAX:
            raise SettingsError(f"{path}: larger than 1 MiB, which no settings are")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{path}: not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not TOML: {str(error).lower()}") from None


def _get(settings: Settings, name: str) -> Any:
    value: Any = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _plain(value: object) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return "" if value is None else str(value) if isinstance(value, Path) else value
