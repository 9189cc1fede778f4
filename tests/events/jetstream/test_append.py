"""Appending: in order, all or nothing validated, folded before the caller hears."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from pathlib import Path

import pytest
from tests.events.helpers import (
    NODE,
    PLAIN_TEMPLATE,
    eventually,
    everything,
    freeze,
    generated,
    node_fact,
    open_writer,
    pod_fact,
    private,
    settings_in,
)

from claimlet.events.chain import genesis, link
from claimlet.events.errors import InvalidRecordError, LogUnavailableError
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.pipe import PipeSettings
from claimlet.events.record import BODY_BYTES_MAX, Draft, Record
from claimlet.events.server.process import EmbeddedServer
from claimlet.events.subjects import InvalidTokenError
from claimlet.events.values import ClaimRef, ClaimUid


class TestAppend:
    async def test_returns_the_last_sequence_of_the_group(self, server: EmbeddedServer) -> None:
        """Sequences start at 1 and have no holes."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            first = await log.append([node_fact()])
            last = await log.append([generated("a"), private("a"), pod_fact()])

            assert (first, last, log.last_sequence) == (1, 4, 4)

    async def test_stamps_what_it_stores(self, server: EmbeddedServer) -> None:
        """Every record carries its process and whom it is about."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append([generated("a")])
        [record] = await everything(server)

        assert (record.node, record.boot, record.writer) == (NODE, "boot-1", "writer-1")
        assert record.claim == generated("a").claim
        assert record.time.endswith("Z")

    async def test_folds_in_order_before_the_caller_hears(self, server: EmbeddedServer) -> None:
        """Memory never runs ahead of the log, nor a caller ahead of memory."""
        folded: list[Record] = []
        async with open_writer(
            server.address("writer"), admin=server.address("admin"), fold=folded.append
        ) as log:

            async def one(number: int) -> bool:
                last = await log.append([generated(f"c-{number}"), generated(f"d-{number}")])
                return folded[last - 1].claim == generated(f"d-{number}").claim

            assert all(await asyncio.gather(*(one(number) for number in range(100))))
        assert [record.sequence for record in folded] == list(range(1, 201))
        assert list(await everything(server)) == folded

    async def test_keeps_groups_together(self, server: EmbeddedServer) -> None:
        """Two callers' facts do not mix."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await asyncio.gather(*(log.append([generated(f"c-{n}")] * 7) for n in range(40)))
        names = [record.claim.name for record in await everything(server) if record.claim]

        assert all(len(set(names[start : start + 7])) == 1 for start in range(0, 280, 7))

    async def test_of_nothing_does_nothing(self, server: EmbeddedServer) -> None:
        """An empty group is done at once."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            assert await log.append([]) == 0

    async def test_takes_the_largest_record(self, server: EmbeddedServer) -> None:
        """Half a megabyte passes through the server's own bounds."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            text = "x" * (BODY_BYTES_MAX - 1024)

            assert await log.append([generated(text=text)] * 40) == 40

    async def test_goes_on_after_what_is_stored(self, server: EmbeddedServer) -> None:
        """A second start folds the first one's records and appends after them."""
        folded: list[Record] = []
        admin = server.address("admin")
        async with open_writer(server.address("writer"), admin=admin) as log:
            await log.append([generated("a")] * 3)
            head = log.head
        async with open_writer(server.address("writer"), fold=folded.append, writer="w2") as log:
            assert (len(folded), log.head) == (3, head)
            assert await log.append([generated("b")]) == 4

    async def test_writes_a_chain_that_starts_at_the_node(self, server: EmbeddedServer) -> None:
        """Anybody can compute the links again from the stored bytes."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await log.append([generated("a"), node_fact()])
            connection = await Connection.open(server.address("writer"), name="test")
            expected = genesis(NODE)
            for sequence in (1, 2):
                answer = await connection.request(
                    "$JS.API.STREAM.MSG.GET.EVENTS", b'{"seq":%d}' % sequence
                )
                message = json.loads(answer.data)["message"]
                expected = link(expected, message["subject"], base64.b64decode(message["data"]))

                assert expected.hex().encode() in base64.b64decode(message["hdrs"])
            await connection.close()
            assert log.head.link == expected

    async def test_works_on_a_server_that_asks_nobody(self, tmp_path: Path) -> None:
        """A plain development server by its URL alone."""
        async with EmbeddedServer(
            settings_in(tmp_path / "state", template=PLAIN_TEMPLATE)
        ) as plain:
            address = type(plain.address("writer"))(url=f"nats://127.0.0.1:{plain.port}")
            async with open_writer(address) as log:
                assert await log.append([generated()]) == 1


class TestValidation:
    @pytest.mark.parametrize(
        ("bad", "error"),
        [
            (generated(text="x" * BODY_BYTES_MAX), InvalidRecordError),
            (generated("a.*"), InvalidTokenError),
            (
                Draft(
                    fact=generated().fact,
                    claim=ClaimRef(uid=ClaimUid("u"), namespace="a.b", name="c"),
                ),
                InvalidTokenError,
            ),
        ],
        ids=["too large", "uid", "namespace"],
    )
    async def test_issues_all_or_nothing(
        self, server: EmbeddedServer, bad: Draft, error: type[Exception]
    ) -> None:
        """One fact that cannot be stored stops its whole group, and nobody else's."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            with pytest.raises(error):
                await log.append([generated("a"), bad, generated("b")])

            assert await log.append([generated("c")]) == 1


class TestWaiting:
    async def test_a_late_fact_is_folded_when_it_lands(self, server: EmbeddedServer) -> None:
        """The caller gives up; the fact does not."""
        folded: list[Record] = []
        pipe = PipeSettings(append_timeout_seconds=0.2, ack_timeout_seconds=0.1)
        async with open_writer(
            server.address("writer"), admin=server.address("admin"), fold=folded.append, pipe=pipe
        ) as log:
            await log.append([generated("a")])
            await freeze(server.pid)
            with pytest.raises(LogUnavailableError, match="did not answer") as caught:
                await log.append([generated("b")])
            assert (caught.value.exit_code, len(folded)) == (4, 1)
            await eventually(lambda: not log.is_available)
            os.kill(server.pid, signal.SIGCONT)
            await eventually(lambda: len(folded) == 2)

            assert [r.claim.name for r in folded if r.claim] == ["a", "b"]
            await eventually(lambda: log.is_available)

    async def test_a_cancelled_caller_leaves_its_fact(self, server: EmbeddedServer) -> None:
        """What was issued cannot be taken back."""
        folded: list[Record] = []
        async with open_writer(
            server.address("writer"), admin=server.address("admin"), fold=folded.append
        ) as log:
            await freeze(server.pid)
            task = asyncio.create_task(log.append([generated("a")]))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            os.kill(server.pid, signal.SIGCONT)
            await eventually(lambda: len(folded) == 1)

            assert await log.append([generated("b")]) == 2

    async def test_a_full_queue_makes_callers_wait(self, server: EmbeddedServer) -> None:
        """The queue is bounded: who does not get in has issued nothing, and hears so."""
        pipe = PipeSettings(append_timeout_seconds=0.3, ack_timeout_seconds=0.1, queue_length_max=4)
        async with open_writer(
            server.address("writer"), admin=server.address("admin"), pipe=pipe
        ) as log:
            await freeze(server.pid)
            results = await asyncio.gather(
                *(log.append([generated(f"c-{n}")]) for n in range(7)), return_exceptions=True
            )
            hints = [result.hint for result in results if isinstance(result, LogUnavailableError)]
            assert [hint[:10] for hint in hints] == ["nothing is"] * 4 + ["nothing wa"] * 3
            os.kill(server.pid, signal.SIGCONT)
            await eventually(lambda: log.last_sequence == 4)

            assert await log.append([generated("d")]) == 5

    async def test_a_small_queue_and_window_only_slow_down(self, server: EmbeddedServer) -> None:
        """Many more callers than places all get theirs."""
        pipe = PipeSettings(append_timeout_seconds=20, queue_length_max=8, window_length_max=3)
        async with open_writer(
            server.address("writer"), admin=server.address("admin"), pipe=pipe
        ) as log:
            results = await asyncio.gather(*(log.append([generated()] * 2) for _ in range(60)))

        assert sorted(results) == list(range(2, 121, 2))

    async def test_a_closed_log_answers_who_waits(self, server: EmbeddedServer) -> None:
        """Nobody hangs on a log that was closed."""
        async with open_writer(server.address("writer"), admin=server.address("admin")) as log:
            await freeze(server.pid)
            task = asyncio.create_task(log.append([generated("a")]))
            await asyncio.sleep(0)
            os.kill(server.pid, signal.SIGCONT)
            await log.close()

            with pytest.raises(LogUnavailableError, match="closed"):
                await task
            with pytest.raises(LogUnavailableError, match="closed"):
                await log.append([generated("b")])
