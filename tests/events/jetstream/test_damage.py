"""A damaged store: each kind is found, by its range, and passed over only as acknowledged."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.events.helpers import NODE, generated, node_fact, open_writer, private, settings_in

from claimlet.adapters.world import RealWorld
from claimlet.events.chain import CHAIN_HEADER, link
from claimlet.events.errors import (
    FencedError,
    InvalidRecordError,
    LogDamagedError,
)
from claimlet.events.jetstream import pull
from claimlet.events.jetstream.acknowledge import append_acknowledgement, fact_of
from claimlet.events.jetstream.connection import Connection
from claimlet.events.jetstream.public import PublicReader
from claimlet.events.jetstream.reader import replay
from claimlet.events.jetstream.stored import message_at
from claimlet.events.jetstream.survey import Damage, Survey, survey
from claimlet.events.record import GAP_WORD, Record, Stamp
from claimlet.events.segment import Line, encode_segment, write_segment
from claimlet.events.server.process import EmbeddedServer

pytestmark = pytest.mark.damage

LENGTH = 150
BY = Stamp(node=NODE, boot="boot-1", writer="operator")


def fill(directory: Path, *, text: str = "") -> Path:
    """Make a sound log of 150 records, every third of them with *text*, and stop its server."""

    async def append() -> None:
        async with (
            EmbeddedServer(settings_in(directory)) as server,
            open_writer(server.address("writer"), admin=server.address("admin")) as log,
        ):
            for number in range(LENGTH // 3):
                await log.append([generated(f"c-{number}", text=text), private(), node_fact()])

    asyncio.run(append())
    return directory


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the state directory of a log in one block."""
    return fill(tmp_path_factory.mktemp("small") / "state")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the state directory of a log in three blocks: 1 to 60, 61 to 120, 121 to 150."""
    directory = fill(tmp_path_factory.mktemp("large") / "state", text="x" * 400_000)
    assert len(blocks(directory)) == 3
    return directory


@pytest.fixture
def state_dir(small: Path, tmp_path: Path) -> Path:
    """Give a copy of the log in one block."""
    return Path(shutil.copytree(small, tmp_path / "state"))


@pytest.fixture
def blocks_dir(large: Path, tmp_path: Path) -> Path:
    """Give a copy of the log in three blocks."""
    return Path(shutil.copytree(large, tmp_path / "blocks"))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look soon at a server that gives nothing."""
    monkeypatch.setattr(pull, "_STALL_SECONDS", 0.1)
    monkeypatch.setattr(pull, "_BACKOFF_SECONDS_FIRST", 0.001)


def blocks(state_dir: Path) -> list[Path]:
    """Return the files of the log, in its order."""
    found = (state_dir / "js/jetstream/LOG/streams/EVENTS/msgs").glob("*.blk")
    return sorted(found, key=lambda path: int(path.stem))


def cut(state_dir: Path, size: int, *, fill: bool = False) -> None:
    """Take the last *size* bytes of the log away, or fill them with zeros."""
    path = blocks(state_dir)[-1]
    path.write_bytes(path.read_bytes()[:-size] + bytes(size if fill else 0))


def flip(state_dir: Path, sequence: int, *, offset: int = 0) -> Path:
    """Flip a bit of a record: in its data, or *offset* bytes after its beginning in the file."""
    for path in blocks(state_dir):
        data = bytearray(path.read_bytes())
        place = data.find(sequence.to_bytes(8, "little")) - 4
        if place < 0:
            continue
        if offset < 0:  # counted from the end
            offset += int.from_bytes(data[place : place + 4], "little") & 0x7FFF_FFFF
        at = place + offset if offset else data.index(b'"boot-1"', place) + 1
        data[at] ^= 1
        path.write_bytes(data)
        return state_dir
    raise AssertionError(f"there is no record {sequence}")


def unindexed(state_dir: Path) -> None:
    blocks(state_dir)[0].with_name("index.db").unlink()


@asynccontextmanager
async def connected(server: EmbeddedServer, user: str = "writer") -> AsyncIterator[Connection]:
    connection = await Connection.open(server.address(user), name="test")
    try:
        yield connection
    finally:
        await connection.close()


async def read(server: EmbeddedServer, archive: Path | None = None) -> list[Record]:
    """Return what the writer replays."""
    async with connected(server) as connection:
        records = replay(connection, NODE, world=RealWorld(), archive=archive)
        return [record async for record, _ in records]


async def read_publicly(server: EmbeddedServer, archive: Path | None = None) -> list[Record]:
    """Return what everybody reads."""
    async with connected(server, "reader") as connection:
        reader = PublicReader(connection, NODE, world=RealWorld(), archive=archive)
        return [record async for record in reader.replay()]


async def look(server: EmbeddedServer) -> Survey:
    async with connected(server) as connection:
        return await survey(connection, NODE, world=RealWorld())


async def damages(server: EmbeddedServer) -> list[Damage]:
    return list((await look(server)).damages)


async def acknowledge(
    server: EmbeddedServer,
    damage: Damage,
    *,
    found: Survey | None = None,
    copy: str = "",
    digest: str = "",
    end: bytes = b"",
) -> int:
    """Acknowledge *damage*; *end* is the last link of the copy, where there is one."""
    found = found or await look(server)
    async with connected(server) as connection:
        return await append_acknowledgement(
            connection,
            BY,
            fact_of(damage, why="a bad disk", copy=copy, copy_digest=digest),
            found=found,
            link_before=end or found.link,
            actor="user/ada",
            world=RealWorld(),
        )


def ranges(found: Sequence[Damage]) -> list[tuple[int, int, int]]:
    """Return the ranges, and how many records are missing in each."""
    return [(damage.first, damage.last, damage.missing) for damage in found]


#: What happens to a store → first and last record of the damage.
DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[int, int]]] = {
    "torn tail": (lambda d: cut(d, 100), (150, 150)),
    "zeroed tail": (lambda d: cut(d, 1000, fill=True), (149, 150)),
    "flipped bit": (lambda d: flip(d, 71), (71, 71)),
    "flipped bit in the last record": (lambda d: flip(d, 150), (150, 150)),
}
#: The same for a store of three blocks.
BLOCK_DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[int, int]]] = {
    "flipped bit, no index": (lambda d: unindexed(flip(d, 71)), (71, 120)),
    "flipped length": (lambda d: flip(d, 71, offset=2), (71, 120)),
    "flipped sequence": (lambda d: flip(d, 71, offset=5), (71, 120)),
    "first block gone": (lambda d: blocks(d)[0].unlink(), (1, 60)),
    "middle block gone": (lambda d: blocks(d)[1].unlink(), (61, 120)),
    "last block gone": (lambda d: blocks(d)[2].unlink(), (121, 150)),
}


class TestDamage:
    @pytest.mark.parametrize("kind", DAMAGE)
    async def test_is_found_and_passed_over_as_acknowledged(
        self, state_dir: Path, kind: str
    ) -> None:
        """No replay folds over it; its exact range is told, and given up by one fact alone."""
        await self.check(state_dir, *DAMAGE[kind])

    @pytest.mark.parametrize("kind", BLOCK_DAMAGE)
    async def test_of_a_whole_block_is_found_too(self, blocks_dir: Path, kind: str) -> None:
        """What the server skips without a word, the rest of a block or all of it, is one range."""
        await self.check(blocks_dir, *BLOCK_DAMAGE[kind])

    async def check(
        self, state_dir: Path, change: Callable[[Path], object], damaged: tuple[int, int]
    ) -> None:
        first, last = damaged
        change(state_dir)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            with pytest.raises(LogDamagedError) as caught:
                await read(server)
            found = await look(server)
            sequence = await acknowledge(server, found.damages[0], found=found)
            records, publicly = await read(server), await read_publicly(server)

        assert "claimlet doctor" in caught.value.hint
        assert ranges(found.damages) == [(first, last, last - first + 1)]
        assert sequence == LENGTH + 1
        left = [n for n in range(1, LENGTH + 1) if not first <= n <= last]
        assert [r.sequence for r in records if r.word != GAP_WORD] == [*left, LENGTH + 1]
        assert [r.sequence for r in records if r.word == GAP_WORD] == [last]
        assert publicly == [r for r in records if r.word != "config_recorded"]

    @pytest.mark.parametrize("kind", ["torn tail", "flipped bit"])
    async def test_the_log_goes_on_after_it(self, state_dir: Path, kind: str) -> None:
        """A writer opens the log, appends, and all of it is replayed after another start."""
        DAMAGE[kind][0](state_dir)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            (damage,) = await damages(server)
            await acknowledge(server, damage)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            async with open_writer(server.address("writer")) as log:
                await log.append([node_fact()])
            async with open_writer(server.address("writer")) as log:
                await log.append([node_fact()])
            assert [record.sequence for record in await read(server)][-3:] == [151, 152, 153]

    async def test_of_the_index_alone_is_none(self, state_dir: Path) -> None:
        """The server makes its index again from the records."""
        blocks(state_dir)[0].with_name("index.db").write_bytes(b"garbage" * 50)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            assert len(await read(server)) == LENGTH
            assert await damages(server) == []

    async def test_one_flipped_bit_is_found_in_each_field(self, state_dir: Path) -> None:
        """Whichever field of a record as it lies in the file has changed, the record is lost."""
        offsets = {"data": 0, "time": 13, "subject length": 21, "subject": 25, "header": 150}
        offsets["checksum"] = -1
        sequences = range(21, 91, 10)
        for sequence, offset in zip(sequences, offsets.values(), strict=False):
            flip(state_dir, sequence, offset=offset)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            found = await look(server)
            for damage in found.damages:
                with pytest.raises(LogDamagedError):
                    await read(server)
                await acknowledge(server, damage)
            assert await damages(server) == []

        assert ranges(found.damages) == [(n, n, 1) for n in sequences[: len(offsets)]]

    async def test_a_hole_that_grows_is_acknowledged_anew(self, blocks_dir: Path) -> None:
        """Where the records after a gap are lost too, both are one damage with one range."""
        flip(blocks_dir, 71)
        async with EmbeddedServer(settings_in(blocks_dir)) as server:
            (damage,) = await damages(server)
            await acknowledge(server, damage)
        unindexed(blocks_dir)
        async with EmbeddedServer(settings_in(blocks_dir)) as server:
            with pytest.raises(LogDamagedError):
                await read(server)
            with pytest.raises(LogDamagedError):
                await read_publicly(server)
            (damage,) = await damages(server)
            await acknowledge(server, damage)
            records = await read(server)

        assert ranges([damage]) == [(71, 120, 50)]
        assert [r.sequence for r in records if r.word == GAP_WORD] == [120]

    async def test_two_holes_are_two_damages(self, state_dir: Path) -> None:
        """Each has its own range and its own acknowledgement."""
        flip(state_dir, 10)
        flip(state_dir, 71)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            first, second = found = await damages(server)
            await acknowledge(server, first)
            with pytest.raises(LogDamagedError):
                await read(server)
            await acknowledge(server, second)
            records = await read(server)

        assert ranges(found) == [(10, 10, 1), (71, 71, 1)]
        assert [r.sequence for r in records if r.word == GAP_WORD] == [10, 71]

    async def test_an_acknowledgement_covers_nothing_else(self, state_dir: Path) -> None:
        """One of another range, or with another link, is no leave to go on."""
        flip(state_dir, 71)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            (damage,) = await damages(server)
            for wrong in (
                replace(damage, link_before=bytes(32)),
                replace(damage, link_after=bytes(32)),
            ):
                await acknowledge(server, wrong)
                with pytest.raises(LogDamagedError):
                    await read(server)
            await acknowledge(server, replace(damage, missing=1))
            assert len(await read(server)) == LENGTH + 3

    async def test_an_acknowledgement_is_fenced(self, state_dir: Path) -> None:
        """What was found must still be the log's end."""
        flip(state_dir, 71)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            (damage,) = await damages(server)
            async with connected(server) as connection:
                found = await survey(connection, NODE, world=RealWorld())
                await acknowledge(server, damage)
                with pytest.raises(FencedError, match="meanwhile"):
                    await append_acknowledgement(
                        connection,
                        BY,
                        fact_of(damage, why="again"),
                        found=found,
                        link_before=found.link,
                        actor="",
                        world=RealWorld(),
                    )


class TestRecordsThatWereChanged:
    """Records that are there, and not what was written: whoever can write to the log did it."""

    async def publish(
        self, server: EmbeddedServer, data: bytes, *, links: bytes, subject: str = ""
    ) -> None:
        async with connected(server) as connection:
            await connection.request(
                subject or "dra.node-a_example.node.source_synced",
                data,
                headers={CHAIN_HEADER: links.hex()},
            )

    async def forge(self, server: EmbeddedServer, field: str) -> int:
        """Add three sound records, change *field* of the second, and return its sequence."""
        last = (await look(server)).last
        async with connected(server) as connection:
            end = await message_at(connection, "EVENTS", last)
            template = await message_at(connection, "EVENTS", LENGTH)
        assert end is not None
        assert template is not None
        previous, data = end.link, json.loads(template.data)
        subject = "dra.node-a_example.node.source_synced"
        for number in range(3):
            content = json.dumps(data | {"id": f"{field}-{number}"}).encode()
            previous = link(previous, subject, content)
            place, links = subject, previous
            if number == 1 and field == "subject":
                place = "dra.node-a_example.node.source_synceD"
            elif number == 1 and field == "link":
                links = bytes([previous[0] ^ 1]) + previous[1:]
            elif number == 1:
                value = f"{field}-1" if field == "id" else str(data[field])
                content = content.replace(value.encode(), value[:-1].encode() + b"~", 1)
            await self.publish(server, content, links=links, subject=place)
        return last + 2

    async def test_break_the_chain_there(self, state_dir: Path) -> None:
        """A change in any field breaks the chain at that record, and at no other."""
        given_up = []
        async with EmbeddedServer(settings_in(state_dir)) as server:
            for field in ("t", "id", "ts", "boot", "node", "writer", "subject", "link"):
                forged = await self.forge(server, field)
                with pytest.raises(LogDamagedError, match=f"chain breaks at record {forged}"):
                    await read(server)
                found = await look(server)
                await acknowledge(server, found.damages[0], found=found)
                assert ranges(found.damages) == [(forged, forged, 0)], field
                place = found.damages[0].subjects[0]
                assert place.startswith("dra.node-a_example.node.source_sync")
                given_up.append(forged)
            records, publicly = await read(server), await read_publicly(server)

        assert [r.sequence for r in records if r.word == GAP_WORD] == given_up
        assert [r.sequence for r in records] == list(range(1, LENGTH + 1 + 4 * len(given_up)))
        assert publicly == [r for r in records if r.word != "config_recorded"]

    async def test_bytes_that_are_no_record(self, state_dir: Path) -> None:
        """Garbage with a link that follows is named with its sequence, and can be given up."""
        async with EmbeddedServer(settings_in(state_dir)) as server:
            async with connected(server) as connection:
                found = await survey(connection, NODE, world=RealWorld())
            place = "dra.node-a_example.claim.team-a.uid-c.prepared"
            links = link(found.link, place, b"{garbage")
            await self.publish(server, b"{garbage", links=links, subject=place)
            with pytest.raises(InvalidRecordError, match="record 151 cannot be read"):
                await read(server)
            (damage,) = await damages(server)
            await acknowledge(server, damage)
            records = await read(server)

        assert (damage.first, damage.last, damage.subjects) == (151, 151, (place,))
        assert [r.word for r in records][-2:] == [GAP_WORD, "log_gap_acknowledged"]

    async def test_a_record_without_a_link(self, state_dir: Path) -> None:
        """Something that is not claimlet's is a damage of its own."""
        async with EmbeddedServer(settings_in(state_dir)) as server:
            async with connected(server) as connection:
                await connection.request("dra.node-a_example.node.stopped", b"{}")
            async with connected(server) as connection:
                await connection.request("dra.node-a_example.node.stopped", b"{}")
            assert ranges(await damages(server)) == [(151, 152, 0)]


class TestCopies:
    async def lines(self, directory: Path, first: int, last: int) -> list[Line]:
        """Return records of the sound log, as another copy of it has them."""
        async with (
            EmbeddedServer(settings_in(directory)) as server,
            connected(server) as connection,
        ):
            found = [await message_at(connection, "EVENTS", n) for n in range(first, last + 1)]
        return [
            Line(
                sequence=message.sequence,
                subject=message.subject,
                id=message.id,
                link=message.link.hex(),
                data=message.data.decode(),
            )
            for message in found
            if message is not None
        ]

    @pytest.mark.parametrize("kind", ["flipped bit", "torn tail"])
    async def test_takes_the_place_of_what_is_lost(
        self, small: Path, state_dir: Path, kind: str
    ) -> None:
        """Records from another copy of the log are folded where they were, and nothing is lost."""
        change, (first, last) = DAMAGE[kind]
        lines = await self.lines(small, first, last)
        archive = state_dir / "archive"
        archive.mkdir()
        digest = write_segment(archive / "copy.jsonl", encode_segment(lines))
        change(state_dir)
        async with EmbeddedServer(settings_in(state_dir)) as server:
            (damage,) = await damages(server)
            end = bytes.fromhex(lines[-1].link) if last == LENGTH else b""
            await acknowledge(server, damage, copy="copy.jsonl", digest=digest, end=end)
            records = await read(server, archive)
            publicly = await read_publicly(server, archive)
            (archive / "copy.jsonl").write_bytes(encode_segment(lines) + b"\n")
            with pytest.raises(LogDamagedError, match="its digest is not the one"):
                await read(server, archive)
            (archive / "copy.jsonl").unlink()
            for other in (archive, None):
                with pytest.raises(LogDamagedError, match="is not in the archive"):
                    await read(server, other)

        assert [r.sequence for r in records] == list(range(1, LENGTH + 2))
        assert {r.word for r in records} == {
            "generated",
            "config_recorded",
            "source_synced",
            "log_gap_acknowledged",
        }
        assert publicly == [r for r in records if r.word != "config_recorded"]
