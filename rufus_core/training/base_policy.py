"""Step 0: a GLM-4.5-Air miniature from the recipe's seed, pre-trained on recurring sequences until it can copy.

Copying from the prompt (names, file names, arguments) is what every later stage needs and random weights lack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from rufus_core.algorithms.schedules import learning_rate
from rufus_core.data.chat import ChatFormat
from rufus_core.data.tokenizer import build_tokenizer
from rufus_core.rollout.policy import Policy
from rufus_core.settings import PolicyShape, PretrainSettings
from rufus_core.training.module_state import ModuleState
from rufus_core.training.optimizer import make_optimizer, optimizer_step
from rufus_core.training.state import UNKEPT, Position, Unkept


def make_policy(shape: PolicyShape, words: Iterable[str], seed: int) -> Policy:
    """A `Glm4MoeForCausalLM` with random weights; the same weights for the same shape, words and seed."""
    tokenizer = build_tokenizer(words, shape.context_tokens)
    config = Glm4MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        moe_intermediate_size=shape.expert_intermediate_size,
        num_hidden_layers=shape.num_layers,
        first_k_dense_replace=shape.first_dense_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        n_routed_experts=shape.num_experts,
        num_experts_per_tok=shape.experts_per_token,
        n_shared_experts=shape.num_shared_experts,
        n_group=1,
        topk_group=1,
        max_position_embeddings=shape.context_tokens,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        use_qk_norm=True,
        num_nextn_predict_layers=0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(seed)
    return Policy(Glm4MoeForCausalLM(config), ChatFormat(tokenizer))


def pretrain_to_copy(
    policy: Policy,
    settings: PretrainSettings,
    seed: int,
    progress: Callable[[int, dict[str, float]], None],
    state: Unkept = UNKEPT,
) -> dict[str, float]:
    """Train on `span, gap, span again`, with loss on the repeat only. Returns the last step's loss and accuracy.

    It goes on from where `state` is.

    Raises:
        Preempted: `state` was told to stop.
    """
    model, tokenizer = policy.model.train(), policy.chat.tokenizer
    skip = {tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in range(256)} | set(policy.chat.stop_token_ids)
    usable = torch.tensor([i for i in range(len(tokenizer)) if i not in skip])
    generator = torch.Generator().manual_seed(seed)
    optimizer = make_optimizer(model, settings.optimizer)
    span, batch = settings.span_tokens, settings.batch_sequences

    def draw(length: int) -> torch.Tensor:
        return usable[torch.randint(len(usable), (batch, length), generator=generator)]

    metrics: dict[str, float] = {}
    begun = state.begin(ModuleState(model, optimizer))
    for step in range(1, settings.steps + 1):
        first = draw(span)
        gap = draw(int(torch.randint(settings.max_gap_tokens + 1, (1,), generator=generator)))
        if step <= begun.step:  # trained on before; drawn again for the sake of what is drawn next
            continue
        ids = torch.cat([first, gap, first], dim=1)
        # The first token of the repeat can't be foretold; those after it can.
        logits = model(input_ids=ids[:, :-1], logits_to_keep=span - 1).logits.flatten(0, 1)
        targets = first[:, 1:].flatten()
        loss = torch.nn.functional.cross_entropy(logits, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        rate = learning_rate(step, settings.steps, settings.optimizer)
        norm = optimizer_step(model, optimizer, rate, settings.optimizer.grad_clip)
        if step % 20 == 0 or step == settings.steps:
            accuracy = (logits.argmax(-1) == targets).float().mean().item()
            metrics = {"loss": loss.item(), "copy_accuracy": accuracy, "grad_norm": norm, "lr": rate}
            progress(step, metrics)
        state.end_step(Position(step, step * batch, step))
    model.eval()
    return metrics
