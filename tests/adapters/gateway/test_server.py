"""The gateway as drivers meet it: claims, the node, who may ask, and clear refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from tests.adapters.gateway.client import (
    CLAIMS,
    GPU,
    NIC,
    NODE,
    SLICES,
    Access,
    Claims,
    Client,
    Connection,
    gateway_claim,
    pod_ref,
)

from claimlet.adapters.gateway import GatewayError, Limits, server
from claimlet.adapters.gateway.server import ClaimsGateway
from claimlet.adapters.world import RealWorld

Clients = Callable[[str], Client]


class TestClaims:
    async def test_a_claim_of_the_driver_is_served(self, claims: Claims, client: Clients) -> None:
        """A driver on upstream's helper gets what it reads before it prepares."""
        claims.claims["default", "a"] = gateway_claim("a", GPU)
        answer = await client(GPU).get(f"{CLAIMS}/a")
        claim = answer.json()

        assert answer.code == 200
        assert (claim["apiVersion"], claim["kind"]) == ("resource.k8s.io/v1", "ResourceClaim")
        assert claim["metadata"] == {"name": "a", "namespace": "default", "uid": "uid-a"}
        assert claim["status"]["allocation"]["devices"]["results"] == [
            {"request": "r0", "driver": GPU, "pool": NODE, "device": "dev-0"}
        ]

    async def test_the_pods_that_use_it_are_named(self, claims: Claims, client: Clients) -> None:
        """Network drivers find the pod by `reservedFor`; metadata names the pod claim."""
        claims.claims["default", "a"] = gateway_claim(
            "a", GPU, consumers=(pod_ref("p"),), pod_claim_name="gpu"
        )
        claim = (await client(GPU).get(f"{CLAIMS}/a")).json()

        assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": "uid-p"}]
        assert claim["metadata"]["annotations"] == {"resource.kubernetes.io/pod-claim-name": "gpu"}

    async def test_other_claims_are_as_if_they_did_not_exist(
        self, claims: Claims, client: Clients
    ) -> None:
        """A driver cannot even tell which names other drivers' claims have."""
        claims.claims["default", "n"] = gateway_claim("n", NIC)
        other, missing = [await client(GPU).get(f"{CLAIMS}/{name}") for name in ("n", "m")]

        assert other.code == missing.code == 404
        assert other.body.replace(b"default/n", b"default/m") == missing.body

    async def test_older_api_versions_are_not_found(self, claims: Claims, client: Clients) -> None:
        """The helper tries older versions after a 404 and must get a Status each time."""
        claims.claims["default", "a"] = gateway_claim("a", GPU)
        for version in ("v1beta2", "v1beta1"):
            answer = await client(GPU).get(f"{CLAIMS}/a".replace("/v1/", f"/{version}/"))

            assert answer.reason == "NotFound"


class TestOpaqueParameters:
    CONFIG = (
        {"source": "FromClass", "requests": []},
        {"opaque": {"driver": NIC, "parametersDigest": "1"}},
        {"requests": ["r0"], "opaque": {"driver": GPU, "parametersDigest": "2"}},
    )

    async def test_a_driver_gets_its_own_as_they_were(
        self, claims: Claims, client: Clients
    ) -> None:
        """The digest of the log is replaced by what was recorded apart; others' are left out."""
        claims.claims["default", "a"] = gateway_claim(
            "a", GPU, NIC, devices_config=self.CONFIG, config=b'[null,{"key":"s3"},{"big":1e2}]'
        )
        answer = await client(GPU).get(f"{CLAIMS}/a")

        assert b"1e2" in answer.body
        assert b"s3" not in answer.body
        assert answer.json()["status"]["allocation"]["devices"]["config"] == [
            {"source": "FromClass", "requests": []},
            {"requests": ["r0"], "opaque": {"driver": GPU, "parameters": {"big": 100.0}}},
        ]

    async def test_a_digest_is_never_passed_off_as_parameters(
        self, claims: Claims, client: Clients
    ) -> None:
        """Where the parameters are not at hand the driver is told to come again."""
        claims.claims["default", "a"] = gateway_claim("a", GPU, devices_config=self.CONFIG)

        assert (await client(GPU).get(f"{CLAIMS}/a")).reason == "ServiceUnavailable"


class TestNode:
    async def test_is_the_same_at_each_start(self, claims: Claims, tmp_path: Path) -> None:
        """Slices are owned by the node, so its UID must not change."""
        seen = set()
        for _ in range(2):
            async with (
                RealWorld() as world,
                ClaimsGateway(claims, state_dir=tmp_path, node=NODE, world=world) as gateway,
            ):
                client = Client(gateway.kubeconfig_for(GPU))
                node = (await client.get(f"/api/v1/nodes/{NODE}")).json()
                seen.add((gateway.url, node["kind"], node["metadata"]["uid"]))

        assert len(seen) == 1

    async def test_no_other_is_known(self, client: Clients) -> None:
        """There is one node here."""
        assert (await client(GPU).get("/api/v1/nodes/other")).reason == "NotFound"

    async def test_the_version_is_told(self, client: Clients) -> None:
        """Some drivers ask what they talk to."""
        assert (await client(GPU).get("/version")).json()["gitVersion"].startswith("v1.35.0")


class TestDoor:
    @pytest.mark.parametrize("token", ["", "x", f"{GPU}.0000"])
    async def test_is_shut_without_a_good_token(self, gateway: ClaimsGateway, token: str) -> None:
        """Whoever has no token learns nothing, not even which paths there are."""
        for path in ("/version", "/nothing", f"{CLAIMS}/a"):
            client = Client(gateway.kubeconfig_for(GPU), token=token)
            assert (await client.get(path)).reason == "Unauthorized"

    async def test_takes_one_bearer_only(self, gateway: ClaimsGateway) -> None:
        """Other schemes are not a token, however good the rest is."""
        client = Client(gateway.kubeconfig_for(GPU), token="")
        headers = {"Authorization": f"Basic {client.access.token}"}
        answer = await client.get("/version", headers=headers)

        assert answer.reason == "Unauthorized"

    @pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "[::1", "::1"])
    async def test_is_shut_under_another_name(self, client: Clients, host: str) -> None:
        """A page that a browser was lured to cannot reach the gateway under its own name."""
        answer = await client(GPU).get("/version", headers={"Host": host})

        assert answer.code in {400, 403}

    @pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80"])
    async def test_opens_under_loopback_names(self, client: Clients, host: str) -> None:
        """Loopback has several names."""
        assert (await client(GPU).get("/version", headers={"Host": host})).code == 200


class TestRefusals:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("PATCH", f"{CLAIMS}/a/status"),
            ("PUT", f"{CLAIMS}/a/status"),
            ("PATCH", f"{CLAIMS}/a/driver"),
            ("DELETE", f"{CLAIMS}/a"),
            ("GET", CLAIMS),
            ("GET", "/apis/resource.k8s.io/v1/resourceclaims"),
            ("POST", "/api/v1/namespaces/default/events"),
            ("POST", "/apis/events.k8s.io/v1/namespaces/default/events"),
        ],
    )
    async def test_optional_writes_are_forbidden(
        self, client: Clients, method: str, path: str
    ) -> None:
        """What drivers try beside what they need is refused with a text that says why."""
        answer = await client(GPU).ask(method, path, body=b"{}")

        assert answer.reason == "Forbidden"
        assert "gateway" in answer.json()["message"]

    @pytest.mark.parametrize(
        ("method", "path"),
        [("POST", "/version"), ("PATCH", f"{SLICES}/a"), ("DELETE", SLICES)],
    )
    async def test_other_methods_are_not_allowed(
        self, client: Clients, method: str, path: str
    ) -> None:
        """A known path says which methods it has."""
        answer = await client(GPU).ask(method, path)

        assert answer.reason == "MethodNotAllowed"
        assert "GET" in answer.headers["allow"]

    @pytest.mark.parametrize("path", ["/", "/api", "/apis", "/api/v1/pods", f"{SLICES}/", "/%00"])
    async def test_the_rest_is_not_found(self, client: Clients, path: str) -> None:
        """Nothing else is there, and a redirect is no answer for a driver."""
        assert (await client(GPU).get(path)).reason == "NotFound"


class TestLife:
    async def test_a_taken_port_is_an_error(self, claims: Claims, tmp_path: Path) -> None:
        """Two gateways on one directory: the second says what is wrong."""
        async with RealWorld() as world:
            first = ClaimsGateway(claims, state_dir=tmp_path, node=NODE, world=world)
            second = ClaimsGateway(claims, state_dir=tmp_path, node=NODE, world=world)
            async with first:
                with pytest.raises(GatewayError, match="not to be had"):
                    await second.__aenter__()

    async def test_an_idle_connection_is_cut(
        self, gateway: ClaimsGateway, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Who connects and asks for nothing does not hold a place for ever."""
        monkeypatch.setattr(server, "FIRST_REQUEST_SECONDS", 0.01)
        access = Access(gateway.kubeconfig_for(GPU))
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", access.port, ssl=access.tls)

            assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()

    async def test_ends_with_watches_open(self, claims: Claims, tmp_path: Path) -> None:
        """A driver that watches does not keep the service from stopping."""
        async with RealWorld() as world:
            gateway = ClaimsGateway(claims, state_dir=tmp_path, node=NODE, world=world)
            async with gateway:
                client = Client(gateway.kubeconfig_for(GPU))
                watch = client.watch("sendInitialEvents=true", accept="application/json")
                connection = await watch.__aenter__()
                assert b"BOOKMARK" in (await connection.chunk() or b"")
            assert await connection.chunk() is None
            await watch.__aexit__(None, None, None)

    async def test_garbage_is_answered_in_http(self, gateway: ClaimsGateway) -> None:
        """Bytes that are no HTTP get an answer and an end, and the next request works."""
        client = Client(gateway.kubeconfig_for(GPU))
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", client.access.port, ssl=client.access.tls
            )
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400")
            writer.close()
            await writer.wait_closed()
        assert (await client.get("/version")).code == 200

    async def test_plain_http_gets_nothing(self, gateway: ClaimsGateway) -> None:
        """Without TLS there is no answer, so that no token is ever sent in the open twice."""
        client = Client(gateway.kubeconfig_for(GPU))
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", client.access.port)
            writer.write(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"HTTP" not in await reader.read()
            writer.close()
            await writer.wait_closed()
        assert (await client.get("/version")).code == 200

    async def test_too_many_connections_are_hung_up_on(
        self, claims: Claims, tmp_path: Path
    ) -> None:
        """Who opens connections without end takes no more than there is, and goes without harm."""
        async with (
            RealWorld() as world,
            ClaimsGateway(
                claims,
                state_dir=tmp_path,
                node=NODE,
                world=world,
                limits=Limits(connections=5),
            ) as gateway,
            asyncio.timeout(10),
        ):
            client = Client(gateway.kubeconfig_for(GPU))
            opened = [
                await asyncio.open_connection("127.0.0.1", client.access.port) for _ in range(8)
            ]
            assert [await reader.read() for reader, _ in opened[5:]] == [b"", b"", b""]
            for _, writer in opened:
                writer.close()
                await writer.wait_closed()
            while True:
                with suppress(OSError):
                    assert (await client.get("/version")).code == 200
                    break


async def test_one_connection_serves_many_requests(claims: Claims, gateway: ClaimsGateway) -> None:
    """Go's clients keep their connection."""
    claims.claims["default", "a"] = gateway_claim("a", GPU)
    access = Access(gateway.kubeconfig_for(GPU))
    async with asyncio.timeout(10), Connection(access) as connection:
        headers = {"Authorization": f"Bearer {access.token}"}
        await connection.send("GET", f"{CLAIMS}/a", headers=headers, body=b"")
        answer = await connection.begin()
        while (chunk := await connection.chunk()) is not None:
            answer.body += chunk

    assert answer.headers.get("connection", "keep-alive") == "keep-alive"
    assert msgspec.json.decode(answer.body)["metadata"]["name"] == "a"
