"""Judge and assistant on the embedded engine: `rufus serve` in a process of its own, and a policy taught both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
import torch
from typer.testing import CliRunner

from rufus_core.cli.main import app
from rufus_core.data.constraints import library
from rufus_core.data.synthesis.dialogue import SynthesisSettings
from rufus_core.data.synthesis.play import synthesise
from rufus_core.data.synthesis.scripted import ScriptedUser
from rufus_core.jobs.problem_rows import read_problem_file
from rufus_core.rewards.chat_client import ChatClient
from rufus_core.rewards.openai_judge import RUBRIC_SYSTEM, OpenAIJudge
from rufus_core.training.base_policy import make_policy
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Message
from tests.rollout.server.process import ServerProcess
from tests.training.toy import SHAPE, Sink, sft_stage

RUBRIC = {"kind": "polite"}
ASKED = (Message(role="user", content="say hello"),)
REPLY = Message(role="assistant", reasoning="a request", content="three good words")
VERDICT = Message(role="assistant", reasoning="check", content='{"verdict": "yes"}')
JUDGED = ("thanks", "please do")
KINDS = dict.fromkeys(library.KINDS, "")
SETTINGS = SynthesisSettings(count=3, min_turns=2, max_turns=2, system_share=0.0)


class Constant:
    """What the taught policy says, so that its dialogues are known before it is taught."""

    identity = "default@t0"

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        return REPLY.content


def judged(response: str) -> Message:
    turns = [{"role": message.role, "content": message.content} for message in ASKED]
    return Message(role="user", content=json.dumps({"rubric": RUBRIC, "conversation": turns, "response": response}))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("taught")
    torch.set_num_threads(1)
    planned = synthesise(SETTINGS, 0, ScriptedUser(), [Constant()], KINDS, folder / "j")
    rows: list[list[Message]] = [[dialogue.messages[0], REPLY] for dialogue in planned.dialogues]
    system = Message(role="system", content=RUBRIC_SYSTEM)
    rows += [[system, judged(said), VERDICT] for said in JUDGED]
    words = sorted(set(re.findall(r"[A-Za-z]{2,}", " ".join(m.content + (m.reasoning or "") for r in rows for m in r))))
    policy = make_policy(
        SHAPE.model_copy(update={"context_tokens": 1024, "expert_intermediate_size": 32}), words, seed=3
    )
    examples = policy.chat.example_ids([(row, [False] * (len(row) - 1) + [True], ()) for row in rows])
    stage = sft_stage(
        run={"steps": 120},
        batch={"global_batch_sequences": len(examples), "context_tokens": 512},
        optimizer={"lr_peak": 1e-2},
    )
    train_sft(TorchTrainer(policy, stage.optimizer), examples, stage, 0, Sink(), lambda step: None)
    policy.save(folder / "policy")
    with ServerProcess(folder / "policy") as process:
        yield process


def test_it_gives_one_verdict_for_a_rubric(served: ServerProcess) -> None:
    name = httpx.get(f"{served.url}/v1/models").json()["data"][0]["id"]
    with OpenAIJudge(ChatClient(name, f"{served.url}/v1")) as judge:
        assert all(judge.holds(RUBRIC, ASKED, response) for response in JUDGED)
        usage = judge.client.meter.total
    assert (usage.verdicts, usage.requests, usage.retries) == (2, 2, 0)
    assert usage.prompt_tokens > usage.completion_tokens > 0


def test_it_plays_the_assistant_of_a_dialogue(served: ServerProcess, tmp_path: Path) -> None:
    with ChatClient("default", f"{served.url}/v1") as assistant:
        made = synthesise(SETTINGS, 0, ScriptedUser(), [assistant], KINDS, tmp_path / "journal.jsonl")
        assert assistant.meter.total.requests == 3
    assert made.counts == {"asked": 3, "dialogues": 3}
    for dialogue in made.dialogues:
        assert [message.role for message in dialogue.messages] == ["user", "assistant", "user"]
        assert dialogue.messages[1].content == REPLY.content


def test_a_laptop_s_own_server_plays_assistant_and_policy_of_the_command(served: ServerProcess, tmp_path: Path) -> None:
    """`rufus problems synthesize` with a scripted user: the dialogues are those that the policy was taught."""
    file, model = tmp_path / "made.jsonl", f"openai:default@{served.url}/v1"
    command = ["problems", "synthesize", str(file), "--single", "0", "--multi", "3", "--system-share", "0"]
    command += ["--min-turns", "2", "--max-turns", "2", "--temperature", "0", "--assistant", model, "--policy", model]
    result = CliRunner().invoke(app, [*command, "--max-tokens", "32", "--json"], catch_exceptions=False)
    report = json.loads(result.stdout)
    made = list(read_problem_file(file, "mine", ["instructions"]))
    assert (len(made), report["kept"]) == (3, 3), "three words meet no such requirements, so none is too easy"
    assert {problem.prompt[1].content for problem in made} == {REPLY.content}
    assert report["usage"]["assistants"]["answered"] == 3
    assert report["usage"]["policy"]["requests"] >= 3 * 8
