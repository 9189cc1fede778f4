"""Subjects: one token for each part, and nothing that could aim a fact elsewhere."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.events.samples import SAMPLES

from claimlet.events.facts import (
    CLAIM_FACTS,
    FACTS,
    NODE_FACTS,
    POD_FACTS,
    ConfigRecorded,
    Fact,
    Generated,
)
from claimlet.events.record import Record
from claimlet.events.subjects import (
    InvalidTokenError,
    check_claim_name,
    check_namespace,
    check_uid,
    node_token,
    subject,
)
from claimlet.events.values import ClaimRef, ClaimUid, PodRef, PodUid

CLAIM = ClaimRef(uid=ClaimUid("3f2a-1"), namespace="team-a", name="gpu")
POD = PodRef(uid=PodUid("77-p"), namespace="team-b", name="train")


def record(fact: Fact, *, node: str = "node-a", claim: ClaimRef | None = CLAIM) -> Record:
    """Return a record of *fact* about `CLAIM` and `POD`."""
    return Record(
        sequence=1,
        word=fact.word,
        fact=fact,
        id="id",
        time="",
        node=node,
        boot="b",
        writer="w",
        claim=claim,
        pod=POD,
    )


class TestSubject:
    @pytest.mark.parametrize("word", CLAIM_FACTS)
    def test_of_a_claim_fact_names_namespace_uid_and_word(self, word: str) -> None:
        """One claim, one namespace and one word can each be subscribed to."""
        assert subject(record(SAMPLES[word])) == f"dra.node-a.claim.team-a.3f2a-1.{word}"

    @pytest.mark.parametrize("word", POD_FACTS)
    def test_of_a_pod_fact_names_the_pod(self, word: str) -> None:
        """A pod's facts lie under the pod, whatever claim they mention."""
        assert subject(record(SAMPLES[word])) == f"dra.node-a.pod.team-b.77-p.{word}"

    @pytest.mark.parametrize("word", NODE_FACTS)
    def test_of_a_node_fact_names_nothing_else(self, word: str) -> None:
        """The node's facts lie under the node."""
        assert subject(record(SAMPLES[word])) == f"dra.node-a.node.{word}"

    def test_of_opaque_parameters_is_private(self) -> None:
        """Driver parameters lie where the reader may not look."""
        assert (
            subject(record(SAMPLES[ConfigRecorded.word]))
            == "dra.node-a.private.team-a.3f2a-1.config_recorded"
        )

    def test_needs_whom_it_is_about(self) -> None:
        """A claim fact without a claim cannot be stored."""
        with pytest.raises(InvalidTokenError, match="says of no claim"):
            subject(record(Generated(), claim=None))

    @given(st.text(max_size=80), st.text(max_size=80))
    def test_has_as_many_tokens_as_it_should(self, uid: str, namespace: str) -> None:
        """Whatever names come in: refused, or a subject of exactly six tokens without wildcards."""
        ref = ClaimRef(uid=ClaimUid(uid), namespace=namespace, name="c")
        try:
            made = subject(record(Generated(), claim=ref))
        except InvalidTokenError:
            return

        assert made.split(".") == ["dra", "node-a", "claim", namespace, uid, "generated"]
        assert not set(made) & set("*> \t\r\n")


class TestTokens:
    @pytest.mark.parametrize(
        "uid", ["", "a.b", "*", ">", "a b", "a\n", "a" * 65, "ü", "a_b", "a\0", "$JS"]
    )
    def test_a_uid_of_other_characters_is_refused(self, uid: str) -> None:
        """Letters, digits and dashes, at most 64."""
        with pytest.raises(InvalidTokenError, match="no UID"):
            check_uid(uid)

    @pytest.mark.parametrize("namespace", ["", "A", "-a", "a-", "a.b", "a" * 64, "a\n", "ä"])
    def test_a_namespace_is_a_dns_label(self, namespace: str) -> None:
        """As in Kubernetes."""
        with pytest.raises(InvalidTokenError, match="no namespace"):
            check_namespace(namespace)

    @pytest.mark.parametrize("name", ["", "A", "a..b", ".a", "a.", "a" * 254, "a_b"])
    def test_an_object_name_is_a_dns_subdomain(self, name: str) -> None:
        """As in Kubernetes."""
        with pytest.raises(InvalidTokenError, match="no object name"):
            check_claim_name(name)

    @given(st.from_regex(r"[a-z0-9]{1,10}(\.[a-z0-9]{1,10}){0,3}", fullmatch=True))
    def test_a_node_keeps_its_identity(self, node: str) -> None:
        """Two nodes never share a token: underscores cannot be in a name."""
        assert node_token(node).replace("_", ".") == node

    @given(st.text(max_size=20))
    def test_a_node_name_with_an_underscore_is_refused(self, text: str) -> None:
        """It would be another node's token."""
        assume("_" not in text)

        with pytest.raises(InvalidTokenError, match="no node name"):
            node_token(f"{text}_a")


def test_there_is_a_sample_of_every_fact() -> None:
    """The tables above leave no fact out."""
    assert set(SAMPLES) == set(FACTS)
