"""What client and service say to each other: each error arrives as what it was."""

from __future__ import annotations

import msgspec
import pytest

from claimlet.adapters.control.protocol import Fault, Reply, error_of, fault_of, subject_of
from claimlet.engine.errors import (
    AmbiguousError,
    NotFoundError,
    NotReadyError,
    RefusedError,
    UsageError,
)
from claimlet.events.errors import ClaimletError, FencedError, LogUnavailableError
from claimlet.events.subjects import InvalidTokenError


class TestFaults:
    @pytest.mark.parametrize(
        "error",
        [
            UsageError("no uid", hint="give one"),
            AmbiguousError("two of them", hint="--uid"),
            NotFoundError("nobody", hint="look elsewhere"),
            NotReadyError("not now", hint="later"),
            LogUnavailableError("no answer", hint="wait"),
            RefusedError(["a is bad", "b is bad"], hint="mend both"),
            FencedError("another writer", hint="stop"),
            ClaimletError("something", hint="anything"),
        ],
        ids=lambda error: type(error).__name__,
    )
    def test_arrive_whole(self, error: ClaimletError) -> None:
        """Text, hint, exit code and reasons are the client's as they were the service's."""
        data = msgspec.json.encode(fault_of(error))
        found = error_of(msgspec.json.decode(data, type=Fault))

        assert (str(found), found.hint) == (str(error), error.hint)
        assert found.exit_code == error.exit_code
        assert getattr(found, "reasons", ()) == getattr(error, "reasons", ())

    def test_of_newer_services_are_read(self) -> None:
        """Unknown fields are ignored, missing ones have their defaults."""
        reply = msgspec.json.decode(
            b'{"fault": {"message": "no", "colour": "red"}, "mood": 7}', type=Reply
        )

        assert reply.fault == Fault(message="no")


class TestSubjects:
    def test_have_the_nodes_token(self) -> None:
        """The dots of a node's name are no separators."""
        assert subject_of("node-a.example", "hello") == "claimlet.node-a_example.hello"

    @pytest.mark.parametrize("node", ["", "*", ">", "a b", "a_b", "A"])
    def test_take_no_other_names(self, node: str) -> None:
        """What is no node name reaches no subject."""
        with pytest.raises(InvalidTokenError):
            subject_of(node, "hello")
