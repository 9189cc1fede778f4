"""
What drivers need to reach the gateway, kept under `<state>/gateway` for no eyes but the owner's.

`key` is a random secret, and all else follows from it: a driver's token is its name and a MAC over
it, so that a token tells who asks; the server's TLS key is derived too.  `port` is chosen once,
outside of the range that the kernel gives to outgoing connections, and then kept, because running
drivers have read their kubeconfig long ago.  A port that somebody else holds is therefore an error,
not a reason to move.
"""

from __future__ import annotations

import base64
import hmac
import re
import secrets
import socket
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ...events.errors import ClaimletError, PermanentError
from ...events.server.files import make_private_directory, replace_file, usable
from .certificate import certificate, private_key

__all__ = ["Credentials", "GatewayError", "InvalidDriverNameError"]

_KEY_BYTES = 32
_PORTS = range(20000, 30000)
_PORT_TRIES = 100
_LABEL = r"[a-z0-9](?:[a-z0-9-]*[a-z0-9])?"
_DRIVER_NAME = re.compile(rf"(?=.{{1,63}}\Z){_LABEL}(?:\.{_LABEL})*", re.ASCII)

_KUBECONFIG = """\
# Written by claimlet for the driver {driver}; rewritten when the gateway starts.
apiVersion: v1
kind: Config
clusters:
- name: claimlet
  cluster:
    server: {url}
    certificate-authority-data: {authority}
users:
- name: "{driver}"
  user:
    token: "{token}"
contexts:
- name: claimlet
  context:
    cluster: claimlet
    user: "{driver}"
current-context: claimlet
"""


class GatewayError(ClaimletError):
    """The gateway cannot start with what lies in its directory."""


class InvalidDriverNameError(PermanentError):
    """A name that no DRA driver can have."""

    exit_code = 2


class Credentials:
    """The key, the port and the kubeconfigs in one directory."""

    def __init__(self, state_dir: Path, *, port: int = 0) -> None:
        """
        Read the key, or make one; a *port* that is given goes before the one that was kept.

        Raises:
            GatewayError: The key is not usable.
            LogSetupError: The directory is not.
        """
        self.directory = state_dir / "gateway"
        make_private_directory(state_dir)
        make_private_directory(self.directory)
        self._configured_port = port
        self._port_file = self.directory / "port"
        self._key = self._read_key()
        self._tls_seed = hmac.digest(self._key, b"TLS", sha256)
        self.certificate = certificate(self._tls_seed)

    def _read_key(self) -> bytes:
        path = self.directory / "key"
        if not path.exists():
            replace_file(path, secrets.token_bytes(_KEY_BYTES))
        with usable(path):
            key, mode = path.read_bytes(), path.stat().st_mode
        if len(key) != _KEY_BYTES:
            hint = "delete it, start again, and restart the drivers: they get new tokens"
            raise GatewayError(f"{path} is no gateway key", hint=hint)
        if mode & 0o077:
            hint = f"chmod 600 {path}; if others may have read it, delete it instead"
            raise GatewayError(f"{path} can be read by others", hint=hint)
        return key

    def token(self, driver: str) -> str:
        """
        Return the bearer token of *driver*.

        Raises:
            InvalidDriverNameError: No driver can be called that.
        """
        if not _DRIVER_NAME.fullmatch(driver):
            shown = repr(driver if len(driver) <= 80 else driver[:80] + "…")
            raise InvalidDriverNameError(f"{shown} is no driver name: it must be a DNS subdomain")
        return f"{driver}.{self._mac(driver)}"

    def driver_of(self, token: str) -> str | None:
        """Return the driver that *token* belongs to; None where it is no token of this node."""
        driver, dot, mac = token.rpartition(".")
        if not dot or not _DRIVER_NAME.fullmatch(driver):
            return None
        expected = self._mac(driver)
        return driver if hmac.compare_digest(mac.encode(), expected.encode()) else None

    def _mac(self, driver: str) -> str:
        return hmac.new(self._key, b"token " + driver.encode(), sha256).hexdigest()

    def tls_file(self) -> Path:
        """Write certificate and key for the server, and return the file."""
        path = self.directory / "tls.pem"
        replace_file(path, (self.certificate + private_key(self._tls_seed)).encode())
        return path

    def listen(self) -> socket.socket:
        """
        Return a socket that listens on the gateway's port; the first call chooses and notes it.

        Raises:
            GatewayError: The port is taken, or cannot be noted.
        """
        if self.port is not None:
            return self._bind(self.port)
        sock = _bind_first_free()
        try:
            replace_file(self._port_file, f"{sock.getsockname()[1]}\n".encode())
        except ClaimletError:
            sock.close()
            raise
        return sock

    def _bind(self, port: int) -> socket.socket:
        try:
            return _bind(port)
        except OSError as error:
            other = "set another one" if self._configured_port else f"delete {self._port_file}"
            hint = (
                f"end what listens there, or {other} and restart the drivers,"
                " since they read their kubeconfig when they start"
            )
            text = f"the gateway's port {port} on 127.0.0.1 is not to be had: {error.strerror}"
            raise GatewayError(text, hint=hint) from error

    @property
    def port(self) -> int | None:
        """Return the port that was given or chosen, or None."""
        if self._configured_port:
            return self._configured_port
        path = self._port_file
        try:
            text = path.read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise GatewayError(f"{path} cannot be read: {error}") from error
        if not text.isdigit() or not 0 < int(text) < 65536:
            raise GatewayError(f"{path} holds no port", hint="delete it for a new port")
        return int(text)

    def kubeconfig_for(self, driver: str) -> Path:
        """
        Write the kubeconfig of *driver*, if it is not there as it should be, and return its path.

        Raises:
            InvalidDriverNameError: No driver can be called that.
            LogSetupError: The file cannot be written.
        """
        token = self.token(driver)
        port = self.port
        if port is None:
            # A driver may be set up before the service has ever run.
            with self.listen() as sock:
                port = sock.getsockname()[1]
        text = _KUBECONFIG.format(
            driver=driver,
            url=f"https://127.0.0.1:{port}",
            authority=base64.b64encode(self.certificate.encode()).decode("ascii"),
            token=token,
        ).encode()
        path = self.directory / f"{driver}.kubeconfig"
        with suppress(OSError):
            if path.read_bytes() == text:
                return path
        replace_file(path, text)
        return path

    def refresh(self) -> None:
        """Rewrite the kubeconfigs that are there, as a new port or key needs it."""
        for path in self.directory.glob("*.kubeconfig"):
            if _DRIVER_NAME.fullmatch(path.stem):
                self.kubeconfig_for(path.stem)


def _bind(port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
        sock.listen(128)
    except OSError:
        sock.close()
        raise
    sock.settimeout(0)
    return sock


def _bind_first_free() -> socket.socket:
    for _ in range(_PORT_TRIES):
        with suppress(OSError):
            return _bind(secrets.choice(_PORTS))
    raise GatewayError(f"no free port from {_PORTS.start} to {_PORTS.stop - 1} on 127.0.0.1")
