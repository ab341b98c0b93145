"""Several servers of one policy: the embedded engine's, which speak the same protocol and start at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from rufus_core.errors import ConfigError, EngineError, InfrastructureError, LineageError
from rufus_core.ports.engine import GenerateResult
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.opening import open_engine
from rufus_core.rollout.policy import Policy
from rufus_core.rollout.sglang.engine import SGLangEngine, pool_of
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.pool import ServerPool
from rufus_core.settings import ExecutionSettings, SGLangSettings
from tests.rollout.requests import prompts, request
from tests.rollout.server.process import ServerProcess
from tests.rollout.sglang.policies import CONTEXT, Trained, miniature, moved


@pytest.fixture(scope="module")
def policy() -> Policy:
    return miniature()


@pytest.fixture(scope="module")
def checkpoint(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies") / "miniature"
    policy.save(folder)
    return folder


@pytest.fixture(scope="module")
def servers(checkpoint: Path) -> Iterator[list[ServerProcess]]:
    with ServerProcess(checkpoint) as one, ServerProcess(checkpoint) as other:
        yield [one, other]


def pool_at(urls: list[str], checkpoint: Path) -> ServerPool:
    return pool_of(urls, PolicyFacts.of(checkpoint), CONTEXT, SGLangSettings())


def test_groups_are_shared_out_and_stay_together(
    servers: list[ServerProcess], checkpoint: Path, policy: Policy
) -> None:
    before = [server.load()["num_added"] for server in servers]
    wanted = [request(ids, f"p{i}.{k}.0", sampling_seed=k) for i, ids in enumerate(prompts([20] * 6)) for k in range(4)]
    got = pool_at([server.url for server in servers], checkpoint).generate(wanted)
    expected = EmbeddedEngine(policy.model).generate(wanted)
    assert [(r.rid, r.output_ids) for r in got] == [(r.rid, r.output_ids) for r in expected]
    added = [server.load()["num_added"] - start for server, start in zip(servers, before, strict=True)]
    assert sum(added) == len(wanted)
    assert min(added) >= len(wanted) // 4
    computed_once = sum(result.cached_tokens > 0 for result in got)
    assert computed_once >= len(wanted) - 2 * 6  # of each group, all but those that the two servers saw first


def test_a_refused_request_ends_the_others(servers: list[ServerProcess], checkpoint: Path) -> None:
    pool = pool_at([server.url for server in servers], checkpoint)
    with pytest.raises(EngineError, match="vocabulary"):
        pool.generate([request(rid="fine", max_new_tokens=400), request([10**6], "bad")])
    for server in servers:
        server.assert_quiet()


def test_requests_of_a_server_that_is_killed_go_to_another(
    servers: list[ServerProcess], checkpoint: Path, policy: Policy
) -> None:
    doomed = ServerProcess(checkpoint)
    doomed.__enter__()
    pool = pool_at([doomed.url, servers[0].url], checkpoint)
    wanted = [request(ids, f"p{i}.0.0", max_new_tokens=400) for i, ids in enumerate(prompts([5] * 24))]
    results: list[GenerateResult] = []
    playing = threading.Thread(target=lambda: results.extend(pool.generate(wanted)))
    playing.start()
    while not doomed.load()["num_running"]:
        playing.join(0.01)
        assert playing.is_alive()
    process = psutil.Process(doomed._process.pid)
    process.kill()
    doomed._process.wait()
    playing.join()
    expected = EmbeddedEngine(policy.model).generate(wanted)
    assert [r.output_ids for r in results] == [r.output_ids for r in expected]
    assert [server.url for server in pool.living] == [servers[0].url]
    alone = pool_at([servers[0].url], checkpoint)
    alone.lose(alone.living[0], "the test says so")
    with pytest.raises(InfrastructureError, match=r"no engine is left: .*the test says so"):
        alone.generate(wanted)


def test_all_servers_follow_the_trainer(servers: list[ServerProcess], checkpoint: Path, policy: Policy) -> None:
    execution = ExecutionSettings(engine="sglang", sglang=SGLangSettings(urls=tuple(server.url for server in servers)))
    wanted = [request(rid=f"{i}.0", temperature=0.0) for i in range(4)]
    with open_engine(execution, checkpoint, lambda: policy.model) as engine:
        assert isinstance(engine, SGLangEngine)
        for version, trained in (("next", moved(policy, 1)), ("0", policy)):
            engine.update_weights(Trained(trained), version)
            [expected] = EmbeddedEngine(trained.model).generate(wanted[:1])
            for got in engine.generate(wanted):
                assert (got.output_ids, got.weight_version) == (expected.output_ids, version)


def test_an_address_where_nothing_is_or_something_else_is_told(servers: list[ServerProcess], checkpoint: Path) -> None:
    with pytest.raises(InfrastructureError, match="can't reach the server"):
        pool_at(["http://127.0.0.1:9"], checkpoint)
    with pytest.raises(InfrastructureError, match="doesn't say what it serves"):
        pool_at([f"{servers[0].url}/v1"], checkpoint)


def test_the_embedded_engine_is_opened_without_any_server(policy: Policy, checkpoint: Path) -> None:
    wanted = [request()]
    with open_engine(ExecutionSettings(), checkpoint, lambda: policy.model, context_tokens=64) as engine:
        assert engine.context_length == 64
        trained = moved(policy, 1)
        engine.update_weights(Trained(trained), "1")
        assert engine.generate(wanted)[0].output_ids == EmbeddedEngine(trained.model).generate(wanted)[0].output_ids


def test_a_missing_sglang_is_told_before_anything_starts(policy: Policy, checkpoint: Path) -> None:
    execution = ExecutionSettings(engine="sglang", sglang=SGLangSettings(python="/nowhere/python"))
    with (
        pytest.raises(ConfigError, match="no SGLang for /nowhere/python"),
        open_engine(execution, checkpoint, lambda: policy.model),
    ):
        pass


def test_the_shape_of_a_policy_is_read_without_its_weights(policy: Policy, checkpoint: Path, tmp_path: Path) -> None:
    config = policy.model.config
    facts = PolicyFacts.of(checkpoint)
    assert facts == PolicyFacts(
        CONTEXT, config.vocab_size, config.num_hidden_layers, config.num_experts_per_tok, "float32"
    )
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LineageError, match="max_position_embeddings"):
        PolicyFacts.of(tmp_path)


def test_httpx_is_asked_for_no_proxy(
    monkeypatch: pytest.MonkeyPatch, servers: list[ServerProcess], checkpoint: Path
) -> None:
    """Engines are on one's own machines; a proxy of the environment's would carry the tokens elsewhere."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    [result] = pool_at([servers[0].url], checkpoint).generate([request()])
    assert result.output_ids
    with pytest.raises(httpx.ConnectError):
        httpx.get(servers[0].url)
