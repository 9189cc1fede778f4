"""Locks on sets of keys: whole, in turn, and given back whatever happens to the waiter."""

from __future__ import annotations

import asyncio

import pytest
from tests.simulation.virtual import simulated

from claimlet.engine.layer import Layer
from claimlet.engine.locks import KeyCounts, KeyLocks


async def turn() -> None:
    """Let everything that is ready run."""
    for _ in range(3):
        await asyncio.sleep(0)


class TestKeyLocks:
    @simulated
    async def test_takes_all_or_nothing(self) -> None:
        """A set is taken as a whole; one key of it that is held makes it wait."""
        locks = KeyLocks()

        assert locks.try_take({"a", "b"})
        assert not locks.try_take({"b", "c"})
        assert "c" not in locks
        assert set(locks) == {"a", "b"}

    @simulated
    async def test_goes_in_turn(self) -> None:
        """A later asker does not overtake an earlier one whose keys it shares."""
        locks = KeyLocks()
        order: list[str] = []

        async def work(name: str, *keys: str) -> None:
            taken = await locks.take(keys)
            order.append(name)
            await asyncio.sleep(1)
            locks.release(taken)

        async with asyncio.TaskGroup() as group:
            for name, keys in (("1", "a"), ("2", "ab"), ("3", "b"), ("4", "c")):
                group.create_task(work(name, *keys))
                await turn()

        assert order == ["1", "4", "2", "3"]

    @simulated
    async def test_try_take_does_not_overtake(self) -> None:
        """Who only tries gets nothing that somebody waits for."""
        locks = KeyLocks()
        await locks.take("a")
        waiting = asyncio.ensure_future(locks.take("ab"))
        await turn()

        assert not locks.try_take("b")
        locks.release("a")
        assert await waiting == {"a", "b"}

    @simulated
    async def test_a_cancelled_waiter_leaves_the_queue(self) -> None:
        """Those behind a waiter that was cancelled get their turn."""
        locks = KeyLocks()
        await locks.take("a")
        first = asyncio.ensure_future(locks.take("ab"))
        await turn()
        second = asyncio.ensure_future(locks.take("b"))
        await turn()
        first.cancel()
        await turn()

        assert second.done()
        assert set(locks) == {"a", "b"}

    @simulated
    async def test_a_waiter_cancelled_after_its_grant_gives_back(self) -> None:
        """Keys that were granted to a waiter in the moment of its end are not lost."""
        locks = KeyLocks()
        await locks.take("a")
        waiting = asyncio.ensure_future(locks.take("a"))
        await turn()
        locks.release("a")
        waiting.cancel()
        await turn()

        assert waiting.cancelled()
        assert locks.try_take("a")

    @simulated
    async def test_a_grant_skips_a_dead_waiter(self) -> None:
        """A release right after a cancellation passes the keys on."""
        locks = KeyLocks()
        await locks.take("a")
        dead = asyncio.ensure_future(locks.take("a"))
        await turn()
        alive = asyncio.ensure_future(locks.take("a"))
        await turn()
        dead.cancel()
        locks.release("a")
        await turn()

        assert dead.cancelled()
        assert await alive == {"a"}


class TestKeyCounts:
    def test_counts_calls(self) -> None:
        """A key is busy until as many calls have ended as have begun."""
        counts = KeyCounts()
        counts.add(["a", "b"])
        counts.add(["a"])
        counts.remove(["a", "b"])

        assert "a" in counts
        assert "b" not in counts
        assert (list(counts), len(counts)) == (["a"], 1)


class TestLayer:
    def test_hides_its_changes_from_what_is_below(self) -> None:
        """Writes and deletions stay in the layer."""
        below = {"a": 1, "b": 2}
        layer = Layer(below)
        layer["b"] = 3
        layer["c"] = 4
        del layer["a"]

        assert dict(layer) == {"b": 3, "c": 4}
        assert len(layer) == 2
        assert below == {"a": 1, "b": 2}

    def test_a_key_that_is_gone_is_gone(self) -> None:
        """A deleted key is missing, and may be written again."""
        layer = Layer({"a": 1})
        del layer["a"]
        with pytest.raises(KeyError):
            layer["a"]
        layer["a"] = 2

        assert layer.get("b") is None
        assert layer["a"] == 2

    def test_lies_on_another_layer(self) -> None:
        """Layers stack, and can be emptied."""
        upper = Layer(Layer({"a": 1}))
        upper.clear()

        assert dict(upper) == {}
