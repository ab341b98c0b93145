"""A small Bradley-Terry reward model: a policy's trunk with a scalar head on the last token of a conversation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rufus_core.algorithms.schedules import learning_rate
from rufus_core.data.chat import ChatFormat
from rufus_core.data.preferences import PreferencePair
from rufus_core.errors import DataError
from rufus_core.ports import MetricSink
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.settings import RewardModelSettings
from rufus_core.training.optimizer import make_optimizer, optimizer_step
from rufus_core.types import Message

_HEAD_FILE = "value_head.safetensors"


class RewardModel(nn.Module):
    """Scores a final response to a conversation; scores compare within one prompt set only (RM-D3).

    The head's first weights depend on `seed` alone.
    """

    def __init__(self, policy: Policy, seed: int = 0) -> None:
        super().__init__()
        self.trunk, self.chat = policy.model, policy.chat
        self.head = nn.Linear(policy.model.config.hidden_size, 1)
        nn.init.zeros_(self.head.bias)
        nn.init.normal_(self.head.weight, std=0.02, generator=torch.Generator().manual_seed(seed))

    def ids(self, prompt: Sequence[Message], response: str) -> list[int]:
        return conversation_ids(self.chat, prompt, response)

    def forward(self, batch: Sequence[Sequence[int]]) -> Tensor:
        """Scores [B] of conversations given as token ids; right padding is never looked at (causal attention)."""
        width = max(len(ids) for ids in batch)
        ids_BT = torch.zeros((len(batch), width), dtype=torch.long)
        for row, ids in enumerate(batch):
            ids_BT[row, : len(ids)] = torch.tensor(ids)
        hidden_BTD = self.trunk.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        last_B = torch.tensor([len(ids) - 1 for ids in batch])
        scores: Tensor = self.head(hidden_BTD[torch.arange(len(batch)), last_B])[:, 0]
        return scores

    @torch.no_grad()
    def score(self, prompt: Sequence[Message], response: str) -> float:
        return float(self([self.ids(prompt, response)])[0])

    def save(self, folder: Path) -> None:
        Policy(self.trunk, self.chat).save(folder)
        save_file(self.head.state_dict(), folder / _HEAD_FILE)

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        model = cls(load_policy(folder))
        model.head.load_state_dict(load_file(folder / _HEAD_FILE))
        return model.eval()


def conversation_ids(chat: ChatFormat, prompt: Sequence[Message], response: str) -> list[int]:
    """The final response only, without the reasoning, as the reward model sees it."""
    messages = [*prompt, Message(role="assistant", content=response)]
    return chat.example_ids([(messages, [False] * len(messages), ())])[0].token_ids


def train_reward_model(
    model: RewardModel,
    train: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
    settings: RewardModelSettings,
    seed: int,
    sink: MetricSink,
) -> dict[str, float]:
    """Minimise -log sigmoid(chosen - rejected). Returns accuracy and mean margin on the held-out pairs.

    Raises:
        DataError: there is no pair to train on, or none that is held out.
    """
    if not train or not heldout:
        raise DataError(
            f"{len(train)} pairs to train on and {len(heldout)} held out are too few",
            hint="raise reward_model.num_pairs",
        )
    pairs = [(model.ids(p.prompt, p.chosen), model.ids(p.prompt, p.rejected)) for p in train]
    rng = random.Random(seed)
    optimizer = make_optimizer(model, settings.optimizer)
    model.train()
    for step in range(1, settings.steps + 1):
        batch = [pairs[rng.randrange(len(pairs))] for _ in range(settings.batch_pairs)]
        margins = _margins(model, batch)
        loss = -nn.functional.logsigmoid(margins).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        rate = learning_rate(step, settings.steps, settings.optimizer)
        norm = optimizer_step(model, optimizer, rate, settings.optimizer.grad_clip)
        accuracy = (margins > 0).float().mean().item()
        sink.log(step, {"loss": loss.item(), "accuracy": accuracy, "grad_norm": norm, "lr": rate})
    model.eval()
    with torch.no_grad():
        margins = _margins(model, [(model.ids(p.prompt, p.chosen), model.ids(p.prompt, p.rejected)) for p in heldout])
    return {
        "heldout_accuracy": (margins > 0).float().mean().item(),
        "heldout_margin": margins.mean().item(),
        "heldout_pairs": float(len(heldout)),
    }


def _margins(model: RewardModel, batch: Sequence[tuple[list[int], list[int]]]) -> Tensor:
    scores_2B: Tensor = model([ids for pair in batch for ids in pair])
    return scores_2B[0::2] - scores_2B[1::2]
