"""A real SGLang server on a CPU, started and spoken to as in production; its numbers are the embedded engine's.

It takes half a minute to start and longer to answer its first request, so all tests share one; the last one kills it.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from rufus_core.errors import EngineError, InfrastructureError
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.opening import open_engine
from rufus_core.rollout.policy import Policy
from rufus_core.rollout.sglang.client import SGLangServer
from rufus_core.rollout.sglang.engine import SGLangEngine, pool_of
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.wire import request_body
from rufus_core.settings import ExecutionSettings, PrecisionSettings
from tests.rollout.requests import PROMPT, full_logprobs, prompts, request
from tests.rollout.server.process import PATIENCE_SECONDS, ServerProcess
from tests.rollout.sglang.installed import cpu_settings, needs_sglang
from tests.rollout.sglang.policies import CONTEXT, Trained, miniature, moved

pytestmark = [needs_sglang, pytest.mark.slow]
TOLERANCE = 1e-4  # both compute in fp32


@pytest.fixture(scope="module")
def policy() -> Policy:
    return miniature()


@pytest.fixture(scope="module")
def checkpoint(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "miniature"
    policy.save(folder)
    return folder


@pytest.fixture(scope="module")
def engine(policy: Policy, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SGLangEngine]:
    execution = ExecutionSettings(engine="sglang", sglang=cpu_settings())
    precision = PrecisionSettings(rollout="fp32")
    scratch = tmp_path_factory.mktemp("scratch")
    with open_engine(execution, checkpoint, lambda: policy.model, precision=precision, scratch=scratch) as opened:
        assert isinstance(opened, SGLangEngine)
        yield opened


@pytest.fixture(scope="module")
def embedded(policy: Policy) -> EmbeddedEngine:
    return EmbeddedEngine(policy.model)


@pytest.fixture
def untouched(engine: SGLangEngine, policy: Policy) -> Iterator[None]:
    """The test changes the weights; afterwards they are the first again."""
    yield
    engine.settings = cpu_settings()
    engine.update_weights(Trained(policy), "0")


def server(engine: SGLangEngine) -> SGLangServer:
    [only] = engine.pool.living
    return only


def agree(got: GenerateResult, expected: GenerateResult) -> None:
    assert (got.rid, got.output_ids, got.finish_reason) == (expected.rid, expected.output_ids, expected.finish_reason)
    assert got.output_logprobs == pytest.approx(expected.output_logprobs, abs=TOLERANCE)


def same_sets(got: GenerateResult, expected: GenerateResult) -> bool:
    assert got.routed_experts is not None
    assert expected.routed_experts is not None
    return np.array_equal(np.sort(got.routed_experts, -1), np.sort(expected.routed_experts, -1))


def greedy(rid: str = "g", **wanted: object) -> GenerateRequest:
    return request(**{"rid": rid, "temperature": 0.0, **wanted})  # type: ignore[arg-type]


def test_a_group_agrees_with_the_embedded_engine_in_tokens_log_probs_and_routing(
    engine: SGLangEngine, embedded: EmbeddedEngine
) -> None:
    """SLM-06: what is recorded for replay is what Hugging Face's router would have chosen."""
    wanted = [greedy(f"p.{i}", prompt=ids, return_routed_experts=True) for i, ids in enumerate(prompts([3, 9, 40, 9]))]
    for got, expected in zip(engine.generate(wanted), embedded.generate(wanted), strict=True):
        agree(got, expected)
        assert same_sets(got, expected)
        assert got.weight_version == "0"


def test_log_probs_of_the_prompt_and_alternatives_agree(engine: SGLangEngine, embedded: EmbeddedEngine) -> None:
    wanted = [greedy(f"p.{start}", input_logprobs_from=start, top_logprobs=3) for start in (0, 1, 3)]
    for got, expected in zip(engine.generate(wanted), embedded.generate(wanted), strict=True):
        assert got.input_logprobs is not None
        assert got.input_logprobs == pytest.approx(expected.input_logprobs, abs=TOLERANCE)
        assert got.top_logprobs is not None
        assert expected.top_logprobs is not None
        for ours, theirs in zip(got.top_logprobs, expected.top_logprobs, strict=True):
            assert [token for _, token in ours] == [token for _, token in theirs]
            assert [p for p, _ in ours] == pytest.approx([p for p, _ in theirs], abs=TOLERANCE)


def test_sampled_tokens_carry_log_probs_at_the_sampling_temperature(engine: SGLangEngine, policy: Policy) -> None:
    """As the trainer computes them: of the tempered distribution, before top-p and top-k."""
    wanted = [
        request(rid=f"t.{i}", temperature=temperature, top_p=0.8, top_k=20)
        for i, temperature in enumerate((0.6, 1.0, 1.3))
    ]
    for each, got in zip(wanted, engine.generate(wanted), strict=True):
        expected = full_logprobs(policy.model, PROMPT, got.output_ids, each.sampling_params.temperature)
        assert got.output_logprobs == pytest.approx(expected, abs=TOLERANCE)


def test_a_stop_token_ends_a_reply_and_is_in_it(engine: SGLangEngine, embedded: EmbeddedEngine) -> None:
    [whole] = embedded.generate([greedy()])
    stop = whole.output_ids[4]
    wanted = greedy(stop_token_ids=(stop,))
    [got], [expected] = engine.generate([wanted]), embedded.generate([wanted])
    agree(got, expected)
    assert (got.finish_reason, got.output_ids[-1]) == ("stop", stop)


def test_a_reply_may_fill_the_context_to_its_last_token(engine: SGLangEngine, embedded: EmbeddedEngine) -> None:
    for length in (CONTEXT - 1, CONTEXT - 4):
        [ids] = prompts([length])
        wanted = greedy(prompt=ids, max_new_tokens=50)
        [got], [expected] = engine.generate([wanted]), embedded.generate([wanted])
        agree(got, expected)
        assert (len(ids) + len(got.output_ids), got.finish_reason) == (CONTEXT, "length")


def test_requests_of_equal_names_are_told_apart(engine: SGLangEngine, embedded: EmbeddedEngine) -> None:
    wanted = [greedy("same", prompt=ids) for ids in prompts([5, 6, 7])]
    for got, expected in zip(engine.generate(wanted), embedded.generate(wanted), strict=True):
        agree(got, expected)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (greedy(prompt=[]), "can't be continued"),
        (greedy(prompt=[5] * CONTEXT), "can't be continued"),
        (greedy(prompt=[10**6]), "not in the vocabulary"),
        (greedy(top_p=0.0), "top_p"),
        (greedy(max_new_tokens=0), "max_new_tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_reason(
    engine: SGLangEngine, wanted: GenerateRequest, reason: str
) -> None:
    with pytest.raises(EngineError, match=reason):
        engine.generate([greedy("fine"), wanted])


def test_what_the_server_itself_refuses_is_told_in_its_words(engine: SGLangEngine) -> None:
    wider = pool_of([server(engine).url], engine.pool.facts, 10 * CONTEXT, engine.settings)
    with pytest.raises(EngineError, match="context length"):
        wider.generate([greedy(prompt=[5] * 2 * CONTEXT)])
    with pytest.raises(InfrastructureError, match="update_weights_from_disk failed"):
        server(engine).control("/update_weights_from_disk", {"model_path": "/nowhere"})


class Streamed:
    """A long request under way: its first tokens have come."""

    def __init__(self, at: SGLangServer, rid: str) -> None:
        body = request_body(request(rid=rid, max_new_tokens=400), rid, CONTEXT) | {"stream": True}
        self._http = httpx.Client(timeout=PATIENCE_SECONDS)
        self._response = self._http.send(self._http.build_request("POST", f"{at.url}/generate", json=body), stream=True)
        self._lines = self._response.iter_lines()
        self.first = self._next()

    def _next(self) -> dict[str, object] | None:
        line = next((line for line in self._lines if line), "data: [DONE]").removeprefix("data: ")
        return None if line == "[DONE]" else json.loads(line)

    def last(self) -> dict:  # type: ignore[type-arg]
        last = self.first
        while (following := self._next()) is not None:
            last = following
        self._http.close()
        assert last is not None
        return last


def ended(at: SGLangServer, end: Callable[[], object]) -> dict:  # type: ignore[type-arg]
    """What a request has that is ended under way; one that was faster is sent again."""
    while True:
        going = Streamed(at, "going")
        end()
        last = going.last()
        if last["meta_info"]["finish_reason"]["type"] != "length":
            return last


def test_an_aborted_request_keeps_what_it_has(engine: SGLangEngine) -> None:
    at = server(engine)
    staying = Streamed(at, "staying")
    cut = ended(at, lambda: at.abort("going"))
    assert cut["meta_info"]["finish_reason"]["type"] == "abort"
    assert 1 <= len(cut["output_ids"]) < 400
    assert len(cut["meta_info"]["output_token_logprobs"]) == len(cut["output_ids"])
    assert staying.last()["meta_info"]["finish_reason"] == {"type": "length", "length": 400}
    assert ended(at, at.abort_all)["meta_info"]["finish_reason"]["type"] == "abort"


def test_an_abort_by_name_gives_the_one_who_waits_a_partial_result(engine: SGLangEngine) -> None:
    results: list[GenerateResult] = []
    wanted = request(rid="long", max_new_tokens=400, return_routed_experts=True)
    waiting = threading.Thread(target=lambda: results.extend(engine.generate([wanted])))
    waiting.start()
    while waiting.is_alive():  # until it has arrived there
        engine.abort("long")
        waiting.join(0.05)
    [result] = results
    assert result.finish_reason == "abort"
    assert len(result.output_ids) == len(result.output_logprobs) < 400


def test_a_pause_holds_what_runs_until_it_is_continued(engine: SGLangEngine) -> None:
    at = server(engine)
    held = Streamed(at, "held")
    at.pause("in_place")
    while at.flush_cache():  # it was faster than the pause
        at.resume()
        held = Streamed(at, "held")
        at.pause("in_place")
    at.resume()
    last = held.last()
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 400}
    assert len(last["output_ids"]) == 400
    assert at.flush_cache()


def test_a_pause_that_aborts_ends_what_runs(engine: SGLangEngine) -> None:
    at = server(engine)

    def pause() -> None:
        at.pause("abort")
        at.resume()

    assert ended(at, pause)["meta_info"]["finish_reason"]["type"] == "abort"


@pytest.mark.usefixtures("untouched")
@pytest.mark.parametrize("way", ["disk", "broadcast"])
def test_it_samples_by_the_trainers_newest_weights(engine: SGLangEngine, policy: Policy, way: str) -> None:
    engine.settings = cpu_settings(weights=way)
    wanted = [greedy(return_routed_experts=True)]
    seen = []
    for step in (1, 2):
        trained = moved(policy, step)
        engine.update_weights(Trained(trained), f"{way}-{step}")
        [got], [expected] = engine.generate(wanted), EmbeddedEngine(trained.model).generate(wanted)
        agree(got, expected)
        assert same_sets(got, expected)
        assert got.weight_version == server(engine).weight_version() == f"{way}-{step}"
        seen.append(got.output_ids)
    assert seen[0] != seen[1]
    assert list(engine.exchange.glob("*")) == []


@pytest.mark.usefixtures("untouched")
def test_memory_is_left_to_the_trainer_and_taken_again(engine: SGLangEngine, policy: Policy) -> None:
    """SLM-10. How much memory that is, only a GPU can show."""
    engine.settings = cpu_settings(colocated=True)
    engine.resume_memory()  # nothing was released
    held = Streamed(server(engine), "nobody waits for it")
    engine.release_memory()
    assert held.last()["meta_info"]["finish_reason"]["type"] == "abort"
    engine.release_memory()
    with pytest.raises(EngineError, match="left its memory"):
        engine.generate([greedy()])
    engine.resume_memory()
    trained = moved(policy, 3)
    engine.update_weights(Trained(trained), "after")
    [got], [expected] = engine.generate([greedy()]), EmbeddedEngine(trained.model).generate([greedy()])
    agree(got, expected)


@pytest.mark.usefixtures("untouched")
def test_a_policy_of_another_make_is_refused_and_the_old_weights_stay(
    engine: SGLangEngine, tiny_policy: Policy, embedded: EmbeddedEngine
) -> None:
    with pytest.raises(EngineError, match="of another make"):
        engine.update_weights(Trained(tiny_policy), "tiny")
    [got], [expected] = engine.generate([greedy()]), embedded.generate([greedy()])
    agree(got, expected)


def test_requests_of_a_server_that_is_killed_go_to_another(
    engine: SGLangEngine, embedded: EmbeddedEngine, checkpoint: Path
) -> None:
    """The last of these tests: no server of SGLang's is left."""
    url = server(engine).url
    facts = PolicyFacts.of(checkpoint)
    with ServerProcess(checkpoint) as other:
        pool = pool_of([url, other.url], facts, CONTEXT, cpu_settings())
        wanted = [greedy(f"{i}.0", prompt=ids, max_new_tokens=300) for i, ids in enumerate(prompts([5] * 16))]
        results: list[GenerateResult] = []
        playing = threading.Thread(target=lambda: results.extend(pool.generate(wanted)))
        playing.start()
        until_it_runs(url)
        kill_session(url)
        playing.join()
        assert [each.url for each in pool.living] == [other.url]
        for got, expected in zip(results, embedded.generate(wanted), strict=True):
            agree(got, expected)
    with pytest.raises(InfrastructureError, match="no engine is left"):
        engine.generate([greedy()])


def until_it_runs(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not httpx.get(f"{url}/v1/loads", timeout=PATIENCE_SECONDS).json()["loads"][0]["num_running_reqs"]:
        assert time.monotonic() < deadline


def kill_session(url: str) -> None:
    """All processes of the server that listens there, but for its keeper, which has to notice."""
    port = int(url.rpartition(":")[2])
    [listener] = {
        c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == "LISTEN" and c.pid
    }
    for process in [*psutil.Process(listener).children(recursive=True), psutil.Process(listener)]:
        os.kill(process.pid, signal.SIGKILL)
