"""A small Bradley-Terry reward model: a policy's trunk with a scalar head on the mean of a response's hidden states.

At each of its tokens a response can be compared with the question by one look back; a head on the last token alone
would need a layer more than a miniature has.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rufus_core.algorithms.schedules import learning_rate
from rufus_core.data.chat import MaskedIds
from rufus_core.data.preferences import PreferencePair
from rufus_core.errors import DataError
from rufus_core.ports.progress import MetricSink
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.settings import RewardModelSettings
from rufus_core.training.module_state import ModuleState
from rufus_core.training.optimizer import make_optimizer, optimizer_step
from rufus_core.training.state import UNKEPT, Position, Unkept
from rufus_core.types import Message

BUILTIN = "builtin:bradley-terry"
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

    def encode(self, prompt: Sequence[Message], response: str) -> MaskedIds:
        """Ids of the whole conversation; the mask marks the final response, without the reasoning, and what ends it."""
        messages = [*prompt, Message(role="assistant", content=response)]
        return self.chat.example_ids([(messages, [False] * len(prompt) + [True], ())])[0]

    def forward(self, batch: Sequence[MaskedIds]) -> Tensor:
        """Scores [B] of responses; right padding is never looked at (causal attention)."""
        width = max(len(row.token_ids) for row in batch)
        ids_BT = torch.zeros((len(batch), width), dtype=torch.long)
        mask_BT = torch.zeros((len(batch), width))
        for index, row in enumerate(batch):
            ids_BT[index, : len(row.token_ids)] = torch.tensor(row.token_ids)
            mask_BT[index, : len(row.token_ids)] = torch.tensor(row.loss_mask)
        hidden_BTD = self.trunk.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state
        mean_BD = (hidden_BTD * mask_BT[..., None]).sum(1) / mask_BT.sum(1, keepdim=True)
        scores: Tensor = self.head(mean_BD)[:, 0]
        return scores

    @torch.no_grad()
    def score(self, prompt: Sequence[Message], response: str) -> float:
        return float(self([self.encode(prompt, response)])[0])

    @property
    def identity(self) -> str:
        return BUILTIN

    def scores(self, responses: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        """One at a time: batched ones would differ in their last digits."""
        return [self.score(prompt, response) for prompt, response in responses]

    def save(self, folder: Path) -> None:
        Policy(self.trunk, self.chat).save(folder)
        save_file(self.head.state_dict(), folder / _HEAD_FILE)

    @classmethod
    def load(cls, folder: Path) -> RewardModel:
        model = cls(load_policy(folder))
        model.head.load_state_dict(load_file(folder / _HEAD_FILE))
        return model.eval()


def train_reward_model(
    model: RewardModel,
    train: Sequence[PreferencePair],
    heldout: Sequence[PreferencePair],
    settings: RewardModelSettings,
    seed: int,
    sink: MetricSink,
    state: Unkept = UNKEPT,
) -> dict[str, float]:
    """Minimise -log sigmoid(chosen - rejected). Returns accuracy and mean margin on the held-out pairs.

    It goes on from where `state` is.

    Raises:
        DataError: there is no pair to train on, or none that is held out.
        Preempted: `state` was told to stop.
    """
    if not train or not heldout:
        raise DataError(
            f"{len(train)} pairs to train on and {len(heldout)} held out are too few",
            hint="raise reward_model.num_pairs",
        )
    encoded = _encode(model, train)
    rng = random.Random(seed)
    optimizer = make_optimizer(model, settings.optimizer)
    model.train()
    begun = state.begin(ModuleState(model, optimizer))
    for step in range(1, settings.steps + 1):
        batch = [encoded[rng.randrange(len(encoded))] for _ in range(settings.batch_pairs)]
        if step <= begun.step:  # trained on before; drawn again for the sake of what is drawn next
            continue
        margins = _margins(model, batch)
        loss = -nn.functional.logsigmoid(margins).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        rate = learning_rate(step, settings.steps, settings.optimizer)
        norm = optimizer_step(model, optimizer, rate, settings.optimizer.grad_clip)
        accuracy = (margins > 0).float().mean().item()
        sink.log(step, {"loss": loss.item(), "accuracy": accuracy, "grad_norm": norm, "lr": rate})
        state.end_step(Position(step, step * settings.batch_pairs, step))
    model.eval()
    with torch.no_grad():
        margins = _margins(model, _encode(model, heldout))
    return {
        "heldout_accuracy": (margins > 0).float().mean().item(),
        "heldout_margin": margins.mean().item(),
        "heldout_pairs": float(len(heldout)),
    }


def _encode(model: RewardModel, pairs: Sequence[PreferencePair]) -> list[tuple[MaskedIds, MaskedIds]]:
    return [(model.encode(p.prompt, p.chosen), model.encode(p.prompt, p.rejected)) for p in pairs]


def _margins(model: RewardModel, batch: Sequence[tuple[MaskedIds, MaskedIds]]) -> Tensor:
    scores_2B: Tensor = model([response for pair in batch for response in pair])
    return scores_2B[0::2] - scores_2B[1::2]
