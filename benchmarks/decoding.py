"""The embedded engine and Hugging Face `generate` on the same requests, and what a step of the engine costs.

Both sample at temperature 1. `generate` takes prompts as they come, in batches, with one limit for each: the largest in
it. What it makes beyond a prompt's own limit is thrown away and not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from transformers import GenerationConfig, PreTrainedModel
from transformers import __version__ as peer_version

from benchmarks.paired import Pairs, in_turns
from rufus_core.ports.engine import GenerateRequest, SamplingParams
from rufus_core.rollout.engine import EmbeddedEngine

PEER = f"transformers {peer_version} generate"


def requests_for(prompts: Sequence[Sequence[int]], limits: Sequence[int]) -> list[GenerateRequest]:
    """No stop token, so that every run makes the same number of tokens."""
    return [
        GenerateRequest(str(i), prompt, SamplingParams(max_new_tokens=limit, sampling_seed=i))
        for i, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


def run_ours(model: PreTrainedModel, requests: Sequence[GenerateRequest], batch: int) -> int:
    """Tokens that were asked for and made. The requests come one by one, each as soon as the engine takes it."""
    longest = max(len(r.input_ids) + r.sampling_params.max_new_tokens for r in requests)
    engine = EmbeddedEngine(model, max_batch=batch, context_tokens=longest + 1)
    coming, made = iter(requests), 0
    request = next(coming, None)
    while request is not None or not engine.idle:
        while request is not None and engine.num_running + engine.num_waiting < batch:
            engine.add(request)
            request = next(coming, None)
        made += sum(len(progress.token_ids) for progress in engine.step())
    return made


@torch.no_grad()
def run_peer(model: PreTrainedModel, requests: Sequence[GenerateRequest], batch: int) -> int:
    """Tokens that were asked for and made."""
    made = 0
    for start in range(0, len(requests), batch):
        some = requests[start : start + batch]
        width = max(len(request.input_ids) for request in some)
        ids_BT = torch.zeros((len(some), width), dtype=torch.long)
        mask_BT = torch.zeros_like(ids_BT)
        for row, request in enumerate(some):
            ids_BT[row, width - len(request.input_ids) :] = torch.tensor(request.input_ids)
            mask_BT[row, width - len(request.input_ids) :] = 1
        limits = [request.sampling_params.max_new_tokens for request in some]
        settings = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max(limits), pad_token_id=0
        )
        output_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, generation_config=settings)
        made += sum(min(limit, output_BT.shape[1] - width) for limit in limits)
    return made


def compare(model: PreTrainedModel, requests: Sequence[GenerateRequest], batch: int, repetitions: int) -> Pairs:
    """Tokens per second of both, in turns."""

    def rate(run: Callable[[PreTrainedModel, Sequence[GenerateRequest], int], int]) -> float:
        started = time.perf_counter()
        made = run(model, requests, batch)
        seconds = time.perf_counter() - started
        asked = sum(request.sampling_params.max_new_tokens for request in requests)
        assert made == asked, f"{made} tokens were made of {asked}"
        return made / seconds

    run_ours(model, requests[:batch], batch)  # warm both up
    run_peer(model, requests[:batch], batch)
    return in_turns(lambda: rate(run_ours), lambda: rate(run_peer), "tokens/s", repetitions)


def tell_comparison(
    name: str,
    model: PreTrainedModel,
    mixed: Sequence[GenerateRequest],
    equal: Sequence[GenerateRequest],
    batch: int,
    repetitions: tuple[int, int],
    show_costs: Callable[[], None],
) -> None:
    """Compare on requests of mixed and of equal limits, show costs in between, and print the result last."""
    limits = [request.sampling_params.max_new_tokens for request in mixed]
    print(f"{min(limits)} to {max(limits)} new tokens:")
    mixed_pairs = compare(model, mixed, batch, repetitions[0])
    print(f"{equal[0].sampling_params.max_new_tokens} new tokens each:")
    equal_pairs = compare(model, equal, batch, repetitions[1])
    show_costs()
    mixed_pairs.tell(
        name,
        higher_is_better=True,
        digits=1,
        unit="generated tokens per second",
        peer_name=PEER,
        prompts=len(mixed),
        batch=batch,
        threads=torch.get_num_threads(),
        new_tokens=[min(limits), max(limits)],
        ratio_at_equal_lengths=equal_pairs.ratio(higher_is_better=True),
    )


def step_seconds(model: PreTrainedModel, batch: int, length: int, steps: int = 8) -> float:
    """Median of a decode step with `batch` sequences of about `length` tokens."""
    engine = EmbeddedEngine(model, max_batch=batch, context_tokens=length + 2 * steps + 8)
    generator = torch.Generator().manual_seed(0)
    for index in range(batch):
        prompt = torch.randint(10, engine.vocab_size, (length,), generator=generator).tolist()
        engine.add(GenerateRequest(str(index), prompt, SamplingParams(max_new_tokens=2 * steps, sampling_seed=index)))
    engine.step()
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - started)
    return median(seconds)


def products_seconds(model: PreTrainedModel, batch: int) -> tuple[float, float]:
    """Seconds that a step's matrix products take alone, and their multiplications and additions.

    A model with experts is counted as if each expert had an equal share of the tokens.
    """
    config = model.config
    shapes = []
    for name, weight in model.named_parameters():
        if weight.ndim == 2 and "embed" not in name:
            shapes.append((weight.detach(), batch))
        elif weight.ndim == 3:
            rows = max(1, batch * config.num_experts_per_tok // weight.shape[0])
            shapes += [(expert.detach(), rows) for expert in weight]
    if config.tie_word_embeddings:
        shapes.append((model.get_output_embeddings().weight.detach(), batch))
    inputs = [torch.randn(rows, weight.shape[1]) for weight, rows in shapes]
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        for (weight, _), rows in zip(shapes, inputs, strict=True):
            torch.nn.functional.linear(rows, weight)
        best = min(best, time.perf_counter() - started)
    return best, sum(2.0 * weight.numel() * rows for weight, rows in shapes)


def bytes_per_second() -> float:
    """What streaming through memory reaches here: a sum over 256 MiB."""
    values = torch.ones(1 << 26)
    best = float("inf")
    for _ in range(5):
        started = time.perf_counter()
        values.sum()
        best = min(best, time.perf_counter() - started)
    return values.numel() * 4 / best


def step_bytes(model: PreTrainedModel, batch: int, length: int) -> float:
    """Weights once, and the keys and values of every sequence."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    kept = 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * batch * length
    return 4.0 * (sum(weight.numel() for weight in model.parameters()) + kept)


def tell_costs(models: dict[str, PreTrainedModel], batches: Sequence[int], lengths: Sequence[int]) -> None:
    """Print how a step's cost grows with batch, length and size, and how far it is from what the machine allows.

    `products` are the step's matrix products alone, at the rate of these shapes; `memory` is what must be read once.
    """
    bandwidth = bytes_per_second()
    table = Table(
        *("model", "sequences", "tokens each", "step, ms", "products, ms", "GFLOP/s", "memory, ms", "bound / step"),
        title=f"a decode step; memory streams at {bandwidth / 1e9:.1f} GB/s",
    )
    for name, model in models.items():
        first = next(iter(models.values())) is model
        cases = {(batch, lengths[0]) for batch in batches} | {(batches[-1], length) for length in lengths if first}
        for batch, length in sorted(cases):
            step = step_seconds(model, batch, length)
            products, flops = products_seconds(model, batch)
            memory = step_bytes(model, batch, length) / bandwidth
            numbers = (step * 1e3, products * 1e3, flops / products / 1e9, memory * 1e3)
            share = f"{max(products, memory) / step:.0%}"
            table.add_row(name, str(batch), str(length), *(f"{number:.2f}" for number in numbers), share)
    Console(width=110).print(table)
