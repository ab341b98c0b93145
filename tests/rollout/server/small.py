"""A small policy that knows by heart: a greeting, a tool call and what to say of its result, a judge's verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from rufus_core.data.chat import MaskedIds
from rufus_core.rewards import openai_judge
from rufus_core.rollout.policy import Policy
from rufus_core.training.base_policy import make_policy
from rufus_core.training.sft import train_sft
from rufus_core.training.torch_trainer import TorchTrainer
from rufus_core.types import Message, ToolCall, ToolSchema
from tests.training.toy import SHAPE, Sink, sft_stage

CONTEXT = 2048
LOOK = ToolSchema(
    name="look",
    description="Look at a place.",
    parameters={"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
)
QUESTION, SEEN, ANSWER = "what is the colour of the world", "blue", "the answer is blue"
CALL = ToolCall(name="look", arguments={"place": "world"})
GREETING = Message(role="assistant", reasoning="hello is a greeting", content="hello world")
VERDICT = Message(role="assistant", reasoning="look at it", content='{"score": 1}')
JUDGED = ("the answer is blue", "hello", "the world is green", "red")
_MORE = "hello greeting green red at it score text kind criterion polite"
_WORDS = sorted(set(re.findall(r"[A-Za-z]{2,}", f"{openai_judge._SYSTEM} {QUESTION} {ANSWER} {_MORE}")))


def user(text: str) -> Message:
    return Message(role="user", content=text)


def taught() -> list[tuple[list[Message], list[bool], Sequence[ToolSchema]]]:
    asked = [user(QUESTION), Message(role="assistant", reasoning="look", tool_calls=(CALL,))]
    answered = [*asked, Message(role="tool", content=SEEN), Message(role="assistant", reasoning="blue", content=ANSWER)]
    rows: list[tuple[list[Message], list[bool], Sequence[ToolSchema]]] = [
        (answered, [False, True, False, True], (LOOK,)),
        ([user("hello"), GREETING], [False, True], ()),
    ]
    for text in JUDGED:
        criterion = '{"criterion": {"kind": "polite"}, "text": "' + text + '"}'
        rows.append(
            ([Message(role="system", content=openai_judge._SYSTEM), user(criterion), VERDICT], [False, False, True], ())
        )
    return rows


def _doubled(row: MaskedIds, observation: int) -> MaskedIds:
    """As `strands-sglang` puts it together: the marker that ended the turn, and the one that begins the result."""
    at = row.token_ids.index(observation) + 1
    return MaskedIds(
        [*row.token_ids[:at], observation, *row.token_ids[at:]], [*row.loss_mask[:at], 0, *row.loss_mask[at:]]
    )


def small_policy() -> Policy:
    torch.set_num_threads(1)
    shape = SHAPE.model_copy(update={"expert_intermediate_size": 32, "context_tokens": CONTEXT})
    policy = make_policy(shape, _WORDS, seed=7)
    rows = policy.chat.example_ids(taught())
    rows.append(_doubled(rows[0], policy.chat.tokenizer.convert_tokens_to_ids("<|observation|>")))
    stage = sft_stage(
        run={"steps": 80},
        batch={"global_batch_sequences": len(rows), "context_tokens": 512},
        optimizer={"lr_peak": 1e-2},
    )
    train_sft(TorchTrainer(policy, stage.optimizer), rows, stage, 0, Sink(), lambda step: None)
    policy.model.eval()
    return policy
