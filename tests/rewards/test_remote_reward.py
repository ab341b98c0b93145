"""A reward model behind SGLang's /classify, against a real server that speaks its shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.rewards.remote_reward import RemoteRewardModel
from rufus_core.types import Message
from tests.rewards.endpoint import Endpoint, Reply, failed, in_turn

PROMPT = (Message(role="user", content="Hi"),)


def render(prompt: Sequence[Message], response: str) -> str:
    return f"{prompt[-1].content}|{response}"


def embeddings(*scores: Any) -> Reply:
    return Reply(payload=[{"embedding": [score], "meta_info": {"id": "x", "prompt_tokens": 3}} for score in scores])


def by_length(body: dict[str, Any]) -> Reply:
    return embeddings(*(float(len(text)) for text in body["text"]))


def at(endpoint: Endpoint, **options: Any) -> RemoteRewardModel:
    return RemoteRewardModel("skywork", endpoint.root, render, "key", retry_wait_seconds=0.0, **options)


def test_scores_come_in_order_and_in_batches() -> None:
    responses = ["a" * number for number in (5, 1, 3, 2, 4)]
    with Endpoint(by_length) as endpoint, at(endpoint, batch_size=2) as model:
        assert model.scores([(PROMPT, each) for each in responses]) == [8.0, 4.0, 6.0, 5.0, 7.0]
        assert model.scores([]) == []
    assert [path for path, _, _ in endpoint.requests] == ["/classify"] * 3
    assert endpoint.requests[0][2] == {"model": "skywork", "text": ["Hi|aaaaa", "Hi|a"]}
    assert endpoint.requests[0][1] == "Bearer key"


@pytest.mark.parametrize(
    "reply",
    [
        failed(503),
        embeddings(1.0, 2.0),
        embeddings(),
        embeddings("1"),
        embeddings(True),
        Reply(payload=[{"embedding": [0.1, 0.2]}]),
        Reply(payload={"embedding": [0.1]}),
        Reply(payload=b"{"),
    ],
    ids=range(8),
)
def test_what_is_no_score_is_asked_for_again_and_never_zero(reply: Reply) -> None:
    with Endpoint(in_turn([reply, reply, embeddings(1.5)])) as endpoint, at(endpoint) as model:
        assert model.scores([(PROMPT, "a")]) == [1.5]
    with Endpoint(in_turn([reply])) as endpoint, at(endpoint) as model, pytest.raises(InfrastructureError):
        model.scores([(PROMPT, "a")])


def test_a_score_that_is_no_number_is_passed_on_as_such() -> None:
    with Endpoint(lambda _: embeddings(math.nan)) as endpoint, at(endpoint) as model:
        assert math.isnan(model.scores([(PROMPT, "a")])[0])


def test_a_server_that_refuses_us_is_a_users_mistake() -> None:
    with Endpoint(lambda _: failed(404)) as endpoint, at(endpoint) as model, pytest.raises(ConfigError):
        model.scores([(PROMPT, "a")])
