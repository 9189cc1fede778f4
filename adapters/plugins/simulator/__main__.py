"""Run a simulated driver: ``python -m claimlet.adapters.plugins.simulator --help``."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import msgspec

from ..wire import APIS
from .driver import SimulatedDriver
from .options import DriverOptions

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m claimlet.adapters.plugins.simulator",
        description="A DRA driver without hardware that does what a script tells it.",
    )
    add = parser.add_argument
    add("--root", type=Path, required=True, help="where plugins_registry/ and plugins/ lie")
    add("--driver", required=True, help="name of the driver")
    add("--script", metavar="FILE", help="what to do wrong; read again when it changes; - is stdin")
    add("--ledger", type=Path, metavar="FILE", help="note each call here, one JSON line each")
    add("--cdi-dir", type=Path, metavar="DIR", help="where CDI files go (ROOT/cdi)")
    add("--versions", default=",".join(APIS), help="services to announce, by comma (%(default)s)")
    add("--instance", default="", metavar="SUFFIX", help="one of several instances of the driver")
    add("--kubeconfig", type=Path, metavar="FILE", help="read claims from this API server")
    add("--in-memory", action="store_true", help="keep no checkpoint and write no CDI files")
    add("--one-socket", action="store_true", help="serve claims on the registration socket")
    add("--advertise", default="", metavar="PATH", help="announce this endpoint instead")
    add("--service-delay", type=float, default=0.0, metavar="SECONDS", help="serve claims later")
    add("--type", default="DRAPlugin", help="type of the plugin (%(default)s)")
    return parser


def main() -> int:
    """Serve until SIGTERM or SIGINT and return the exit code."""
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        script = None if arguments.script is None else Path(arguments.script)
        if arguments.script == "-":
            script = Path(folder) / "script.json"
            script.write_bytes(sys.stdin.buffer.read())
        options = DriverOptions(
            root=arguments.root.absolute(),
            driver=arguments.driver,
            script=script,
            ledger=arguments.ledger,
            cdi_dir=arguments.cdi_dir,
            versions=tuple(filter(None, arguments.versions.split(","))),
            instance=arguments.instance,
            kubeconfig=arguments.kubeconfig,
            in_memory=arguments.in_memory,
            one_socket=arguments.one_socket,
            advertise=arguments.advertise,
            service_delay_seconds=arguments.service_delay,
            plugin_type=arguments.type,
        )
        try:
            asyncio.run(_serve(options))
        except (OSError, ValueError, RuntimeError, msgspec.MsgspecError) as error:
            print(f"error: {error}", file=sys.stderr)  # noqa: T201 -- a command's error line
            return 2
    return 0


async def _serve(options: DriverOptions) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with SimulatedDriver(options):
        await stopped.wait()


if __name__ == "__main__":
    sys.exit(main())
