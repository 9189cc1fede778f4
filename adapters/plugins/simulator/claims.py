"""
Reads allocations from an API server, as drivers on upstream's helper do for each prepare.

The wire of the driver API carries names only.  Errors are worded like the helper's, and like there
one claim that cannot be read fails the whole call.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

import msgspec
import yaml

from ....events.values import ClaimRef, PreparedDevice

__all__ = ["ClaimReadError", "ClaimReader"]

_TIMEOUT_SECONDS = 10.0


class ClaimReadError(Exception):
    """A claim that cannot be prepared, because it cannot be read as one that is allocated."""


class ClaimReader:
    """
    The API server that the kubeconfig at *path* names, with its authority and a bearer token.

    Raises:
        ValueError: The file names no server that can be trusted, or no token.
    """

    def __init__(self, path: Path) -> None:
        config = yaml.safe_load(path.read_text())
        try:
            cluster = config["clusters"][0]["cluster"]
            self._server = str(cluster["server"]).rstrip("/")
            self._token = str(config["users"][0]["user"]["token"])
            authority = base64.b64decode(cluster["certificate-authority-data"]).decode("ascii")
            self._tls = ssl.create_default_context(cadata=authority)
        except (KeyError, IndexError, TypeError, ValueError, ssl.SSLError):
            raise ValueError(f"{path} names no server, no authority or no token") from None
        if not self._server.startswith("https://"):
            raise ValueError(f"{path}: a token is sent over https only")

    async def devices(self, claim: ClaimRef, *, driver: str) -> tuple[PreparedDevice, ...]:
        """
        Return the devices of *driver* that were allocated for *claim*.

        Raises:
            ClaimReadError: The claim is not there, was replaced, or is not allocated.
        """
        found = await asyncio.to_thread(self._get, claim)
        if found.get("metadata", {}).get("uid") != claim.uid:
            raise ClaimReadError(f"claim {claim} got replaced")
        allocation = found.get("status", {}).get("allocation")
        if not allocation:
            raise ClaimReadError(f"claim {claim} not allocated")
        results = allocation.get("devices", {}).get("results", [])
        return tuple(
            PreparedDevice(
                pool=result["pool"],
                device=result["device"],
                requests=(result["request"],),
                share_id=result.get("shareID"),
            )
            for result in results
            if result.get("driver") == driver
        )

    def _get(self, claim: ClaimRef) -> dict[str, Any]:
        path = f"/apis/resource.k8s.io/v1/namespaces/{quote(claim.namespace, safe='')}"
        url = f"{self._server}{path}/resourceclaims/{quote(claim.name, safe='')}"
        headers = {"Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        request = Request(url, headers=headers)  # noqa: S310 -- the scheme was checked
        try:
            with urlopen(  # noqa: S310
                request, timeout=_TIMEOUT_SECONDS, context=self._tls
            ) as response:
                return msgspec.json.decode(response.read(), type=dict[str, Any])
        except HTTPError as error:
            with error:
                raise ClaimReadError(f"retrieve claim {claim}: HTTP {error.code}") from None
        except (URLError, OSError, msgspec.MsgspecError) as error:
            raise ClaimReadError(f"retrieve claim {claim}: {error}") from None
