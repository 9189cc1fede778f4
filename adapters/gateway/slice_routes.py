"""
The routes of ResourceSlices.

Here bodies are read within their bounds, encodings agreed on and watches streamed; what is stored
and who may store it is decided by the shelf of the asking driver.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from .objects import (
    InvalidObjectError,
    Media,
    Slice,
    read_preconditions,
    read_slice,
    slice_body,
    slice_list,
)
from .slices import Selector, Shelf, SliceStore, WatchStart
from .status import ApiError

__all__ = ["slice_routes"]

_WATCH_SECONDS_DEFAULT = 1800.0

_FIELDS = {
    "metadata.name": "name",
    "spec.driver": "driver",
    "spec.nodeName": "node",
    "spec.pool.name": "pool",
}


def slice_routes(store: SliceStore, *, prefix: str) -> list[Route]:
    """Return the routes of ResourceSlices under *prefix*."""
    handlers = _Handlers(store)
    path = f"{prefix}/resourceslices"
    return [
        Route(path, handlers.collection, methods=["GET", "POST"]),
        Route(f"{path}/{{name}}", handlers.item, methods=["GET", "PUT", "DELETE"]),
    ]


class _Handlers:
    """One handler per path; what is asked for is done on the shelf of the asking driver."""

    def __init__(self, store: SliceStore) -> None:
        self._store = store

    async def collection(self, request: Request) -> Response:
        if request.method == "POST":
            return await self._create(request)
        if request.query_params.get("watch") in {"true", "1"}:
            return self._watch(request)
        return self._list(request)

    async def item(self, request: Request) -> Response:
        shelf, name = self._shelf(request), request.path_params["name"]
        if request.method == "PUT":
            return _answer(shelf.replace(name, await self._slice(request)))
        if request.method == "DELETE":
            return _answer(await self._delete(request, shelf))
        item = shelf.get(name)
        _choose(request, item.media)
        return _answer(item)

    async def _create(self, request: Request) -> Response:
        item = await self._slice(request)
        return _answer(self._shelf(request).create(item), code=201)

    async def _delete(self, request: Request, shelf: Shelf) -> Slice:
        media, body = _body_media(request), await self._body(request)
        try:
            wanted = read_preconditions(body, media)
        except InvalidObjectError as error:
            raise ApiError(400, str(error)) from error
        return shelf.delete(request.path_params["name"], wanted)

    def _list(self, request: Request) -> Response:
        shelf, selector = self._shelf(request), _selector(request.query_params)
        media = _choose(request, shelf.media)
        body = slice_list(shelf.list(selector), media, resource_version=self._store.version)
        return Response(body, media_type=media.value)

    def _watch(self, request: Request) -> Response:
        shelf, query = self._shelf(request), request.query_params
        media = _choose(request, shelf.media)
        frames = shelf.watch(
            _start(query),
            media=media,
            selector=_selector(query),
            seconds=_number(query, "timeoutSeconds") or _WATCH_SECONDS_DEFAULT,
        )
        stream = ";stream=watch" if media is Media.PROTOBUF else ""
        return StreamingResponse(frames, media_type=media.value + stream)

    def _shelf(self, request: Request) -> Shelf:
        driver: str = request.state.driver
        return self._store.shelf(driver)

    async def _slice(self, request: Request) -> Slice:
        media = _body_media(request)
        try:
            return read_slice(await self._body(request), media)
        except InvalidObjectError as error:
            raise ApiError(400, str(error)) from error

    async def _body(self, request: Request) -> bytes:
        if request.query_params.get("dryRun"):
            raise ApiError(400, "dryRun is not supported")
        body, limit = bytearray(), self._store.limits.body_bytes
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    text = f"the body is larger than {limit} bytes"
                    raise ApiError(413, text, headers={"Connection": "close"})
        except ClientDisconnect as error:
            raise ApiError(400, "the client went away") from error
        return bytes(body)


def _answer(item: Slice, *, code: int = 200) -> Response:
    return Response(slice_body(item), status_code=code, media_type=item.media.value)


def _body_media(request: Request) -> Media:
    """Return the encoding of the body; no word about it means JSON, as an API server takes it."""
    name = request.headers.get("content-type", Media.JSON.value).partition(";")[0].strip().lower()
    try:
        return Media(name)
    except ValueError:
        raise ApiError(415, "the body must be JSON or Kubernetes protobuf") from None


def _choose(request: Request, kept: Media | None) -> Media:
    """Return the encoding of the answer: that of what is kept, else the first acceptable one."""
    wanted = request.headers.get("accept", "*/*").lower().split(",")
    plain = [word.partition(";")[0].strip() for word in wanted if "as=" not in word]
    anything = "*/*" in plain or "application/*" in plain
    acceptable = [media for name in plain for media in Media if media.value == name]
    if kept is not None and (anything or kept in acceptable):
        return kept
    if kept is None and (acceptable or anything):
        return acceptable[0] if acceptable else Media.JSON
    offer = kept.value if kept else "application/json"
    raise ApiError(406, f"this is to be had as {offer} only")


def _selector(query: Mapping[str, str]) -> Selector:
    """Return what `fieldSelector` asks for."""
    wanted: dict[str, str] = {}
    if query.get("labelSelector"):
        raise ApiError(400, "labelSelector is not supported")
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        field, equals, value = term.partition("=")
        if not equals or field.endswith("!") or field not in _FIELDS:
            raise ApiError(400, f"fieldSelector may compare {', '.join(_FIELDS)} with =")
        wanted[_FIELDS[field]] = value.removeprefix("=")
    return lambda item: all(getattr(item, name) == value for name, value in wanted.items())


def _start(query: Mapping[str, str]) -> WatchStart:
    """Return where a watch begins; version 0 is "whatever you have", as for an API server."""
    if query.get("sendInitialEvents") in {"true", "1"}:
        return WatchStart(mark_end=True)
    return WatchStart(version=_number(query, "resourceVersion") or None)


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name) or "0"
    if not text.isdecimal() or not text.isascii() or len(text) > 18:
        raise ApiError(400, f"{name} must be a number")
    return int(text)
