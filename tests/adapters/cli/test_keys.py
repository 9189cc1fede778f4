"""`claimlet keys`: who the users of the log's server are, and new keys for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.adapters.cli.node import Node, call
from tests.adapters.cli.test_pod import told
from tests.adapters.service_process import ServiceProcess, short_directory

from claimlet.events.address import ServerAddress
from claimlet.events.errors import LogSetupError
from claimlet.events.jetstream.connection import Connection
from claimlet.events.server.keys import USERS, inbox_prefix
from claimlet.events.server.status import read_status


@pytest.fixture
def fresh() -> Iterator[Node]:
    """Give a node of this test's own, whose driver has prepared a pod."""
    with short_directory() as directory, ServiceProcess(directory) as service:
        node = Node(service, service.driver(Node.driver_name))
        node.prepared("p", "a")
        yield node


def public_keys(node: Node) -> dict[str, str]:
    """Return the public key of each user."""
    items = node.good("keys", "list", "-o", "json").json["items"]
    return {item["user"]: item["public_key"] for item in items}


def is_let_in(node: Node, user: str, seed: str) -> bool:
    """Return whether the server lets *user* in with *seed*."""
    status = read_status(node.service.settings.state_dir / "server.json")
    assert status is not None
    file = node.service.directory / "seed"
    file.write_text(seed)
    address = ServerAddress(
        url=f"nats://127.0.0.1:{status.port}", seed_file=file, inbox_prefix=inbox_prefix(user)
    )

    async def attempt() -> bool:
        try:
            connection = await Connection.open(address, name="test")
        except LogSetupError:
            return False
        await connection.close()
        return True

    return asyncio.run(attempt())


def seeds(node: Node) -> dict[str, str]:
    """Return the seed of each user."""
    directory: Path = node.service.settings.state_dir / "keys"
    return {user: (directory / f"{user}.nk").read_text().strip() for user in USERS}


class TestRotate:
    def test_ends_the_old_keys_under_a_running_service(self, fresh: Node) -> None:
        """The old keys are turned away, the new ones let in; the service goes on."""
        before, old = public_keys(fresh), seeds(fresh)
        assert is_let_in(fresh, "reader", old["reader"])

        ran = fresh.good("keys", "rotate")
        after = public_keys(fresh)
        assert set(after) == set(USERS)
        assert not set(after.values()) & set(before.values())
        assert [row[0] for row in ran.rows] == list(USERS)
        assert not any(seed in ran.out for seed in seeds(fresh).values())
        for user in USERS:
            assert not is_let_in(fresh, user, old[user])
            assert is_let_in(fresh, user, seeds(fresh)[user])

        fresh.prepared("q", "b")
        assert fresh.good("claims", "get", "ml/a", "-o", "json").json["state"] == "prepared"

    def test_of_one_user_leaves_the_others(self, fresh: Node) -> None:
        """Only who is named gets a new key; a service that starts again goes on with it."""
        before = public_keys(fresh)
        fresh.good("keys", "rotate", "reader")
        after = public_keys(fresh)

        assert {user for user in USERS if after[user] != before[user]} == {"reader"}
        fresh.service.kill()
        fresh.service.up()
        assert public_keys(fresh) == after

    def test_works_at_rest(self, fresh: Node) -> None:
        """Without a service the next one starts with the new keys."""
        before = public_keys(fresh)
        fresh.service.stop()
        fresh.good("keys", "rotate", "writer", "writer", "operator")
        after = public_keys(fresh)

        assert {user for user in USERS if after[user] != before[user]} == {"writer", "operator"}
        fresh.service.up()
        assert fresh.good("claims", "get", "ml/a", "-o", "json").json["state"] == "prepared"


class TestRefusals:
    def test_of_an_unknown_user(self, node: Node) -> None:
        """Exit 2, with those that there are."""
        ran = node.call("keys", "rotate", "nobody")
        assert "no user 'nobody'" in told(ran, 2)
        assert "its users are admin, writer, reader" in ran.err

    def test_without_a_log(self, tmp_path: Path) -> None:
        """Exit 4: there is nothing to rotate, and nothing is made."""
        ran = call("keys", "rotate", "--state-dir", str(tmp_path / "none"))
        assert "there is no log" in told(ran, 4)
        assert not (tmp_path / "none").exists()

    def test_of_anothers_server(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Exit 1: the keys of an existing server are its owner's to give."""
        monkeypatch.setenv("CLAIMLET_LOG__URL", "nats://127.0.0.1:1")

        assert "is not claimlet's own" in told(call("keys", "rotate"), 1)
        assert "is not claimlet's own" in told(call("keys", "list"), 1)
