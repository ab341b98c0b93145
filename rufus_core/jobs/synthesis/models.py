"""Who plays which part in synthesis: models behind OpenAI-compatible endpoints, or scripts where none is named."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field

from rufus_core.data.constraints.compose import find_witness
from rufus_core.data.synthesis.dialogue import Dialogue
from rufus_core.data.synthesis.scripted import ScriptedAssistant, ScriptedUser
from rufus_core.errors import ConfigError
from rufus_core.ports.engine import ChatModel
from rufus_core.ports.judging import Judge
from rufus_core.rewards.chat_client import ChatClient
from rufus_core.rewards.judges import LexicalJudge
from rufus_core.rewards.openai_judge import OpenAIJudge
from rufus_core.rewards.usage import UsageMeter
from rufus_core.rollout.chat_sampler import API_KEY, URL
from rufus_core.settings import ENDPOINT
from rufus_core.types import Frozen

JUDGE_URL, JUDGE_KEY = "RUFUS_JUDGE_URL", "RUFUS_JUDGE_API_KEY"
_AT_URL = "@http"  # between a model's id and its own endpoint


class ModelNames(Frozen):
    """`openai:MODEL`, or `openai:MODEL@URL` for one at an endpoint of its own.

    Scripts play the teacher and the assistants where none is named.
    """

    teacher: str | None = None
    assistants: tuple[str, ...] = ()
    judge: str | None = None
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Solver:
    """Answers a dialogue's last turn, for a filter. `answer(dialogue, seed)` raises InfrastructureError."""

    identity: str
    answer: Callable[[Dialogue, int], str]

    @classmethod
    def of(cls, model: ChatModel) -> Solver:
        return cls(model.identity, lambda dialogue, seed: model.complete(dialogue.messages, seed=seed))


@dataclass(frozen=True, slots=True)
class Models:
    """`teacher` plays the user and writes checkers; None where a script plays. `meters` are of each part's model."""

    user: ChatModel
    teacher: ChatModel | None
    assistants: tuple[ChatModel, ...]
    judge: Judge
    quality: Solver
    difficulty: Solver | None
    meters: dict[str, UsageMeter] = field(default_factory=dict)

    @property
    def judges_questions(self) -> bool:
        """Whether the judge can answer a rubric's question."""
        return isinstance(self.judge, OpenAIJudge)


@contextmanager
def open_models(names: ModelNames, temperature: float, max_tokens: int | None, workers: int) -> Iterator[Models]:
    """The models by their names; a judge is asked at temperature 0.

    Args:
        max_tokens: of a reply; None leaves it to the server.

    Raises:
        ConfigError: a name that isn't a model's, or no endpoint.
    """
    meters: dict[str, UsageMeter] = {}
    with ExitStack() as held:

        def client(name: str, part: str) -> ChatClient:
            model, url, key = _endpoint(name, part)
            chat = ChatClient(
                model,
                url,
                key,
                temperature=0.0 if part == "judge" else temperature,
                max_tokens=None if part == "judge" else max_tokens,
                meter=meters.setdefault(part, UsageMeter()),
                max_concurrency=workers,
            )
            return held.enter_context(closing(chat))

        teacher = client(names.teacher, "teacher") if names.teacher else None
        assistants = [client(name, "assistants") for name in names.assistants]
        judge = OpenAIJudge(client(names.judge, "judge")) if names.judge else LexicalJudge()
        policy = client(names.policy, "policy") if names.policy else None
        yield Models(
            user=teacher or ScriptedUser(),
            teacher=teacher,
            assistants=tuple(assistants or SCRIPTED_ASSISTANTS),
            judge=judge,
            quality=Solver.of(teacher) if teacher else SCRIPTED_SOLVER,
            difficulty=Solver.of(policy) if policy else None,
            meters=meters,
        )


def _endpoint(name: str, part: str) -> tuple[str, str, str | None]:
    """Model id, base URL and key. A key goes to the endpoint of its variable alone, never to one named beside it."""
    if not name.startswith(ENDPOINT) or name == ENDPOINT:
        hint = f"name it {ENDPOINT}MODEL, or {ENDPOINT}MODEL@URL"
        raise ConfigError(f"{name!r} is no model behind an endpoint", where=part, hint=hint)
    model, at, rest = name.removeprefix(ENDPOINT).partition(_AT_URL)
    if at:
        return model, at.removeprefix("@") + rest, None
    if part == "judge" and (url := os.environ.get(JUDGE_URL)):
        return model, url, os.environ.get(JUDGE_KEY)
    if url := os.environ.get(URL):
        return model, url, os.environ.get(API_KEY)
    raise ConfigError(f"{name!r} needs an endpoint", where=part, hint=f"set {URL} to an OpenAI-compatible /v1")


def _found(dialogue: Dialogue, seed: int) -> str:
    """A text that meets the rubrics, which are all of the library; empty where a bounded search finds none."""
    return find_witness(dialogue.rubrics, random.Random(seed)) or ""


SCRIPTED_SOLVER = Solver("builtin:scripted-solver", _found)
SCRIPTED_ASSISTANTS: Sequence[ChatModel] = (ScriptedAssistant(4), ScriptedAssistant(12), ScriptedAssistant(40))
