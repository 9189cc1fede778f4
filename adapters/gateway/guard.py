"""
The door of the gateway: who may pass, before anything else is looked at.

Loopback is no boundary by itself: other users and pods on the host's network reach it, and a page
in a browser may be lured there under another name.  So the Host must be a loopback name and every
request needs a driver's token.
"""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from .credentials import Credentials
from .status import ApiError

__all__ = ["Guard", "refusal"]

_HOSTS = frozenset({"127.0.0.1", "localhost", "[::1]"})


def refusal(error: ApiError) -> Response:
    """Return the answer that says *error*."""
    return Response(
        error.body(),
        status_code=error.code,
        headers=error.headers,
        media_type="application/json",
    )


class Guard:
    """Let requests with a driver's token through, and note the driver in the scope's state."""

    def __init__(self, app: ASGIApp, credentials: Credentials) -> None:
        self._app = app
        self._credentials = credentials

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            return
        try:
            driver = self._driver(scope)
        except ApiError as error:
            await refusal(error)(scope, receive, send)
            return
        scope["state"] = {**scope.get("state", {}), "driver": driver}
        await self._app(scope, receive, send)

    def _driver(self, scope: Scope) -> str:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        if len(hosts) != 1 or _host_name(hosts[0]) not in _HOSTS:
            raise ApiError(
                403,
                "the Host header must be a loopback name",
                headers={"Connection": "close"},
            )
        tokens = [value.decode("latin-1") for name, value in headers if name == b"authorization"]
        scheme, _, token = tokens[0].partition(" ") if len(tokens) == 1 else ("", "", "")
        driver = self._credentials.driver_of(token.strip()) if scheme.lower() == "bearer" else None
        if driver is None:
            raise ApiError(
                401,
                "this needs the bearer token of a driver, from its kubeconfig",
                headers={"Connection": "close", "WWW-Authenticate": "Bearer"},
            )
        return driver


def _host_name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name.lower() if colon and port.isdigit() else host.lower()
