"""How a simulated driver is set up, and where its sockets lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..wire import APIS

__all__ = ["DriverOptions"]


class DriverOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a driver is set up; its directories default to the kubelet's layout below `root`."""

    root: Path
    driver: str
    script: Path | None = None
    ledger: Path | None = None
    cdi_dir: Path | None = None
    #: The services to announce and to serve, in this order.
    versions: tuple[str, ...] = tuple(APIS)
    #: Tells the sockets of several instances apart, as a pod's UID does during a rolling update.
    instance: str = ""
    kubeconfig: Path | None = None
    #: No checkpoint and no CDI files: nothing but the answer.
    in_memory: bool = False
    #: Serve claims on the registration socket and announce no endpoint.
    one_socket: bool = False
    #: The endpoint to announce, where it is another one than here, as from inside of a container.
    advertise: str = ""
    #: How long after the registration socket the other one opens.
    service_delay_seconds: float = 0.0
    plugin_type: str = "DRAPlugin"
    #: More options of the gRPC server that serves claims.
    server_options: tuple[tuple[str, Any], ...] = ()

    @property
    def suffix(self) -> str:
        """Return what the instance adds to the names of its sockets."""
        return f"-{self.instance}" if self.instance else ""

    @property
    def data_dir(self) -> Path:
        """Return the directory of the driver's own files."""
        return self.root / "plugins" / self.driver

    @property
    def registration_socket(self) -> Path:
        """Return where the driver registers."""
        return self.root / "plugins_registry" / f"{self.driver}{self.suffix}-reg.sock"

    @property
    def service_socket(self) -> Path:
        """Return where the driver serves claims."""
        if self.one_socket:
            return self.registration_socket
        return self.data_dir / f"dra{self.suffix}.sock"
