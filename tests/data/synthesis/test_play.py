"""Dialogues held end to end: by scripts alone, over real HTTP, with failures, and again after an early end."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rufus_core.data.constraints import library
from rufus_core.data.constraints.compose import find_witness
from rufus_core.data.synthesis.dialogue import FailureReason, SynthesisSettings, Tactic
from rufus_core.data.synthesis.play import Synthesis, synthesise
from rufus_core.data.synthesis.scripted import ScriptedAssistant, ScriptedUser
from rufus_core.errors import ConfigError, DataError, InfrastructureError
from rufus_core.ports.engine import ChatModel
from rufus_core.rewards.chat_client import ChatClient
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.rubrics import JUDGED, score_rubrics
from rufus_core.types import Message
from tests.rewards.endpoint import Endpoint, Reply, failed, said

SETTINGS = SynthesisSettings(count=24, min_turns=2, max_turns=4)
KINDS = dict.fromkeys((*library.KINDS, *JUDGED), "its arguments")
ASSISTANTS = (ScriptedAssistant(2), ScriptedAssistant(5))


def run(journal: Path, user: ChatModel | None = None, assistants: Sequence[ChatModel] = ASSISTANTS) -> Synthesis:
    return synthesise(SETTINGS, 0, user or ScriptedUser(), assistants, KINDS, journal, workers=4)


def test_scripts_alone_give_problems_that_can_be_solved(tmp_path: Path) -> None:
    made = run(tmp_path / "journal.jsonl")
    assert made.counts == {"asked": 24, "dialogues": 24}
    judge = LexicalJudge()
    for dialogue in made.dialogues:
        problem = dialogue.problem
        roles = [message.role for message in problem.prompt if message.role != "system"]
        assert roles == ["user", "assistant"] * (len(dialogue.spec.tactics) - 1) + ["user"]
        assert (problem.prompt[0].role == "system") == dialogue.spec.has_system
        rubrics = problem.ground_truth["rubrics"]
        assert 2 <= len(rubrics) <= SETTINGS.max_rubrics
        answer = next(text for seed in range(9) if (text := find_witness(rubrics, random.Random(seed))))
        assert score_rubrics(problem, answer, judge).passed, (rubrics, answer)
    assert {dialogue.spec.assistant for dialogue in made.dialogues} == {each.identity for each in ASSISTANTS}
    assert {tactic for dialogue in made.dialogues for tactic in dialogue.spec.tactics} == set(Tactic)
    assert len({dialogue.problem.id for dialogue in made.dialogues}) == 24


def test_equal_runs_are_equal_and_finished_dialogues_are_not_asked_for_again(tmp_path: Path) -> None:
    first = run(tmp_path / "journal.jsonl")
    assert run(tmp_path / "other.jsonl") == first
    assert run(tmp_path / "journal.jsonl", user=Silent()) == first
    size = (tmp_path / "journal.jsonl").stat().st_size
    with (tmp_path / "journal.jsonl").open("r+b") as file:  # as if the writer had been killed
        file.truncate(size - 20)
    asked = Asked()
    assert run(tmp_path / "journal.jsonl", user=asked) == first
    assert asked.tasks["plan"] == 1


class Silent(ScriptedUser):
    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        raise InfrastructureError("nobody is there")


class Asked(ScriptedUser):
    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        self.tasks[json.loads(messages[-1].content)["task"]] += 1
        return super().complete(messages, seed=seed)


class Mumbling(ScriptedUser):
    """Says something useless when asked for one task."""

    def __init__(self, task: str, useless: str) -> None:
        self.task, self.useless = task, useless

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        mumbles = json.loads(messages[-1].content)["task"] == self.task
        return self.useless if mumbles else super().complete(messages, seed=seed)


@pytest.mark.parametrize(
    ("user", "reason"),
    [
        (Silent(), FailureReason.NO_USER),
        (Mumbling("plan", "a cunning plan"), FailureReason.PLAN),
        (Mumbling("turn", " "), FailureReason.TURN),
        (Mumbling("rubrics", '{"rubrics": [{"kind": "polite", "optional": true}]}'), FailureReason.RUBRICS),
    ],
)
def test_a_failure_is_typed_kept_and_tried_again(tmp_path: Path, user: ChatModel, reason: FailureReason) -> None:
    journal = tmp_path / "journal.jsonl"
    made = run(journal, user)
    assert made.counts == {"asked": 24, "dialogues": 0, f"failed_{reason}": 24}
    assert all("failure" in json.loads(line) for line in journal.read_text().splitlines())
    assert run(journal).counts == {"asked": 24, "dialogues": 24}


def test_an_assistant_that_fails_spoils_its_own_dialogues_only(tmp_path: Path) -> None:
    class Gone(ScriptedAssistant):
        complete = Silent.complete

    made = run(tmp_path / "journal.jsonl", assistants=(Gone(2), ScriptedAssistant(5)))
    assert made.counts == {"asked": 24, "dialogues": 12, "failed_no_assistant": 12}


def test_what_cannot_work_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="assistants that differ"):
        run(tmp_path / "journal.jsonl", assistants=())
    with pytest.raises(ConfigError, match="assistants that differ"):
        run(tmp_path / "journal.jsonl", assistants=(ScriptedAssistant(2), ScriptedAssistant(2)))
    (tmp_path / "journal.jsonl").write_text('{"dialogue": {}}\n')
    with pytest.raises(DataError, match=r"journal\.jsonl:1: this is no dialogue"):
        run(tmp_path / "journal.jsonl")


# -- over HTTP ---------------------------------------------------------------------------------------------------------


def by_content(body: dict[str, Any]) -> Reply:
    """What the script of the model that is named says."""
    messages = [Message.model_validate(message) for message in body["messages"]]
    model: ChatModel = ScriptedUser() if body["model"] == "user" else ScriptedAssistant(int(body["model"][-1]))
    return said(model.complete(messages, seed=0), reasoning_content="let me think")


def over_http(url: str, journal: Path) -> Synthesis:
    """A client of each model, which asks twice again and doesn't wait."""
    user, two, five = (ChatClient(name, url, retry_wait_seconds=0.0) for name in ("user", "words-2", "words-5"))
    with user, two, five:
        return run(journal, user, (two, five))


def unreliable(share: int, for_ever: int) -> Callable[[dict[str, Any]], Reply]:
    """Every `share`th request, by its content, fails twice in one way or another; every `for_ever`th always."""
    seen: Counter[str] = Counter()
    ways = [failed(500), failed(429, Retry_After="0"), said(None, refusal="no"), Reply(payload=b"<html>"), said("")]

    def answer(body: dict[str, Any]) -> Reply:
        key = hashlib.sha256(json.dumps([body["model"], body["messages"]]).encode()).hexdigest()
        seen[key] += 1
        number = int(key, 16)
        if number % for_ever == 0 or (number % share == 0 and seen[key] <= 2):
            return ways[seen[key] % len(ways)]
        return by_content(body)

    return answer


def test_a_server_that_fails_a_fifth_of_the_requests_costs_retries_and_no_half_dialogue(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    with Endpoint(by_content) as healthy:
        whole = over_http(healthy.url, tmp_path / "whole.jsonl")
        num_needed = len(healthy.requests)
    assert whole.counts == {"asked": 24, "dialogues": 24}
    with Endpoint(unreliable(5, for_ever=10**9)) as failing:
        assert over_http(failing.url, tmp_path / "retried.jsonl") == whole
        assert len(failing.requests) > 1.2 * num_needed
    with Endpoint(unreliable(5, for_ever=40)) as failing:
        some = over_http(failing.url, journal)
    assert 0 < len(some.failures) < 24
    assert len(some.dialogues) + len(some.failures) == 24
    assert all(dialogue in whole.dialogues for dialogue in some.dialogues)
    with Endpoint(by_content) as healthy:
        assert over_http(healthy.url, journal) == whole
        plans = [body for _, _, body in healthy.requests if '"task": "plan"' in body["messages"][-1]["content"]]
    assert len(plans) == len(some.failures)


def test_an_endpoint_that_refuses_us_stops_at_once_and_keeps_what_is_finished(tmp_path: Path) -> None:
    with Endpoint(lambda _: failed(401)) as endpoint, pytest.raises(ConfigError, match="refuses"):
        over_http(endpoint.url, tmp_path / "journal.jsonl")
    with Endpoint(by_content) as endpoint:
        assert over_http(endpoint.url, tmp_path / "journal.jsonl").counts["dialogues"] == 24
