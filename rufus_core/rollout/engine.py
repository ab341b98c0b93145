"""The embedded engine: SGLang's generate contract over a Hugging Face causal LM, in batches with a shared KV cache.

Shapes: B requests in flight, T cached positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from rufus_core.errors import EngineError
from rufus_core.ports import GenerateRequest, GenerateResult
from rufus_core.rollout.kv_cache import roomy_cache

_COMPACT_BELOW = 0.7  # finished rows are dropped once the live ones fall below this share of the batch


class EmbeddedEngine:
    """Generates with the live weights of `model`: an update of the trainer's weights needs no copy.

    Each request draws from its own seed, so a result doesn't depend on what else is in the batch.
    """

    def __init__(self, model: PreTrainedModel, pad_token_id: int, max_batch: int = 256) -> None:
        self._model, self._pad, self._max_batch = model, pad_token_id, max_batch
        self.weight_version = "0"

    @property
    def context_length(self) -> int:
        return int(self._model.config.max_position_embeddings)

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Results in the order of the requests.

        Raises:
            EngineError: a prompt is empty or leaves no room in the context.
        """
        for request in requests:
            if not 0 < len(request.input_ids) < self.context_length:
                raise EngineError(
                    f"a prompt of {len(request.input_ids)} tokens can't be continued",
                    where=f"request {request.rid}",
                    hint=f"the context holds {self.context_length} tokens",
                )
        # Prompts of similar length share a batch, which keeps padding small.
        order = sorted(range(len(requests)), key=lambda i: (len(requests[i].input_ids), i))
        results: dict[int, GenerateResult] = {}
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.no_grad():
                for start in range(0, len(order), self._max_batch):
                    chunk = order[start : start + self._max_batch]
                    results.update(zip(chunk, self._generate_batch([requests[i] for i in chunk]), strict=True))
        finally:
            self._model.train(was_training)
        return [results[i] for i in range(len(requests))]

    def _generate_batch(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        width = max(len(r.input_ids) for r in requests)
        ids_BT = torch.full((len(requests), width), self._pad)
        mask_BT = torch.zeros((len(requests), width), dtype=torch.long)
        for row, request in enumerate(requests):
            length = len(request.input_ids)
            ids_BT[row, width - length :] = torch.tensor(request.input_ids)
            mask_BT[row, width - length :] = 1
        room = [self.context_length - len(r.input_ids) for r in requests]
        limits_B = torch.tensor(
            [min(r.sampling_params.max_new_tokens, free) for r, free in zip(requests, room, strict=True)]
        )
        sampler = Sampler(requests, int(limits_B.max()))
        outputs: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        stopped = [False] * len(requests)

        rows_B = torch.arange(len(requests))  # which request each live row belongs to
        cache = roomy_cache(self._model.config)
        step_ids, positions = ids_BT, (mask_BT.cumsum(1) - 1).clamp(min=0)
        for step in range(int(limits_B.max())):
            logits_BV = self._model(
                input_ids=step_ids,
                attention_mask=mask_BT,
                position_ids=positions,
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            tokens_B, logprobs_B = sampler.sample(logits_BV.float(), rows_B, step)
            alive = []
            for i, (row, token, logprob) in enumerate(
                zip(rows_B.tolist(), tokens_B.tolist(), logprobs_B.tolist(), strict=True)
            ):
                if stopped[row] or len(outputs[row]) >= limits_B[row]:
                    continue
                outputs[row].append(token)
                logprobs[row].append(logprob)
                stopped[row] = token in requests[row].sampling_params.stop_token_ids
                if not stopped[row] and len(outputs[row]) < limits_B[row]:
                    alive.append(i)
            if not alive:
                break
            if len(alive) < _COMPACT_BELOW * len(rows_B):
                keep = torch.tensor(alive)
                cache.batch_select_indices(keep)
                rows_B, tokens_B, mask_BT, positions = rows_B[keep], tokens_B[keep], mask_BT[keep], positions[keep]
            step_ids = tokens_B[:, None]
            mask_BT = torch.cat([mask_BT, mask_BT.new_ones(len(rows_B), 1)], dim=1)
            positions = positions[:, -1:] + 1
        return [
            GenerateResult(
                rid=request.rid,
                output_ids=outputs[row],
                output_logprobs=logprobs[row],
                finish_reason="stop" if stopped[row] else "length",
                weight_version=self.weight_version,
            )
            for row, request in enumerate(requests)
        ]


class Sampler:
    """Draws by inverse transform from uniform numbers fixed by each request's seed.

    Reported log-probs are of the distribution at the sampling temperature, before top-p and top-k, as in SGLang.
    """

    def __init__(self, requests: Sequence[GenerateRequest], steps: int) -> None:
        params = [r.sampling_params for r in requests]
        uniform = []
        for p in params:
            generator = torch.Generator().manual_seed(p.sampling_seed)
            uniform.append(torch.rand(steps, generator=generator, dtype=torch.float64))
        self._uniform_BS = torch.stack(uniform)
        self._temperature_B = torch.tensor([p.temperature for p in params])
        self._top_p_B = torch.tensor([p.top_p for p in params])
        self._top_k = [p.top_k for p in params]

    def sample(self, logits_BV: torch.Tensor, rows_B: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        temperature_B = self._temperature_B[rows_B]
        greedy_B = temperature_B <= 0
        scaled_BV = logits_BV / torch.where(greedy_B, 1.0, temperature_B)[:, None]
        logprobs_BV = torch.log_softmax(scaled_BV, dim=-1)
        probs_BV = logprobs_BV.exp().double()
        if bool((self._top_p_B[rows_B] < 1).any()) or any(self._top_k[row] > 0 for row in rows_B.tolist()):
            probs_BV = self._truncate(probs_BV, rows_B)
        cumulative_BV = probs_BV.cumsum(-1)
        threshold_B = self._uniform_BS[rows_B, step] * cumulative_BV[:, -1]
        drawn_B = torch.searchsorted(cumulative_BV, threshold_B[:, None], right=True)[:, 0]
        tokens_B = torch.where(greedy_B, logits_BV.argmax(-1), drawn_B.clamp(max=logits_BV.shape[-1] - 1))
        return tokens_B, logprobs_BV.gather(-1, tokens_B[:, None])[:, 0]

    def _truncate(self, probs_BV: torch.Tensor, rows_B: torch.Tensor) -> torch.Tensor:
        sorted_BV, order_BV = probs_BV.sort(dim=-1, descending=True, stable=True)
        before_BV = sorted_BV.cumsum(-1) - sorted_BV  # mass of everything more likely
        keep_BV = before_BV < self._top_p_B[rows_B].double()[:, None]
        top_k_B = torch.tensor(
            [self._top_k[row] if self._top_k[row] > 0 else probs_BV.shape[-1] for row in rows_B.tolist()]
        )
        keep_BV &= torch.arange(probs_BV.shape[-1])[None, :] < top_k_B[:, None]
        return torch.zeros_like(probs_BV).scatter(-1, order_BV, sorted_BV * keep_BV)
