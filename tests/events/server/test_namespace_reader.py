"""A reader of one Kubernetes namespace, proven against the real server: no others' facts."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.events.helpers import (
    READER_TEMPLATE,
    everything,
    generated,
    open_writer,
    pod_fact,
    settings_in,
)
from tests.events.server.spy import API, NODE, Spy, consumer, holds_secret, spy

from claimlet.events.record import Draft
from claimlet.events.server.process import EmbeddedServer
from claimlet.events.values import ClaimRef, ClaimUid

USER = "reader-dash"
OTHER = "reader-other"
#: The consumers that are its own.
OWN = {kind: f"{USER}_{kind}" for kind in ("claim", "pod")}


def elsewhere(draft: Draft) -> Draft:
    """Return *draft* in another namespace."""
    ref = ClaimRef(uid=ClaimUid("uid-b"), namespace="team-b", name="b")
    return Draft(fact=draft.fact, claim=ref)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    """Yield a server with two such readers; team-b has a claim as well."""
    readers = {"dash": "team-a", "other": "team-b"}
    settings = settings_in(
        tmp_path / "state", namespace_readers=readers, reader_template=READER_TEMPLATE
    )
    async with EmbeddedServer(settings) as server:
        async with spy(server, "reader"):
            pass
        async with open_writer(server.address("writer")) as log:
            await log.append([elsewhere(generated()), pod_fact()])
        yield server


def creation(kind: str, namespace: str = "team-a", *, name: str = "") -> tuple[str, str]:
    """Return the subject that makes a consumer, and its filter."""
    chosen = f"dra.{NODE}.{kind}.{namespace}.>"
    return f"{API}CONSUMER.CREATE.EVENTS.{name or OWN.get(kind, 'x')}.{chosen}", chosen


async def read_all(reader: Spy, kind: str, **config: Any) -> list[str]:
    """Return the subjects of what the reader gets from its own consumer of *kind*."""
    subject, chosen = creation(kind)
    body = consumer(OWN[kind], **({"filter_subject": chosen} | config))
    answer = json.loads((await reader.ask(subject, body)).data)
    if "error" in answer:
        return []
    pulled = await reader.pull(OWN[kind], 20)
    assert not holds_secret(pulled)
    return [message.subject for message in pulled]


class TestReads:
    async def test_the_facts_of_its_namespace(self, server: EmbeddedServer) -> None:
        """Claims and pods, by consumers of its own and one by one."""
        async with spy(server, USER) as reader:
            claims = await read_all(reader, "claim")
            pods = await read_all(reader, "pod")
            last = await reader.ask(
                f"{API}DIRECT.GET.EVENTS.dra.{NODE}.claim.team-a.uid-c.generated", None
            )

        assert claims == [f"dra.{NODE}.claim.team-a.uid-c.generated"]
        assert pods == [f"dra.{NODE}.pod.team-a.uid-p.pod_finished"]
        assert b'"t":"generated"' in last.data

    async def test_live_facts_of_its_namespace(self, server: EmbeddedServer) -> None:
        """What is stored for its namespace is republished to it, and nothing else is."""
        async with spy(server, USER) as reader:
            for kind in OWN:
                assert not await reader.is_deaf(f"live.dra.{NODE}.{kind}.team-a.>")
            async with open_writer(server.address("writer")) as log:
                await log.append([elsewhere(generated("n")), generated("n"), pod_fact("n")])
            await reader.connection.client.flush()
            heard = sorted(message.subject for message in reader.heard)

        assert heard == [
            f"live.dra.{NODE}.claim.team-a.uid-n.generated",
            f"live.dra.{NODE}.pod.team-a.uid-n.pod_finished",
        ]


#: What would show or change something beyond its namespace.
FORBIDDEN: list[tuple[str, object]] = [
    (f"dra.{NODE}.claim.team-a.uid-c.prepared", {}),
    (f"live.dra.{NODE}.claim.team-a.uid-c.prepared", {}),
    (f"claimlet.{NODE}.prepare", {}),
    ("_INBOX.reader.x", {}),
    (f"{API}STREAM.INFO.EVENTS", {"subjects_filter": ">"}),
    (f"{API}STREAM.NAMES", None),
    (f"{API}STREAM.MSG.GET.EVENTS", {"seq": 1}),
    (f"{API}STREAM.PURGE.EVENTS", None),
    (f"{API}DIRECT.GET.EVENTS", {"seq": 1}),
    (f"{API}DIRECT.GET.EVENTS", {"multi_last": ["dra.>"]}),
    (f"{API}DIRECT.GET.EVENTS.dra.{NODE}.claim.team-b.uid-b.generated", None),
    (f"{API}DIRECT.GET.EVENTS.dra.{NODE}.node.source_synced", None),
    (f"{API}DIRECT.GET.EVENTS.dra.{NODE}.private.team-a.uid-c.config_recorded", None),
    (f"{API}CONSUMER.CREATE.EVENTS", consumer("x")),
    (f"{API}CONSUMER.CREATE.EVENTS.{OWN['claim']}", consumer(OWN["claim"])),
    (creation("claim", "team-b")[0], consumer(OWN["claim"])),
    (creation("claim", "*")[0], consumer(OWN["claim"])),
    (creation("private")[0], consumer("x")),
    (creation("*")[0], consumer("x")),
    (creation("claim", name="x")[0], consumer("x")),
    (creation("claim", name=f"{OTHER}_claim")[0], consumer(f"{OTHER}_claim")),
    (f"{API}CONSUMER.NAMES.EVENTS", None),
    (f"{API}CONSUMER.LIST.EVENTS", None),
    (f"{API}CONSUMER.MSG.NEXT.EVENTS.{OTHER}_claim", {"batch": 9}),
    (f"{API}CONSUMER.MSG.NEXT.EVENTS.writer", {"batch": 9}),
    (f"{API}CONSUMER.INFO.EVENTS.{OTHER}_claim", None),
    (f"{API}CONSUMER.DELETE.EVENTS.{OTHER}_claim", None),
]


class TestHasNoWay:
    async def test_to_ask(self, server: EmbeddedServer) -> None:
        """No fact, no command, no other namespace, no other reader's consumer, no private fact."""
        async with spy(server, USER) as reader:
            done = [s for s, body in FORBIDDEN if not await reader.is_refused(s, body)]

        assert done == []
        assert len(await everything(server)) == 6

    async def test_to_listen(self, server: EmbeddedServer) -> None:
        """Neither to others' facts and answers, nor to the node's, nor to what is not stored."""
        subjects = [
            ">",
            "dra.>",
            f"dra.{NODE}.claim.team-a.>",
            "live.>",
            f"live.dra.{NODE}.>",
            f"live.dra.{NODE}.claim.>",
            f"live.dra.{NODE}.claim.team-b.>",
            f"live.dra.{NODE}.node.>",
            f"live.dra.{NODE}.private.team-a.>",
            f"live.dra.{NODE}.*.team-a.>",
            "_INBOX.>",
            "_INBOX.reader.>",
            f"_INBOX.{OTHER}.>",
            "$JS.EVENT.>",
        ]
        async with spy(server, USER) as reader:
            assert [s for s in subjects if not await reader.is_deaf(s)] == []

    @pytest.mark.parametrize(
        "config",
        [
            {"filter_subject": f"dra.{NODE}.claim.>"},
            {"filter_subject": ""},
            {"filter_subjects": [f"dra.{NODE}.claim.>"]},
            {"filter_subjects": [f"dra.{NODE}.claim.team-a.>", f"dra.{NODE}.private.>"]},
        ],
        ids=str,
    )
    async def test_to_filter_less_than_the_subject_says(
        self, server: EmbeddedServer, config: dict[str, Any]
    ) -> None:
        """The filter in the body is the one that the permission allows, or there is no consumer."""
        async with spy(server, USER) as reader:
            subjects = await read_all(reader, "claim", **config)

        assert all(s.startswith(f"dra.{NODE}.claim.team-a.") for s in subjects)

    @pytest.mark.parametrize(
        "body",
        [{"seq": 2}, {"next_by_subj": "dra.>", "seq": 2}, {"last_by_subj": "dra.>"}],
        ids=str,
    )
    async def test_to_get_another_record_than_the_subject_says(
        self, server: EmbeddedServer, body: dict[str, Any]
    ) -> None:
        """A body beside the subject gives no other record."""
        subject = f"{API}DIRECT.GET.EVENTS.dra.{NODE}.claim.team-a.uid-c.generated"
        async with spy(server, USER) as reader:
            answer = await reader.ask(subject, body)

        assert not holds_secret([answer])
        found = (answer.headers or {}).get("Nats-Subject", f"dra.{NODE}.claim.team-a.")
        assert found.startswith(f"dra.{NODE}.claim.team-a.")
