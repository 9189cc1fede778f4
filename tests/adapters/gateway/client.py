"""A small HTTP client, and the fakes that the gateway's tests share."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h11
import msgspec
import yaml

from claimlet.adapters.gateway import GatewayClaim
from claimlet.events.values import (
    AllocatedDevice,
    Allocation,
    ClaimRef,
    ClaimUid,
    DriverName,
    PodRef,
    PodUid,
)

GPU, NIC, NODE = "gpu.example.com", "nic.example.com", "node-a"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
PROTOBUF = "application/vnd.kubernetes.protobuf"


class Claims:
    """A view that tests fill."""

    def __init__(self, *claims: GatewayClaim) -> None:
        self.claims = {(claim.ref.namespace, claim.ref.name): claim for claim in claims}

    def claim(self, namespace: str, name: str) -> GatewayClaim | None:
        return self.claims.get((namespace, name))


def gateway_claim(name: str, *drivers: str, **fields: Any) -> GatewayClaim:
    """Return a claim of one device of each driver."""
    results = [
        {"request": f"r{i}", "driver": driver, "pool": NODE, "device": f"dev-{i}"}
        for i, driver in enumerate(drivers)
    ]
    config = fields.pop("devices_config", [])
    devices = tuple(
        AllocatedDevice(
            driver=DriverName(result["driver"]),
            pool=NODE,
            device=result["device"],
            request=result["request"],
        )
        for result in results
    )
    verbatim = msgspec.json.encode({"devices": {"results": results, "config": config}})
    return GatewayClaim(
        ref=ClaimRef(uid=ClaimUid(f"uid-{name}"), namespace="default", name=name),
        allocation=Allocation(digest="d", devices=devices, verbatim=msgspec.Raw(verbatim)),
        **fields,
    )


def pod_ref(name: str) -> PodRef:
    return PodRef(uid=PodUid(f"uid-{name}"), namespace="default", name=name)


class Access:
    """Where and how to reach the gateway, as a driver reads it from its kubeconfig."""

    def __init__(self, kubeconfig: Path) -> None:
        config = yaml.safe_load(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self.url: str = cluster["server"]
        self.port = int(self.url.rpartition(":")[2])
        self.token: str = config["users"][0]["user"]["token"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        # As the newest Python has it by default.
        self.tls = ssl.create_default_context(cadata=authority)
        self.tls.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN


class Answer(msgspec.Struct):
    """A whole answer."""

    code: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def reason(self) -> str:
        """Return the reason of a Status object."""
        status = self.json()
        assert status["kind"] == "Status"
        assert status["code"] == self.code
        return str(status["reason"])


class Connection:
    """One request at a time over one connection."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._state = h11.Connection(h11.CLIENT)

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._access.port, ssl=self._access.tls
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def send(self, method: str, path: str, *, headers: dict[str, str], body: bytes) -> None:
        """Send a request whole."""
        everything = {
            "Host": f"127.0.0.1:{self._access.port}",
            "Content-Length": str(len(body)),
        } | headers
        request = h11.Request(method=method, target=path, headers=list(everything.items()))
        data = self._state.send(request) or b""
        data += self._state.send(h11.Data(data=body)) or b""
        data += self._state.send(h11.EndOfMessage()) or b""
        self._writer.write(data)
        await self._writer.drain()

    async def begin(self) -> Answer:
        """Return the answer's head."""
        event = await self._event()
        assert isinstance(event, h11.Response), event
        headers = {name.decode(): value.decode() for name, value in event.headers}
        return Answer(event.status_code, headers, b"")

    async def chunk(self) -> bytes | None:
        """Return the next piece of the body, or None at its end."""
        event = await self._event()
        return bytes(event.data) if isinstance(event, h11.Data) else None

    async def _event(self) -> h11.Event:
        while True:
            event = self._state.next_event()
            if event is h11.NEED_DATA:
                self._state.receive_data(await self._reader.read(65536))
            else:
                assert isinstance(event, h11.Event), event
                return event


class Client:
    """Asks the gateway as the driver of a kubeconfig, or with another token."""

    def __init__(self, kubeconfig: Path, *, token: str | None = None) -> None:
        self.access = Access(kubeconfig)
        token = self.access.token if token is None else token
        self._authorization = {"Authorization": f"Bearer {token}"} if token else {}

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: bytes = b"",
        media: str = "application/json",
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Return the answer to one request."""
        sent = {"Content-Type": media, "Accept": f"{PROTOBUF},application/json"}
        async with asyncio.timeout(10), Connection(self.access) as connection:
            await connection.send(
                method, path, headers=sent | self._authorization | (headers or {}), body=body
            )
            answer = await connection.begin()
            while (chunk := await connection.chunk()) is not None:
                answer.body += chunk
            return answer

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.ask("GET", path, **options)

    @asynccontextmanager
    async def watch(self, query: str, *, accept: str) -> AsyncIterator[Connection]:
        """Return a connection on which a watch has begun."""
        async with asyncio.timeout(10), Connection(self.access) as connection:
            headers = {"Accept": accept} | self._authorization
            path = f"{SLICES}?watch=true&{query}"
            await connection.send("GET", path, headers=headers, body=b"")
            answer = await connection.begin()
            assert answer.code == 200
            assert answer.headers["content-type"].startswith(accept)
            yield connection
