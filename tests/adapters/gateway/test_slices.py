"""ResourceSlices in both encodings, as drivers publish them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.adapters.gateway.client import (
    GPU,
    NIC,
    NODE,
    PROTOBUF,
    SLICES,
    Answer,
    Claims,
    Client,
    Connection,
)

from claimlet.adapters.gateway import Limits
from claimlet.adapters.gateway.server import ClaimsGateway
from claimlet.adapters.gateway.wire import message, open_envelope, parse, seal
from claimlet.adapters.world import RealWorld

JSON = "application/json"
BOTH = pytest.mark.parametrize("media", [JSON, PROTOBUF])

Clients = Callable[[str], Client]


def body(media: str, *, driver: str = GPU, node: str = NODE, **fields: str) -> bytes:
    """Return a ResourceSlice with a field that the gateway's schema does not know."""
    metadata = {k: v for k, v in fields.items() if k != "pool"}
    pool = fields.get("pool", "p")
    if media == JSON:
        spec = {"driver": driver, "nodeName": node, "pool": {"name": pool}, "devices": ["dev"]}
        return msgspec.json.encode({"kind": "ResourceSlice", "metadata": metadata, "spec": spec})
    item = message("ResourceSlice")
    for name, value in metadata.items():
        setattr(item.metadata, name, value)
    item.spec.driver, item.spec.nodeName, item.spec.pool.name = driver, node, pool
    # Field 6 of the spec holds devices, whose field 1 is the name.
    item.spec.MergeFromString(b"\x32\x05\x0a\x03dev")
    return seal("ResourceSlice", item.SerializeToString(), api_version="resource.k8s.io/v1")


def read(answer: Answer) -> dict[str, Any]:
    """Return name, version, uid and whether the devices are still there."""
    if answer.headers["content-type"] == JSON:
        metadata = answer.json()["metadata"]
        return {**metadata, "devices": answer.json()["spec"]["devices"] == ["dev"]}
    assert answer.headers["content-type"] == PROTOBUF
    item = parse("ResourceSlice", open_envelope(answer.body)[1])
    found = {name: getattr(item.metadata, name) for name in ("name", "uid", "resourceVersion")}
    found["devices"] = b"\x0a\x03dev" in item.spec.SerializeToString()
    return found


def names(answer: Answer) -> list[str]:
    """Return the names in a list."""
    if answer.headers["content-type"] == JSON:
        return [item["metadata"]["name"] for item in answer.json()["items"]]
    kind, raw = open_envelope(answer.body)
    assert kind == "ResourceSliceList"
    items = parse("ResourceSliceList", raw).items
    return [parse("ResourceSlice", item).metadata.name for item in items]


def version(answer: Answer) -> str:
    """Return the version of a list."""
    if answer.headers["content-type"] == JSON:
        return str(answer.json()["metadata"]["resourceVersion"])
    listed = parse("ResourceSliceList", open_envelope(answer.body)[1])
    return str(listed.metadata.resourceVersion)


async def create(client: Client, media: str, name: str, **fields: str) -> Answer:
    return await client.ask("POST", SLICES, body=body(media, name=name, **fields), media=media)


class Frames:
    """The events of a watch, one by one."""

    def __init__(self, connection: Connection, media: str) -> None:
        self._connection, self._media, self._data = connection, media, b""

    async def next(self) -> tuple[str, str] | None:
        """Return kind and name of the next event; None at the end."""
        while (event := self._take()) is None:
            chunk = await self._connection.chunk()
            if chunk is None:
                return None
            self._data += chunk
        return event

    def _take(self) -> tuple[str, str] | None:
        if self._media == JSON:
            line, newline, rest = self._data.partition(b"\n")
            if not newline:
                return None
            self._data, event = rest, msgspec.json.decode(line)
            metadata = event["object"]["metadata"]
            if event["type"] == "BOOKMARK":
                assert metadata["annotations"] == {"k8s.io/initial-events-end": "true"}
            return event["type"], metadata.get("name", "")
        if len(self._data) < 4 or len(self._data) < 4 + struct.unpack(">I", self._data[:4])[0]:
            return None
        size = struct.unpack(">I", self._data[:4])[0]
        frame, self._data = self._data[4 : 4 + size], self._data[4 + size :]
        event = parse("WatchEvent", frame)
        kind, raw = open_envelope(event.object.raw)
        assert kind == "ResourceSlice"
        item = parse("ResourceSlice", raw)
        if event.type == "BOOKMARK":
            assert item.metadata.annotations[0].key == "k8s.io/initial-events-end"
        return event.type, item.metadata.name


class TestPublishing:
    @BOTH
    async def test_a_slice_comes_back_whole(self, client: Clients, media: str) -> None:
        """What the schema does not know passes through; name, UID and version are set."""
        created = await create(client(GPU), media, "s")
        got = await client(GPU).get(f"{SLICES}/s")

        assert created.code == 201
        assert read(created)["name"] == "s"
        assert read(created)["uid"]
        assert read(got) == read(created)
        assert read(got)["devices"]

    @BOTH
    async def test_a_name_is_generated(self, client: Clients, media: str) -> None:
        """The helper lets the server choose the name's end."""
        made = body(media, generateName="0-gpu-")
        answers = [await client(GPU).ask("POST", SLICES, body=made, media=media) for _ in range(2)]

        assert all(read(answer)["name"].startswith("0-gpu-") for answer in answers)
        assert len({read(answer)["name"] for answer in answers}) == 2

    @BOTH
    async def test_an_update_needs_the_current_version(self, client: Clients, media: str) -> None:
        """Whoever has read an older content must read again."""
        old = read(await create(client(GPU), media, "s"))["resourceVersion"]
        update = body(media, name="s", resourceVersion=old)
        first = await client(GPU).ask("PUT", f"{SLICES}/s", body=update, media=media)
        second = await client(GPU).ask("PUT", f"{SLICES}/s", body=update, media=media)

        assert int(read(first)["resourceVersion"]) > int(old)
        assert second.reason == "Conflict"

    @BOTH
    async def test_an_update_keeps_the_identity(self, client: Clients, media: str) -> None:
        """UID stays, and neither the pool nor the name can be changed."""
        created = read(await create(client(GPU), media, "s"))
        put = f"{SLICES}/s"
        same = await client(GPU).ask("PUT", put, body=body(media, name="s"), media=media)
        other_pool = body(media, name="s", pool="q")

        assert read(same)["uid"] == created["uid"]
        assert (await client(GPU).ask("PUT", put, body=other_pool, media=media)).code == 422
        assert (
            await client(GPU).ask("PUT", put, body=body(media, name="t"), media=media)
        ).code == 400

    @BOTH
    async def test_a_deletion_holds_its_preconditions(self, client: Clients, media: str) -> None:
        """The helper deletes what it has seen, not what has come since."""
        uid = read(await create(client(GPU), media, "s"))["uid"]
        wrong, right = (_options(media, uid=value) for value in ("other", uid))
        delete = f"{SLICES}/s"

        assert (
            await client(GPU).ask("DELETE", delete, body=wrong, media=media)
        ).reason == "Conflict"
        assert (await client(GPU).ask("DELETE", delete, body=right, media=media)).code == 200
        assert (await client(GPU).ask("DELETE", delete)).reason == "NotFound"

    async def test_a_second_of_the_same_name_is_refused(self, client: Clients) -> None:
        """Names are unique."""
        await create(client(GPU), JSON, "s")

        assert (await create(client(GPU), JSON, "s")).reason == "AlreadyExists"


def _options(media: str, *, uid: str) -> bytes:
    if media == JSON:
        return msgspec.json.encode({"preconditions": {"uid": uid}})
    options = message("DeleteOptions")
    options.preconditions.uid = uid
    return seal("DeleteOptions", options.SerializeToString(), api_version="v1")


class TestPermission:
    @BOTH
    async def test_only_for_this_driver_and_node(self, client: Clients, media: str) -> None:
        """A driver publishes nothing in another one's name, nor for another node."""
        for other in ({"driver": NIC}, {"node": "node-b"}, {"node": ""}):
            answer = await create(client(GPU), media, "s", **other)

            assert answer.reason == "Forbidden"

    async def test_others_slices_are_not_seen(self, client: Clients) -> None:
        """Each driver has a world of its own, so that names cannot clash either."""
        await create(client(GPU), JSON, "s")

        assert names(await client(NIC).get(SLICES)) == []
        assert (await client(NIC).get(f"{SLICES}/s")).reason == "NotFound"
        assert (await client(NIC).ask("DELETE", f"{SLICES}/s")).reason == "NotFound"


class TestLists:
    @BOTH
    async def test_are_in_the_encoding_of_their_slices(self, client: Clients, media: str) -> None:
        """A slice cannot be translated, so a client that reads only the other one is told."""
        await create(client(GPU), media, "s")
        other = PROTOBUF if media == JSON else JSON

        assert names(await client(GPU).get(SLICES)) == ["s"]
        for path in (SLICES, f"{SLICES}/s"):
            answer = await client(GPU).get(path, headers={"Accept": other})
            assert answer.reason == "NotAcceptable"

    async def test_select_by_field(self, client: Clients) -> None:
        """The helper selects by driver and node."""
        await create(client(GPU), PROTOBUF, "s")
        await create(client(GPU), PROTOBUF, "t", pool="q")
        ask = client(GPU).get
        mine = f"spec.driver={GPU},spec.nodeName={NODE}"

        assert names(await ask(f"{SLICES}?fieldSelector={mine}")) == ["s", "t"]
        assert names(await ask(f"{SLICES}?fieldSelector=spec.nodeName%3D")) == []
        assert names(await ask(f"{SLICES}?fieldSelector=spec.pool.name==q")) == ["t"]
        assert (await ask(f"{SLICES}?fieldSelector=spec.x=1")).reason == "BadRequest"
        assert (await ask(f"{SLICES}?labelSelector=a")).reason == "BadRequest"

    async def test_the_other_encoding_takes_over(self, client: Clients) -> None:
        """A driver that was upgraded to another encoding starts anew instead of getting stuck."""
        await create(client(GPU), JSON, "s")
        await create(client(GPU), JSON, "t")
        current = body(PROTOBUF, name="s")
        await client(GPU).ask("PUT", f"{SLICES}/s", body=current, media=PROTOBUF)
        answer = await client(GPU).get(SLICES)

        assert answer.headers["content-type"] == PROTOBUF
        assert names(answer) == ["s"]


class TestWatches:
    @BOTH
    async def test_what_is_there_then_what_happens(self, client: Clients, media: str) -> None:
        """The burst of what is there ends with a bookmark; changes follow in order."""
        await create(client(GPU), media, "s")
        async with client(GPU).watch("sendInitialEvents=true", accept=media) as connection:
            frames = Frames(connection, media)
            assert await frames.next() == ("ADDED", "s")
            assert (await frames.next() or ("",))[0] == "BOOKMARK"
            await create(client(GPU), media, "t")
            await client(GPU).ask("PUT", f"{SLICES}/s", body=body(media, name="s"), media=media)
            await client(GPU).ask("DELETE", f"{SLICES}/t")

            assert [await frames.next() for _ in range(3)] == [
                ("ADDED", "t"),
                ("MODIFIED", "s"),
                ("DELETED", "t"),
            ]

    @BOTH
    async def test_go_on_from_a_list(self, client: Clients, media: str) -> None:
        """What happened between list and watch is not missed."""
        await create(client(GPU), media, "s")
        listed = version(await client(GPU).get(SLICES))
        await create(client(GPU), media, "t")
        async with client(GPU).watch(f"resourceVersion={listed}", accept=media) as connection:
            assert await Frames(connection, media).next() == ("ADDED", "t")

    async def test_select_too(self, client: Clients) -> None:
        """A watch tells what it was asked for."""
        await create(client(GPU), JSON, "s")
        await create(client(GPU), JSON, "t")
        query = "fieldSelector=metadata.name%3Dt"
        async with client(GPU).watch(query, accept=JSON) as connection:
            assert await Frames(connection, JSON).next() == ("ADDED", "t")

    @pytest.mark.parametrize("old", ["1", "999999999999999999"])
    async def test_an_unknown_version_is_expired(self, client: Clients, old: str) -> None:
        """After a restart a driver must list again, since its slices are gone."""
        answer = await client(GPU).get(f"{SLICES}?watch=1&resourceVersion={old}")

        assert answer.reason == "Expired"

    async def test_end_with_their_time(self, client: Clients) -> None:
        """A client says how long it wants to watch."""
        query = "timeoutSeconds=1&resourceVersion=0"
        async with client(GPU).watch(query, accept=JSON) as connection:
            assert await Frames(connection, JSON).next() is None

    async def test_end_when_the_encoding_changes(self, client: Clients) -> None:
        """A watch cannot tell of what it cannot encode; the client lists again."""
        async with client(GPU).watch("", accept=JSON) as connection:
            await create(client(GPU), PROTOBUF, "s")

            assert await Frames(connection, JSON).next() is None


class TestLimits:
    LIMITS = Limits(
        body_bytes=2000,
        slices=3,
        slices_bytes=3000,
        history=2,
        history_bytes=10_000,
        watches=1,
    )

    @pytest.fixture
    async def small(self, tmp_path: Path) -> AsyncIterator[Client]:
        async with (
            RealWorld() as world,
            ClaimsGateway(
                Claims(), state_dir=tmp_path, node=NODE, world=world, limits=self.LIMITS
            ) as gateway,
        ):
            yield Client(gateway.kubeconfig_for(GPU))

    async def test_of_a_body(self, small: Client) -> None:
        """A body that is too large is not read to its end."""
        answer = await small.ask("POST", SLICES, body=b" " * 100_000)

        assert answer.reason == "RequestEntityTooLarge"

    async def test_of_the_number_of_slices(self, small: Client) -> None:
        """A driver gone wild is stopped, not the gateway."""
        codes = [(await create(small, JSON, f"s{i}")).code for i in range(4)]

        assert codes == [201, 201, 201, 403]

    async def test_of_the_size_of_slices(self, small: Client) -> None:
        """Many large slices are bounded together."""
        codes = [(await create(small, JSON, f"s{i}", pool="p" * 1500)).code for i in range(2)]

        assert codes == [201, 403]

    async def test_of_watches(self, small: Client) -> None:
        """A client that leaks watches gets told to wait, and a closed one makes room."""
        async with small.watch("sendInitialEvents=true", accept=JSON) as connection:
            assert await connection.chunk()
            assert (await small.get(f"{SLICES}?watch=1")).reason == "TooManyRequests"
        async with asyncio.timeout(10):
            # Version 1 is long gone, which is looked at only where there is room.
            while (await small.get(f"{SLICES}?watch=1&resourceVersion=1")).code == 429:
                pass

    async def test_of_the_history(self, small: Client) -> None:
        """A watch from too long ago is told to list again."""
        listed = version(await small.get(SLICES))
        for i in range(3):
            await create(small, JSON, f"s{i}")

        answer = await small.get(f"{SLICES}?watch=1&resourceVersion={listed}")
        assert answer.reason == "Expired"


class TestBadInput:
    @pytest.mark.parametrize(
        ("media", "data"),
        [
            (JSON, b""),
            (JSON, b"{}"),
            (JSON, b"\xff"),
            (JSON, b"[" * 100_000),
            (JSON, b'{"metadata":' + b"[" * 100_000),
            (JSON, b'{"kind":"Pod","metadata":{},"spec":{}}'),
            (JSON, b'{"metadata":{"name":1},"spec":{}}'),
            (PROTOBUF, b""),
            (PROTOBUF, b"k8s\x00\xff"),
            (PROTOBUF, b"k8s\x00"),
            (PROTOBUF, seal("Pod", b"", api_version="v1")),
            (PROTOBUF, seal("ResourceSlice", b"\x0a\xff", api_version="v1")),
        ],
    )
    async def test_is_a_bad_request(self, client: Clients, media: str, data: bytes) -> None:
        """Bytes that are no slice are named as such."""
        for method, path in (("POST", SLICES), ("PUT", f"{SLICES}/s")):
            answer = await client(GPU).ask(method, path, body=data, media=media)

            assert answer.reason == "BadRequest"

    async def test_delete_options_too(self, client: Clients) -> None:
        """A body that is no options is not taken for none."""
        await create(client(GPU), JSON, "s")
        answer = await client(GPU).ask("DELETE", f"{SLICES}/s", body=b"x")

        assert answer.reason == "BadRequest"

    async def test_another_encoding_is_unsupported(self, client: Clients) -> None:
        """YAML and CBOR are not read here."""
        answer = await client(GPU).ask("POST", SLICES, body=b"a: b", media="application/yaml")

        assert answer.reason == "UnsupportedMediaType"

    @pytest.mark.parametrize("name", ["", "A", "../x", "a/b", "x" * 254])
    async def test_a_bad_name_is_invalid(self, client: Clients, name: str) -> None:
        """Names are DNS subdomains."""
        assert (await create(client(GPU), JSON, name)).reason == "Invalid"

    @pytest.mark.parametrize("number", ["x", "-1", "1" * 30, "%D9%A3"])
    async def test_a_bad_number_is_a_bad_request(self, client: Clients, number: str) -> None:
        """Numbers in a query are checked."""
        answer = await client(GPU).get(f"{SLICES}?watch=1&resourceVersion={number}")

        assert answer.reason == "BadRequest"

    async def test_a_dry_run_is_refused(self, client: Clients) -> None:
        """What would be ignored is refused instead."""
        answer = await client(GPU).ask("POST", f"{SLICES}?dryRun=All", body=body(JSON, name="s"))

        assert answer.reason == "BadRequest"
