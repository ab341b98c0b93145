"""The embedded engine: SGLang's generate contract over a Hugging Face causal LM, with dynamic batches and prefix reuse.

Shapes: B running sequences, N tokens, T positions, L layers, V vocabulary.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rufus_core.errors import EngineError
from rufus_core.ports.engine import GenerateRequest, GenerateResult, SamplingParams
from rufus_core.rollout.checks import check_request
from rufus_core.rollout.decoder import Decoder
from rufus_core.rollout.kv_cache import SHORTEST_PREFIX, Piece, RowCache
from rufus_core.rollout.sampler import sample, uniform_numbers
from rufus_core.rollout.transformers_decoder import TransformersDecoder
from rufus_core.rollout.weights import has_known_layers

_SORTING_STEPS = 8  # after which rows may be sorted by length again
_LEAST = torch.finfo(torch.float32).tiny  # a probability below it may have become 0
_PREFILL_TOKENS = 4096  # of prompts, put through the model at once
_SCORED_TOKENS = 256  # of prompts, whose logits are in memory at once


class Progress(NamedTuple):
    """What a step did for one request: at most one token, and the result when it was the last."""

    rid: str
    token_ids: list[int]
    logprobs: list[float]
    result: GenerateResult | None
    weight_version: str


@dataclass(slots=True)
class _Sequence:
    """A request in flight."""

    request: GenerateRequest
    params: SamplingParams
    limit: int  # tokens it may draw
    uniform: list[float]
    input_logprobs: list[float | None]
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[float, int]]] = field(default_factory=list)
    cached: int = 0
    ended: Literal["stop", "length", "abort"] | None = None

    @property
    def reusable(self) -> int:
        """Positions of the prompt that another row may give; those whose output is asked for must be computed."""
        wanted = self.request.input_logprobs_from
        return len(self.request.input_ids) - 1 if wanted is None else max(wanted - 1, 0)

    @property
    def last_id(self) -> int:
        return self.output[-1] if self.output else self.request.input_ids[-1]


class EmbeddedEngine:
    """Generates with a copy of a model's weights, which `load_weights` replaces. It is used by one thread at a time.

    Each step draws one token for every sequence that runs. Sequences join when there is a free row and leave when they
    end. Each draws from its own seed; what it becomes depends on nothing else that the engine does.

    A prompt that begins like another one, running or finished, starts from that one's keys and values: samples of one
    prompt compute it once, and a later turn computes only what is new. `cache_bytes` bounds what is held: where rows of
    `context_tokens` don't fit as often as `max_batch` says, fewer run at once.

    The families of `weights.has_known_layers` are computed by `Decoder`, others by Hugging Face's modules: as right,
    but slower, equal only up to rounding from batch to batch, and without routing.

    Raises:
        EngineError: not one row fits, or the model keeps something else than keys and values.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        max_batch: int = 256,
        context_tokens: int | None = None,
        cache_bytes: int = 4 << 30,
        version: str = "0",
    ) -> None:
        most = int(model.config.max_position_embeddings)
        self.context_length = min(context_tokens or most, most)
        self.vocab_size, self._num_layers = int(model.config.vocab_size), int(model.config.num_hidden_layers)
        self.weight_version = version
        known = has_known_layers(model)
        self._decoder = Decoder(model, self.context_length) if known else TransformersDecoder(model)
        shape = self._decoder.cache_shape
        rows = min(2 * max_batch, cache_bytes // (shape.bytes_per_position * self.context_length))
        if not rows:
            size = shape.bytes_per_position * self.context_length
            raise EngineError(
                f"one sequence of {self.context_length} tokens needs {size:,} bytes, and the cache has {cache_bytes:,}",
                hint="give a shorter context or more cache",
            )
        self.max_batch = min(max_batch, rows)
        self._cache = RowCache(shape, rows, self.context_length)
        self._running: list[_Sequence] = []  # sequence i is in row i
        self._waiting: deque[_Sequence] = deque()
        self._in_flight: dict[str, _Sequence] = {}
        self._aborted = False  # since the last step
        self._clock = 0

    # -- requests ----------------------------------------------------------------------------------------------------

    def check(self, request: GenerateRequest) -> None:
        """Raises EngineError for what can't be served."""
        check_request(request, self.context_length, self.vocab_size, has_experts=bool(self._decoder.moe_layers))

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. Raises EngineError as `check` does, and for an id that is in flight."""
        self.check(request)
        self._queue(request)

    def _queue(self, request: GenerateRequest) -> None:
        if request.rid in self._in_flight:
            raise EngineError("another request with this id is in flight", where=f"request {request.rid}")
        limit = min(request.sampling_params.max_new_tokens, self.context_length - len(request.input_ids))
        unpredicted = [None] if request.input_logprobs_from == 0 else []
        params = request.sampling_params
        sequence = _Sequence(request, params, limit, uniform_numbers(params, limit), [*unpredicted])
        self._in_flight[request.rid] = sequence
        self._waiting.append(sequence)

    def abort(self, rid: str) -> None:
        """End a request; the next step returns what it has so far. One that isn't in flight has ended already."""
        if rid in self._in_flight:
            self._in_flight[rid].ended = "abort"
            self._aborted = True

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not self._in_flight

    def flush_cache(self) -> bool:
        """Forget all kept prefixes; False, and nothing happens, while a request is in flight."""
        if self.idle:
            self._cache.outdate()
        return self.idle

    def load_weights(self, model: PreTrainedModel, version: str) -> None:
        """Use another model's weights from the next step on; it has the same shape.

        What runs goes on, from keys and values of the weights it had. Nothing that starts later shares those.
        """
        self._decoder.load(model)
        self._cache.outdate()
        self.weight_version = version

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Results in the order of the requests, whose ids may be equal.

        Raises:
            EngineError: a prompt is empty or leaves no room in the context, or something else can't be served.
        """
        for request in requests:
            self.check(request)
        for index, request in enumerate(requests):
            self._queue(replace(request, rid=str(index)))
        results: dict[int, GenerateResult] = {}
        while not self.idle:
            for progress in self.step():
                if progress.result is not None:
                    index = int(progress.rid)
                    results[index] = replace(progress.result, rid=requests[index].rid)
        return [results[i] for i in range(len(requests))]

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self) -> list[Progress]:
        """Draw one token for each sequence that runs, let waiting ones join, and tell what happened.

        One pass of the model does both: those which join have their prompts computed, and draw from the next step on.
        """
        self._clock += 1
        with torch.inference_mode():
            told = self.end_aborted()
            self._sort()
            drawing = len(self._running)
            first, *others = _cut(self._admit()) or [[]]
            if drawing or first:
                hidden_ND = self._forward(drawing, first)
                for batch in others:
                    self._forward(0, batch)
                told += self._draw(hidden_ND[:drawing])
        return told

    def end_aborted(self) -> list[Progress]:
        """What a step does first: tell what has become of aborted requests. Nothing is drawn."""
        if not self._aborted:
            return []
        self._aborted = False
        results = [self._result(s, None) for s in self._waiting if s.ended]
        self._waiting = deque(s for s in self._waiting if not s.ended)
        with torch.inference_mode():
            results += self._end([row for row, sequence in enumerate(self._running) if sequence.ended])
        return [Progress(result.rid, [], [], result, self.weight_version) for result in results]

    def _sort(self) -> None:
        if self._clock % _SORTING_STEPS == 0 and (order := self._cache.sort(len(self._running))):
            self._running = [self._running[row] for row in order]

    def _admit(self) -> list[tuple[_Sequence, Piece]]:
        """Give waiting requests rows; what is left to compute of their prompts but for the last token.

        A prompt that shares more with one that joins in this step than with any row waits for the next step.
        """
        joining: list[tuple[_Sequence, Piece]] = []
        put_off: list[_Sequence] = []
        first = len(self._running)
        while self._waiting and len(self._running) < self.max_batch:
            sequence = self._waiting.popleft()
            ids = list(sequence.request.input_ids[:-1])
            shared_R = self._cache.shared_prefixes(ids)
            row = len(self._running)
            at_hand = max(shared_R[:first].max(initial=0), shared_R[row:].max(initial=0))
            if shared_R[first:row].max(initial=0) >= at_hand + SHORTEST_PREFIX:
                put_off.append(sequence)
                continue
            shared_R[first:row] = 0
            self._cache.make_room(len(ids) + 1)
            sequence.cached = self._cache.begin(row, ids, sequence.reusable, self._clock, shared_R)
            self._running.append(sequence)
            if sequence.cached < len(ids):
                joining.append((sequence, Piece(row, sequence.cached, ids[sequence.cached :])))
        self._waiting.extendleft(reversed(put_off))
        return joining

    def _forward(self, drawing: int, joining: Sequence[tuple[_Sequence, Piece]]) -> Tensor:
        """Hidden states: of the next token of the first `drawing` sequences, then of the pieces of those which join."""
        positions_B = torch.from_numpy(self._cache.lengths[:drawing].copy())
        if drawing:
            self._cache.make_room(int(positions_B.max()) + 1)
        ids_B = torch.tensor([s.last_id for s in self._running[:drawing]], dtype=torch.int64)
        hidden_ND = self._decoder.forward(self._cache, ids_B, positions_B, [piece for _, piece in joining])
        self._cache.lengths[:drawing] += 1
        sizes = [drawing, *(len(piece.ids) for _, piece in joining)]
        for (sequence, piece), hidden_nD in zip(joining, torch.split(hidden_ND, sizes)[1:], strict=True):
            if sequence.request.input_logprobs_from is not None:
                sequence.input_logprobs += self._input_logprobs(sequence.request, piece, hidden_nD)
        return hidden_ND

    def _input_logprobs(self, request: GenerateRequest, piece: Piece, hidden_nD: Tensor) -> list[float]:
        """Log-probs at temperature 1 of the prompt's tokens that a piece predicts, as far as they are asked for."""
        assert request.input_logprobs_from is not None
        targets = range(max(request.input_logprobs_from, piece.start + 1), piece.start + len(piece.ids) + 1)
        if not targets:
            return []
        ids_n1 = torch.tensor([request.input_ids[t] for t in targets])[:, None]
        logprobs: list[float] = []
        scored_nD = hidden_nD[targets.start - 1 - piece.start :]
        parts = zip(torch.split(scored_nD, _SCORED_TOKENS), torch.split(ids_n1, _SCORED_TOKENS), strict=True)
        for part_nD, part_n1 in parts:
            logprobs += torch.log_softmax(self._decoder.logits(part_nD), dim=-1).gather(-1, part_n1)[:, 0].tolist()
        return logprobs

    def _draw(self, hidden_BD: Tensor) -> list[Progress]:
        running = self._running[: len(hidden_BD)]
        if not running:
            return []
        uniform = [s.uniform[len(s.output)] for s in running]
        params = [s.params for s in running]
        tokens_B, probs_BV = sample(self._decoder.logits(hidden_BD), params, uniform)
        probs_B = probs_BV.gather(-1, tokens_B[:, None])[:, 0]
        progress, ended = [], []
        for row, (one, token, prob) in enumerate(zip(running, tokens_B.tolist(), probs_B.tolist(), strict=True)):
            logprob = math.log(prob)  # a vector's logarithm would depend on its length, in the last bit
            one.output.append(token)
            one.logprobs.append(logprob)
            if one.request.top_logprobs:
                one.top.append(_most_likely(probs_BV[row], one.request.top_logprobs))
            if token in one.params.stop_token_ids:
                one.ended = "stop"
            elif len(one.output) == one.limit:
                one.ended = "length"
            if one.ended:
                ended.append(row)
            progress.append(Progress(one.request.rid, [token], [logprob], None, self.weight_version))
        for row, result in zip(ended, self._end(ended), strict=True):
            progress[row] = progress[row]._replace(result=result)
        return progress

    def _end(self, rows: Sequence[int]) -> list[GenerateResult]:
        """Results of what is in these rows, which go to the end and are kept as long as there is room."""
        results = [self._result(self._running[row], row) for row in rows]
        for row in reversed(rows):
            last = len(self._running) - 1
            self._cache.swap(row, last)
            self._running[row] = self._running[last]
            self._running.pop()
        return results

    def _result(self, sequence: _Sequence, row: int | None) -> GenerateResult:
        request = sequence.request
        del self._in_flight[request.rid]
        assert sequence.ended is not None
        return GenerateResult(
            rid=request.rid,
            output_ids=sequence.output,
            output_logprobs=sequence.logprobs,
            finish_reason=sequence.ended,
            weight_version=self.weight_version,
            cached_tokens=sequence.cached,
            routed_experts=self._routing(row) if request.return_routed_experts else None,
            input_logprobs=sequence.input_logprobs if request.input_logprobs_from is not None else None,
            top_logprobs=sequence.top if request.top_logprobs else None,
        )

    def _routing(self, row: int | None) -> NDArray[np.int32]:
        """[tokens, layers, experts a token] of what a row holds; layers without experts are zeros."""
        held_TMK = (
            self._cache.routing[row, : self._cache.lengths[row]] if row is not None else self._cache.routing[0, :0]
        )
        routing = np.zeros((len(held_TMK), self._num_layers, held_TMK.shape[-1]), dtype=np.int32)
        routing[:, self._decoder.moe_layers] = held_TMK.numpy()
        return routing


def _cut(joining: Sequence[tuple[_Sequence, Piece]]) -> list[list[tuple[_Sequence, Piece]]]:
    """Batches of at most `_PREFILL_TOKENS` tokens; a piece that doesn't fit goes on in the next batch."""
    batches: list[list[tuple[_Sequence, Piece]]] = []
    room = 0
    for sequence, piece in joining:
        start = 0
        while start < len(piece.ids):
            if not room:
                batches.append([])
                room = _PREFILL_TOKENS
            part = piece.ids[start : start + room]
            batches[-1].append((sequence, Piece(piece.row, piece.start + start, part)))
            start, room = start + len(part), room - len(part)
    return batches


def _most_likely(probs_V: Tensor, count: int) -> list[tuple[float, int]]:
    """Log-probs and ids."""
    probs, ids = probs_V.topk(min(count, len(probs_V)))
    return [(math.log(max(p, _LEAST)), token) for p, token in zip(probs.tolist(), ids.tolist(), strict=True)]
