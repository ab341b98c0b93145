"""The agent loop: many episodes in lockstep, one batched generate call for each round of turns.

The token trajectory only ever grows: sampled ids, then the template's suffix for what the tools said (GYM-14..16).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from rufus_core.data.chat import ChatFormat
from rufus_core.data.tool_calls import MalformedCall
from rufus_core.errors import EngineError, InfrastructureError
from rufus_core.gym.limits import Limits
from rufus_core.ports.engine import Engine, GenerateRequest, GenerateResult, SamplingParams
from rufus_core.ports.gym import Environment, Gym
from rufus_core.rewards.timed import timed
from rufus_core.types import (
    Episode,
    Message,
    Problem,
    Termination,
    ToolCall,
    ToolResult,
    Trajectory,
    Verdict,
    content_id,
)


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """One rollout to be made. The seed fixes every token drawn in it."""

    problem: Problem
    sample_index: int
    seed: int


def run_episodes(
    engine: Engine,
    chat: ChatFormat,
    gym: Gym,
    specs: Sequence[EpisodeSpec],
    limits: Limits,
    *,
    workers: int = 2,
) -> list[Trajectory]:
    """Roll out every spec and score it. Results keep the order of the specs.

    An InfrastructureError aborts its own episode only (CA-R3); any other exception is a bug and is raised. A problem
    whose prompt leaves no room to answer is unscorable and opens no environment.

    Raises:
        EngineError: the engine can't serve a prompt, or was asked for routing and gave none that fits the tokens.
    """
    limits = replace(limits, trajectory_tokens=min(limits.trajectory_tokens, engine.context_length))
    runs = [_Run(spec, chat, limits) for spec in specs]
    with ThreadPoolExecutor(workers) as pool:
        try:
            _each(pool, [run for run in runs if run.termination is None], lambda run: run.open(gym))
            while active := [run for run in runs if run.termination is None]:
                results = engine.generate([run.request() for run in active])
                for run, result in zip(active, results, strict=True):
                    run.take_turn(result)
                _each(pool, [run for run in active if run.actions], _Run.act)
            _each(pool, runs, _Run.score)
        finally:
            _each(pool, runs, _Run.close)
    return [run.trajectory() for run in runs]


def _each(pool: ThreadPoolExecutor, runs: Iterable[_Run], work: Callable[[_Run], None]) -> None:
    """Do one thing for every run. All have ended before a bug in one is raised, so none is closed while it works."""
    futures = [pool.submit(work, run) for run in runs]
    wait(futures)
    for future in futures:
        future.result()


@dataclass(slots=True)
class _Run:
    """One episode in progress."""

    spec: EpisodeSpec
    chat: ChatFormat
    limits: Limits
    environment: Environment | None = None
    episode: Episode = field(init=False)
    token_ids: list[int] = field(init=False)
    loss_mask: list[int] = field(init=False)
    logprobs: list[float] = field(init=False)
    routed_experts: NDArray[np.int32] | None = None
    actions: tuple[ToolCall | MalformedCall, ...] = ()
    termination: Termination | None = None
    verdict: Verdict | None = None
    weight_version: str = ""
    num_turns: int = 0

    def __post_init__(self) -> None:
        problem = self.spec.problem
        self.token_ids = self.chat.prompt_ids(problem.prompt, problem.tools)
        self.loss_mask = [0] * len(self.token_ids)
        self.logprobs = [0.0] * len(self.token_ids)
        self.episode = Episode(problem, list(problem.prompt), Termination.RUNTIME_ERROR)
        if len(self.token_ids) >= self.limits.trajectory_tokens:
            self.termination = Termination.MAX_CONTEXT_LENGTH
            self.verdict = Verdict.unscorable(f"a prompt of {len(self.token_ids)} tokens leaves no room for an answer")

    def open(self, gym: Gym) -> None:
        try:
            self.environment = gym.open(self.spec.problem)
        except InfrastructureError as error:
            self._abort(Termination.ABORTED_SANDBOX_BOOT, str(error))

    def request(self) -> GenerateRequest:
        room = self.limits.trajectory_tokens - len(self.token_ids)
        seed = int(content_id(self.spec.seed, self.spec.problem.id, self.spec.sample_index, self.num_turns)[:15], 16)
        return GenerateRequest(
            rid=f"{self.spec.problem.id}.{self.spec.sample_index}.{self.num_turns}",
            input_ids=self.token_ids,
            sampling_params=SamplingParams(
                max_new_tokens=min(self.limits.turn_tokens, room),
                temperature=self.limits.temperature,
                top_p=self.limits.top_p,
                stop_token_ids=self.chat.stop_token_ids,
                sampling_seed=seed,
            ),
            return_routed_experts=self.limits.record_routing,
        )

    def take_turn(self, result: GenerateResult) -> None:
        self.token_ids = self.token_ids + result.output_ids  # a new list: the request still holds the old one
        self.loss_mask += [1] * len(result.output_ids)
        self.logprobs += result.output_logprobs
        self.episode.num_response_tokens += len(result.output_ids)
        self.episode.num_final_tokens = self.chat.num_final_tokens(result.output_ids)
        self.weight_version = result.weight_version
        self.num_turns += 1
        if result.finish_reason == "abort":
            self.routed_experts = None  # there may be tokens without routing; no part of it is trained on
            self._abort(Termination.ABORTED_CONNECTION, "the engine aborted the request")
            return
        if self.limits.record_routing:
            self._extend_routing(result)
        if result.finish_reason == "length":  # decided before any tool call is read
            full = len(self.token_ids) >= self.limits.trajectory_tokens
            self.termination = Termination.MAX_CONTEXT_LENGTH if full else Termination.MAX_GENERATION_LENGTH
            return
        turn = self.chat.parse(result.output_ids, self.spec.problem.tools)
        self.episode.messages.append(turn.message)
        calls_left = self.limits.tool_calls - self.episode.num_calls
        self.actions = turn.actions[:calls_left]
        if not turn.actions:
            self.termination = Termination.TASK_COMPLETE
        elif len(turn.actions) > calls_left:
            self.termination = Termination.MAX_TOOL_CALLS

    def _extend_routing(self, result: GenerateResult) -> None:
        """Keep what earlier turns recorded and add the rest: the last turn's last token, its observation, this turn.

        A token that was sampled keeps the experts it was sampled with, also where this turn computed it again.
        """
        rows = result.routed_experts
        if rows is None or len(rows) != len(self.token_ids) - 1:
            given = "no routing" if rows is None else f"{len(rows)} rows of routing"
            raise EngineError(
                f"the engine gave {given} for {len(self.token_ids)} tokens; it must give one less than tokens",
                where=f"request {result.rid}",
                hint="router replay needs an engine that reports the experts of every token but the last",
            )
        known = self.routed_experts
        self.routed_experts = rows if known is None else np.concatenate([known, rows[len(known) :]])

    def act(self) -> None:
        """Run the turn's tool calls in order and append what they returned; the observation is never trained on."""
        assert self.environment is not None
        observations = []
        for action in self.actions:
            self.episode.num_calls += 1
            try:
                observations.append(self._observe(self.environment, action))
            except InfrastructureError as error:
                self._abort(Termination.ABORTED_CONNECTION, str(error))
                return
        self.actions = ()
        self.episode.messages += [Message(role="tool", content=text) for text in observations]
        if self.num_turns == self.limits.iterations:
            self.termination = self.termination or Termination.MAX_ITERATIONS
        if self.termination is None:
            self._append(self.chat.tool_suffix_ids(observations, self.token_ids[-1]))

    def _observe(self, environment: Environment, action: ToolCall | MalformedCall) -> str:
        if isinstance(action, MalformedCall):
            self.episode.num_malformed_calls += 1
            result = ToolResult(f"error: {action.reason}", failed=True)
        else:
            result = environment.call(action)
        self.episode.num_successful_calls += not result.failed
        return self.chat.truncate(result.content, self.limits.result_tokens)

    def _append(self, suffix: list[int]) -> None:
        """Make the observation part of the next prompt; if that leaves no room to answer, the episode ends before."""
        if len(self.token_ids) + len(suffix) >= self.limits.trajectory_tokens:
            self.termination = Termination.MAX_CONTEXT_LENGTH
            return
        self.token_ids = self.token_ids + suffix
        self.loss_mask += [0] * len(suffix)
        self.logprobs += [0.0] * len(suffix)

    def score(self) -> None:
        assert self.termination is not None
        self.episode.termination = self.termination
        if self.verdict is None:
            assert self.environment is not None
            try:
                self.verdict = timed(self.environment.score)(self.episode)
            except InfrastructureError as error:
                self._abort(Termination.ABORTED_VERIFIER_TIMEOUT, str(error))

    def close(self) -> None:
        if self.environment is not None:
            self.environment.cleanup()

    def trajectory(self) -> Trajectory:
        assert self.verdict is not None
        return Trajectory(
            problem_id=self.spec.problem.id,
            sample_index=self.spec.sample_index,
            token_ids=self.token_ids,
            loss_mask=self.loss_mask,
            logprobs=self.logprobs,
            episode=self.episode,
            verdict=self.verdict,
            weight_version=self.weight_version,
            routed_experts=self.routed_experts,
            reward=self.verdict.score,
        )

    def _abort(self, reason: Termination, detail: str) -> None:
        self.termination = self.episode.termination = reason
        self.actions = ()
        self.verdict = Verdict.aborted(detail)
