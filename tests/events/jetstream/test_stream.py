"""The stream: made right, and refused by name where it was changed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.events.helpers import NODE, open_writer
from tests.events.jetstream.lossy_proxy import LossyProxy

from claimlet.events.errors import LogSetupError
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.stream import (
    StreamInfo,
    check_server,
    check_stream,
    create_stream,
    stream_info,
)
from claimlet.events.server.process import EmbeddedServer


async def made(server: EmbeddedServer) -> tuple[Connection, StreamInfo]:
    """Make the stream and return it, with the admin's connection."""
    admin = await Connection.open(server.address("admin"), name="test")
    await create_stream(admin, NODE, bytes_max=2**26)
    info = await stream_info(admin)
    assert info is not None
    return admin, info


class TestCreate:
    async def test_makes_a_stream_that_passes_its_own_check(self, server: EmbeddedServer) -> None:
        """What is made is what is wanted."""
        admin, info = await made(server)
        await admin.close()

        check_stream(info, NODE)
        assert info.config["compression"] == "none"
        assert info.config["max_bytes"] == 2**26
        assert info.config["duplicate_window"] == 600_000_000_000

    async def test_leaves_a_stream_that_is_there(self, server: EmbeddedServer) -> None:
        """A second start makes nothing new."""
        admin, info = await made(server)
        await create_stream(admin, NODE, bytes_max=2**26)
        again = await stream_info(admin)
        await admin.close()

        assert again is not None
        assert again.config == info.config

    async def test_says_why_the_server_makes_none(self, server: EmbeddedServer) -> None:
        """A stream that could grow beyond the store is refused with the server's words."""
        admin = await Connection.open(server.address("admin"), name="test")

        with pytest.raises(LogSetupError, match="insufficient storage"):
            await create_stream(admin, NODE, bytes_max=2**40)

        await admin.close()


class TestCheck:
    @pytest.mark.parametrize(
        ("changes", "name"),
        [
            ({"discard": "old"}, "discard"),
            ({"max_msgs": 5}, "max_msgs"),
            ({"max_age": 1_000_000_000 * 3600}, "max_age"),
            ({"max_msgs_per_subject": 1}, "max_msgs_per_subject"),
            ({"subjects": ["dra.>"]}, "subjects"),
            ({"republish": {"src": "dra.>", "dest": "elsewhere.>"}}, "republish"),
            ({"allow_direct": False}, "allow_direct"),
        ],
        ids=str,
    )
    async def test_refuses_a_changed_stream(
        self, server: EmbeddedServer, changes: dict[str, Any], name: str
    ) -> None:
        """An admin has changed it under the service: named, and not mended."""
        admin, info = await made(server)
        answer = await admin.api(
            "STREAM.UPDATE.EVENTS", {**info.config, **changes}, answer=StreamInfo
        )
        await admin.close()
        assert answer.error is None

        with pytest.raises(LogSetupError, match=f"EVENTS was changed: .*{name} is") as caught:
            async with open_writer(server.address("writer")):
                pass

        assert caught.value.exit_code == 4

    @pytest.mark.parametrize(
        "changes",
        [
            {"deny_delete": False},
            {"deny_purge": False},
            {"retention": "interest"},
            {"storage": "memory"},
            {"allow_rollup_hdrs": True},
            {"allow_msg_ttl": True},
            {"allow_atomic": False},
            {"sealed": True},
            {"sources": [{"name": "OTHER"}]},
        ],
        ids=str,
    )
    async def test_refuses_a_stream_that_was_made_otherwise(
        self, server: EmbeddedServer, changes: dict[str, Any]
    ) -> None:
        """What the server would not let an admin change may have been so from the start."""
        admin, info = await made(server)
        await admin.close()
        config = {**info.config, **changes}

        with pytest.raises(LogSetupError, match=f"{next(iter(changes))} is"):
            check_stream(StreamInfo(config=config), NODE)

    async def test_refuses_another_nodes_stream(self, server: EmbeddedServer) -> None:
        """A state directory of another node is not taken over by a changed name."""
        admin, info = await made(server)
        await admin.close()

        with pytest.raises(LogSetupError, match="subjects is"):
            check_stream(info, "node-b")

    async def test_refuses_a_server_that_is_too_old(self, server: EmbeddedServer) -> None:
        """Before 2.12 there are no atomic batches; the text says what to do."""
        async with LossyProxy(server.port) as proxy:
            proxy.greeting = lambda line: line.replace(b'"version":"2.', b'"version":"1.')
            address = server.address("writer")
            old = await Connection.open(
                type(address)(
                    url=proxy.url, seed_file=address.seed_file, inbox_prefix=address.inbox_prefix
                ),
                name="test",
            )

            with pytest.raises(LogSetupError, match=r"needs 2\.12 or newer"):
                check_server(old)

            await old.close()
