"""Who may do what, proven against the real server: each user its own, and no way around."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats import micro
from nats.micro.request import Request
from tests.events.helpers import eventually, everything, generated, open_writer
from tests.events.server.spy import API, NODE, consumer, holds_secret, spy

from claimlet.events.address import ServerAddress
from claimlet.events.errors import LogSetupError
from claimlet.events.jetstream.connection import Connection
from claimlet.events.server.process import EmbeddedServer


class TestNobody:
    async def test_gets_in_without_a_key(self, server: EmbeddedServer) -> None:
        """A server of claimlet's asks everybody."""
        with pytest.raises(LogSetupError, match="does not let this user in"):
            await Connection.open(ServerAddress(url=server.address("reader").url), name="nobody")


class TestWriter:
    async def test_publishes_nothing_but_its_nodes_facts(self, server: EmbeddedServer) -> None:
        """Neither another node's, nor a change of the stream, nor a command."""
        subjects = [
            "dra.node-b.node.stopped",
            f"live.dra.{NODE}.node.stopped",
            f"{API}STREAM.CREATE.EVENTS",
            f"{API}STREAM.UPDATE.EVENTS",
            f"{API}STREAM.DELETE.EVENTS",
            f"{API}STREAM.PURGE.EVENTS",
            f"{API}STREAM.MSG.DELETE.EVENTS",
            f"{API}STREAM.CREATE.OTHER",
            "snapshots.node-b.a.0",
            f"{API}STREAM.UPDATE.SNAPSHOTS",
            f"{API}STREAM.DELETE.SNAPSHOTS",
            f"{API}STREAM.PURGE.SNAPSHOTS",
            f"{API}CONSUMER.CREATE.SNAPSHOTS.writer",
            f"claimlet.{NODE}.pod.prepare",
            "_INBOX.operator.x",
        ]
        async with spy(server, "writer") as writer:
            assert [s for s in subjects if not await writer.is_refused(s, {})] == []

    async def test_listens_to_its_own_answers_only(self, server: EmbeddedServer) -> None:
        """Each user has inboxes of its own."""
        subjects = [">", "dra.>", "_INBOX.>", "_INBOX.reader.>", "live.>"]
        async with spy(server, "writer") as writer:
            assert [s for s in subjects if not await writer.is_deaf(s)] == []


#: What would change or show something, and that no reader may ask for.
FORBIDDEN: list[tuple[str, object]] = [
    (f"dra.{NODE}.node.stopped", {}),
    (f"dra.{NODE}.claim.team-a.uid-c.prepared", {}),
    (f"live.dra.{NODE}.node.stopped", {}),
    (f"claimlet.{NODE}.pod.prepare", {}),
    ("$SRV.PING", {}),
    ("_INBOX.operator.x", {}),
    ("_INBOX.writer.x", {}),
    (f"{API}STREAM.UPDATE.EVENTS", {}),
    (f"{API}STREAM.DELETE.EVENTS", None),
    (f"{API}STREAM.PURGE.EVENTS", None),
    (f"{API}STREAM.MSG.DELETE.EVENTS", {"seq": 1}),
    (f"{API}STREAM.MSG.GET.EVENTS", {"seq": 2}),
    (f"{API}STREAM.SNAPSHOT.EVENTS", {"deliver_subject": "_INBOX.reader.x"}),
    (f"snapshots.{NODE}.a.0", {}),
    (f"{API}STREAM.INFO.SNAPSHOTS", None),
    (f"{API}STREAM.MSG.GET.SNAPSHOTS", {"last_by_subj": f"snapshots.{NODE}.a.0"}),
    (f"{API}STREAM.DELETE.SNAPSHOTS", None),
    (f"{API}DIRECT.GET.SNAPSHOTS.snapshots.{NODE}.a.0", None),
    (
        f"{API}CONSUMER.CREATE.SNAPSHOTS.x.snapshots.{NODE}.a.0",
        consumer("x", filter_subject=f"snapshots.{NODE}.a.0"),
    ),
    (f"{API}STREAM.CREATE.COPY", {"name": "COPY", "sources": [{"name": "EVENTS"}]}),
    (f"{API}DIRECT.GET.EVENTS", {"seq": 2}),
    (f"{API}DIRECT.GET.EVENTS", {"multi_last": ["dra.>"]}),
    (f"{API}DIRECT.GET.EVENTS.dra.{NODE}.private.team-a.uid-c.config_recorded", None),
    (f"{API}CONSUMER.CREATE.EVENTS", consumer("x")),
    (f"{API}CONSUMER.CREATE.EVENTS.x", consumer("x")),
    (
        f"{API}CONSUMER.CREATE.EVENTS.x",
        consumer("x", filter_subjects=[f"dra.{NODE}.claim.>", f"dra.{NODE}.private.>"]),
    ),
    (
        f"{API}CONSUMER.CREATE.EVENTS.x.dra.{NODE}.private.>",
        consumer("x", filter_subject=f"dra.{NODE}.private.>"),
    ),
    (
        f"{API}CONSUMER.CREATE.EVENTS.x.dra.{NODE}.>",
        consumer("x", filter_subject=f"dra.{NODE}.>"),
    ),
    (
        f"{API}CONSUMER.CREATE.EVENTS.x.dra.{NODE}.*.team-a.>",
        consumer("x", filter_subject=f"dra.{NODE}.*.team-a.>"),
    ),
    (f"{API}CONSUMER.DURABLE.CREATE.EVENTS.x", consumer("x", durable_name="x")),
    (f"{API}CONSUMER.MSG.NEXT.EVENTS.writer", {"batch": 10}),
    (f"{API}CONSUMER.INFO.EVENTS.writer", None),
    (f"{API}CONSUMER.DELETE.EVENTS.writer", None),
    (
        f"{API}CONSUMER.CREATE.EVENTS.writer.dra.{NODE}.claim.>",
        consumer("writer", filter_subject=f"dra.{NODE}.claim.>"),
    ),
]


class TestReader:
    async def test_has_no_way_to_publish_command_or_look(self, server: EmbeddedServer) -> None:
        """No fact, no command, no change, and no private fact by any request."""
        async with spy(server, "reader") as reader:
            done = [s for s, body in FORBIDDEN if not await reader.is_refused(s, body)]

        assert done == []
        assert len(await everything(server)) == 4

    async def test_has_no_way_to_listen(self, server: EmbeddedServer) -> None:
        """Neither to private facts, nor to what is not stored, nor to another's answers."""
        subjects = [
            ">",
            "dra.>",
            "live.>",
            "live.dra.>",
            f"live.dra.{NODE}.>",
            f"live.dra.{NODE}.private.>",
            "live.dra.*.*.team-a.>",
            "_INBOX.>",
            "_INBOX.writer.>",
            "_INBOX.*.x",
            "$JS.EVENT.>",
            f"claimlet.{NODE}.>",
            "$SRV.>",
        ]
        async with spy(server, "reader") as reader:
            assert [s for s in subjects if not await reader.is_deaf(s)] == []

    async def test_reads_claims_pods_and_the_node(self, server: EmbeddedServer) -> None:
        """What it may, it can: live, by consumer, and one by one."""
        async with spy(server, "reader") as reader:
            for kind in ("claim", "pod", "node"):
                assert not await reader.is_deaf(f"live.dra.*.{kind}.>")
            filter_subject = f"dra.{NODE}.claim.>"
            subject = f"{API}CONSUMER.CREATE.EVENTS.mine.{filter_subject}"
            await reader.ask(subject, consumer("mine", filter_subject=filter_subject))
            pulled = await reader.pull("mine", 10)
            last = await reader.ask(f"{API}DIRECT.GET.EVENTS.dra.{NODE}.node.source_synced", {})

        assert [message.subject for message in pulled] == [
            f"dra.{NODE}.claim.team-a.uid-c.generated"
        ]
        assert b"source_synced" in last.data

    @pytest.mark.parametrize(
        "config",
        [
            {"filter_subject": f"dra.{NODE}.private.>"},
            {"filter_subject": ""},
            {"filter_subjects": [f"dra.{NODE}.private.>"]},
            {
                "filter_subject": f"dra.{NODE}.claim.>",
                "filter_subjects": [f"dra.{NODE}.claim.>", f"dra.{NODE}.private.>"],
            },
            {"filter_subjects": [f"dra.{NODE}.claim.>", f"dra.{NODE}.private.>"]},
        ],
        ids=str,
    )
    async def test_cannot_ask_for_more_than_the_subject_says(
        self, server: EmbeddedServer, config: dict[str, Any]
    ) -> None:
        """The filter that the permission allows is the filter that the consumer gets."""
        async with spy(server, "reader") as reader:
            subject = f"{API}CONSUMER.CREATE.EVENTS.mine.dra.{NODE}.claim.>"
            answer = json.loads((await reader.ask(subject, consumer("mine", **config))).data)
            pulled = [] if "error" in answer else await reader.pull("mine", 10)

        assert not holds_secret(pulled)
        assert all(f"dra.{NODE}.claim." in message.subject for message in pulled)

    @pytest.mark.parametrize(
        "body",
        [{"seq": 2}, {"next_by_subj": "dra.>", "seq": 2}, {"last_by_subj": "dra.>"}],
        ids=str,
    )
    async def test_cannot_ask_for_another_record_than_the_subject_says(
        self, server: EmbeddedServer, body: dict[str, Any]
    ) -> None:
        """A body beside the subject gives no private record."""
        async with spy(server, "reader") as reader:
            subject = f"{API}DIRECT.GET.EVENTS.dra.{NODE}.claim.team-a.uid-c.generated"

            assert not holds_secret([await reader.ask(subject, body)])

    async def test_cannot_read_from_the_writers_consumer(self, server: EmbeddedServer) -> None:
        """The only consumer without a filter is shut to it, also while it is there."""
        async with spy(server, "writer") as writer, spy(server, "reader") as reader:
            await writer.ask(f"{API}CONSUMER.CREATE.EVENTS.writer", consumer("writer"))

            assert await reader.is_refused(f"{API}CONSUMER.MSG.NEXT.EVENTS.writer", {"batch": 9})
            assert len(await writer.pull("writer", 9)) == 4

    @pytest.mark.parametrize(
        "target", [f"claimlet.{NODE}.pod.prepare", "$SRV.PING", "_INBOX.operator.x"]
    )
    async def test_cannot_aim_a_consumer_at_a_command(
        self, server: EmbeddedServer, target: str
    ) -> None:
        """JetStream delivers anywhere in the account; commands are in another one."""
        async with (
            spy(server, "service") as service,
            spy(server, "operator") as operator,
            spy(server, "reader") as reader,
        ):
            await service.is_deaf(f"claimlet.{NODE}.>")
            await service.is_deaf("$SRV.>")
            await operator.is_deaf("_INBOX.operator.x")
            filter_subject = f"dra.{NODE}.claim.>"
            request = consumer(
                "aimed", filter_subject=filter_subject, deliver_subject=target, mem_storage=True
            )
            subject = f"{API}CONSUMER.CREATE.EVENTS.aimed.{filter_subject}"
            await reader.ask(subject, request)
            for user in (service, operator):
                await user.connection.client.flush()

            assert service.heard == operator.heard == []

    async def test_cannot_aim_a_consumer_back_at_the_log(self, server: EmbeddedServer) -> None:
        """Old facts would come back as new ones."""
        async with spy(server, "reader") as reader:
            filter_subject = f"dra.{NODE}.claim.>"
            request = consumer(
                "aimed",
                filter_subject=filter_subject,
                deliver_subject=f"dra.{NODE}.claim.team-a.uid-c.deleted",
            )
            subject = f"{API}CONSUMER.CREATE.EVENTS.aimed.{filter_subject}"
            answer = json.loads((await reader.ask(subject, request)).data)

        assert "cycle" in answer["error"]["description"]
        assert len(await everything(server)) == 4


class TestControl:
    async def test_commands_are_answered(self, server: EmbeddedServer) -> None:
        """The operator asks, the service answers, and standard tools find it."""
        async with spy(server, "service") as service, spy(server, "operator") as operator:

            async def answer(request: Request) -> None:
                await request.respond(b"done")

            found = await micro.add_service(
                service.connection.client, name="claimlet", version="0.1.0"
            )
            await found.add_endpoint(
                name="prepare", subject=f"claimlet.{NODE}.pod.prepare", handler=answer
            )
            await service.connection.client.flush()

            reply = await operator.ask(f"claimlet.{NODE}.pod.prepare", {})
            info = await operator.ask("$SRV.INFO.claimlet", {})
            await found.stop()

        assert reply.data == b"done"
        assert json.loads(info.data)["name"] == "claimlet"

    async def test_the_operator_commands_this_node_only(self, server: EmbeddedServer) -> None:
        """Neither another node, nor facts."""
        subjects = ["claimlet.node-b.pod.prepare", f"dra.{NODE}.node.stopped", "_INBOX.service.x"]
        async with spy(server, "operator") as operator:
            assert [s for s in subjects if not await operator.is_refused(s, {})] == []

    async def test_the_operator_does_not_overhear(self, server: EmbeddedServer) -> None:
        """Commands of others are not its business, nor can it answer in the service's place."""
        subjects = [">", f"claimlet.{NODE}.>", "$SRV.>", "_INBOX.>"]
        async with spy(server, "operator") as operator:
            assert [s for s in subjects if not await operator.is_deaf(s)] == []

    async def test_the_service_gives_no_commands(self, server: EmbeddedServer) -> None:
        """It answers, and nothing else."""
        async with spy(server, "service") as service:
            assert await service.is_refused(f"claimlet.{NODE}.pod.prepare", {})
            assert await service.is_refused(f"{API}STREAM.INFO.EVENTS")


class TestAdmin:
    async def test_publishes_no_facts(self, server: EmbeddedServer) -> None:
        """Who may change the stream may not write in it."""
        async with spy(server, "admin") as admin:
            assert await admin.is_refused(f"dra.{NODE}.node.stopped", {})
            assert await admin.is_refused(f"claimlet.{NODE}.pod.prepare", {})
            assert not await admin.is_refused(f"{API}STREAM.INFO.EVENTS")


async def test_the_live_subjects_carry_what_is_stored(server: EmbeddedServer) -> None:
    """A refused publish is never seen there; a stored fact is, with its sequence."""
    async with spy(server, "reader") as reader:
        await reader.is_deaf("live.dra.*.claim.>")
        forger = await Connection.open(server.address("writer"), name="forger")
        refused = {"Nats-Expected-Last-Sequence": "1"}
        await forger.publish(
            f"dra.{NODE}.claim.team-a.uid-c.prepared",
            b"{}",
            reply=forger.client.new_inbox(),
            headers=refused,
        )
        await forger.client.flush()
        await forger.close()
        async with open_writer(server.address("writer")) as log:
            await log.append([generated("new")])
        await eventually(lambda: len(reader.heard) >= 1)
        await asyncio.sleep(0)

    assert [message.subject for message in reader.heard] == [
        f"live.dra.{NODE}.claim.team-a.uid-new.generated"
    ]
    assert (reader.heard[0].headers or {})["Nats-Sequence"] == "5"
