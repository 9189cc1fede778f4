"""The real world: clocks that run, ids that differ, and tasks that nobody loses."""

from __future__ import annotations

import asyncio
from uuid import RFC_4122, UUID

import pytest

from claimlet.adapters.world import RealWorld
from claimlet.events.world import Task


class TestRealWorld:
    """Time, randomness, ids and tasks of this process."""

    async def test_clocks(self) -> None:
        """The clocks go on, and a timeout ends what takes longer."""
        world = RealWorld()
        before = world.wall_time_ns(), world.monotonic()
        await world.sleep(0.001)
        with pytest.raises(TimeoutError):
            async with world.timeout(0.001):
                await asyncio.Event().wait()

        assert world.wall_time_ns() > before[0]
        assert world.monotonic() > before[1]

    def test_ids_and_randomness(self) -> None:
        """Ids are UUIDs and differ; random numbers lie in their range."""
        world = RealWorld()
        ids = {world.new_id() for _ in range(100)}

        assert len(ids) == 100
        assert all(str(UUID(found)) == found for found in ids)
        assert {(UUID(found).version, UUID(found).variant) for found in ids} == {(4, RFC_4122)}
        assert all(0 <= world.random() < 1 for _ in range(100))

    async def test_leaves_no_task(self) -> None:
        """Whoever leaves a world leaves no task of it behind."""
        async with RealWorld() as world:
            task = world.spawn(asyncio.sleep(3600), name="sleeper")

            assert not task.done()

        assert task.done()

    async def test_takes_no_task_while_it_ends(self) -> None:
        """Work that comes too late is refused, and nothing of it is left unawaited."""
        refused: list[RuntimeError] = []

        async def late(world: RealWorld) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                try:
                    world.spawn(asyncio.sleep(0), name="too late")
                except RuntimeError as error:
                    refused.append(error)

        async with RealWorld() as world:
            world.spawn(late(world), name="late")
            await asyncio.sleep(0)

        assert len(refused) == 1

    async def test_failure_of_a_task(self) -> None:
        """An exception of a task ends everything and is raised where the world is left."""

        async def fail() -> None:
            raise ValueError("broken")

        others: list[Task] = []

        async def live() -> None:
            async with RealWorld() as world:
                others.append(world.spawn(asyncio.sleep(3600), name="other"))
                world.spawn(fail(), name="failing")
                await asyncio.Event().wait()

        with pytest.raises(ExceptionGroup) as caught:
            await live()

        assert caught.group_contains(ValueError, match="broken")
        assert others[0].done()

    async def test_failure_of_the_body(self) -> None:
        """An exception of whoever uses the world leaves it as it was raised."""

        async def live() -> None:
            async with RealWorld() as world:
                world.spawn(asyncio.sleep(3600), name="sleeper")
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await live()
