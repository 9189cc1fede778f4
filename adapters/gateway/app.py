"""
What a DRA driver on upstream's helper uses of the Kubernetes API, and a clear no to the rest.

Read: its claims, its node, the version, its ResourceSlices.  Written: its ResourceSlices.  A claim
that does not name the driver is answered like one that does not exist.
"""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from .claims import ClaimsView, claim_body
from .credentials import Credentials
from .guard import Guard, refusal
from .slice_routes import slice_routes
from .slices import SliceStore
from .status import ApiError

__all__ = ["build_app"]

_RESOURCE = "/apis/resource.k8s.io/v1"
_CLAIMS = f"{_RESOURCE}/namespaces/{{namespace}}/resourceclaims"
_EVENTS = "namespaces/{namespace}/events"
_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]

#: What drivers try beside what they need; no driver stops working without it.
_REFUSED: dict[str, list[str]] = {
    f"{_CLAIMS}/{{name}}": ["PUT", "PATCH", "DELETE"],
    f"{_CLAIMS}/{{name}}/{{part}}": _METHODS,
    _CLAIMS: _METHODS,
    f"{_RESOURCE}/resourceclaims": _METHODS,
    f"/api/v1/{_EVENTS}": _METHODS,
    f"/apis/events.k8s.io/v1/{_EVENTS}": _METHODS,
}

#: The API that is spoken here is that of this Kubernetes version.
_VERSION = {
    "major": "1",
    "minor": "35",
    "gitVersion": "v1.35.0+claimlet",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "",
    "goVersion": "",
    "compiler": "",
    "platform": "linux",
}

#: Makes the node's UID from its name, the same at each start.
_NODE_NAMESPACE = uuid.UUID("6f1b8c5f-6d0c-5c1c-9a55-0d8f3a526f0e")


def build_app(view: ClaimsView, store: SliceStore, credentials: Credentials) -> ASGIApp:
    """Return the whole application behind its guard."""
    objects = _Objects(view, node=store.node)
    app = Starlette(
        routes=[
            Route("/version", _version),
            Route("/api/v1/nodes/{name}", objects.node),
            Route(f"{_CLAIMS}/{{name}}", objects.claim),
            *slice_routes(store, prefix=_RESOURCE),
            *(Route(path, _refuse, methods=methods) for path, methods in _REFUSED.items()),
        ],
        exception_handlers={ApiError: _on_api_error, HTTPException: _on_http_error},
    )
    # A path with a slash too many is as unknown as any other.
    app.router.redirect_slashes = False
    return Guard(app, credentials)


class _Objects:
    """What is read besides slices."""

    def __init__(self, view: ClaimsView, *, node: str) -> None:
        self._view = view
        self._node = node

    async def claim(self, request: Request) -> Response:
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        driver: str = request.state.driver
        claim = self._view.claim(namespace, name)
        if claim is None or not claim.names_driver(driver):
            shown = f"{namespace[:63]}/{name[:253]}"
            raise ApiError(404, f"no claim {shown} is allocated from {driver} on this node")
        return Response(claim_body(claim, driver=driver), media_type="application/json")

    async def node(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        if name != self._node:
            raise ApiError(404, f"only node {self._node} is known here")
        metadata = {"name": name, "uid": str(uuid.uuid5(_NODE_NAMESPACE, name))}
        return _json({"kind": "Node", "apiVersion": "v1", "metadata": metadata})


async def _version(_: Request) -> Response:
    return _json(_VERSION)


async def _refuse(request: Request) -> Response:
    raise ApiError(
        403,
        "claimlet's gateway serves single claims to be read and a driver's own ResourceSlices;"
        f" {request.method} of this is for a cluster's API server",
    )


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


async def _on_api_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return refusal(error)


async def _on_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = "the server could not find the requested resource" if error.status_code == 404 else ""
    headers = dict(error.headers or {})
    return refusal(ApiError(error.status_code, text or error.detail, headers=headers))
