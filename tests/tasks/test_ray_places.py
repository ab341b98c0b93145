"""Ranks, engines and environments at their places on two real nodes."""

from __future__ import annotations

import errno
import os
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import pytest

from rufus_core.data.chat import ChatFormat
from rufus_core.errors import InfrastructureError, RankLost
from rufus_core.gym.limits import Limits
from rufus_core.gym.loop import EpisodeSpec, run_episodes
from rufus_core.ports.engine import GenerateRequest, GenerateResult
from rufus_core.ports.gym import Environment
from rufus_core.ports.ranks import EngineServer, GymActors, RankPlace
from rufus_core.rollout.policy import Policy
from rufus_core.types import (
    Episode,
    Message,
    Problem,
    Termination,
    ToolCall,
    ToolResult,
    ToolSchema,
    Verdict,
    VerdictKind,
)
from tasks.ray_ranks import RayRanks, shares
from tests.tasks.ray_nodes import Nodes, two_nodes
from tests.warm import apart

pytest.importorskip("aiohttp_cors", reason="Ray's Jobs API isn't installed: pip install 'rufus-air[ray]'")
RUFUS = Path(sys.executable).with_name("rufus")
DEADLY = "deadly"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """In a folder with a short name, for the paths of sockets are bounded."""
    with (
        tempfile.TemporaryDirectory(prefix="r") as folder,
        two_nodes(Path(folder)) as nodes,
    ):
        yield nodes


def test_neighbours_share_a_place() -> None:
    assert shares(5, 2) == [2, 2, 1]
    assert shares(3, 1) == [1, 1, 1]


def _note_place(folder: Path, place: RankPlace, stop: threading.Event) -> dict[str, Any]:
    """Each rank leaves its node; rank 0 asks the engine who it is once the other has."""
    import ray

    node = ray.get_runtime_context().get_node_id()
    (folder / f"rank-{place.rank}").write_text(node)
    (url,) = place.engines
    told: dict[str, Any] = httpx.get(f"{url}/model_info", timeout=60.0).json()
    while not all((folder / f"rank-{rank}").exists() for rank in range(place.size)):
        pass
    return told


def _run_ranks(folder: Path, policy: Path, address: str) -> tuple[dict[str, Any], InfrastructureError]:
    serve = (str(RUFUS), "serve", str(policy), "--host", "{host}", "--port", "{port}", "--threads", "1")
    engine = EngineServer(serve, {"CPU": 1.0})
    broken = EngineServer(("/bin/false",), {"CPU": 1.0})
    work, stop = partial(_note_place, folder), threading.Event()
    told = RayRanks().run(work, 2, 1, address, {}, stop, together=2, engines=[engine])
    with pytest.raises(InfrastructureError) as caught:
        RayRanks().run(work, 2, 1, address, {}, stop, together=2, engines=[broken])
    return told, caught.value


@pytest.mark.slow
def test_ranks_that_belong_together_share_a_node_and_hear_of_their_engine(
    nodes: Nodes, tmp_path: Path, tiny_policy: Policy
) -> None:
    """Only one node has room for two ranks, so the engine is on the other."""
    tiny_policy.save(tmp_path / "policy")
    result = apart(tmp_path, _run_ranks, tmp_path, tmp_path / "policy", nodes.address)
    assert not isinstance(result, Exception), result
    told, broken = result
    assert told["model_path"] == str(tmp_path / "policy")
    first, second = ((tmp_path / f"rank-{rank}").read_text() for rank in range(2))
    assert first == second
    assert "the engine ended with 1: /bin/false" in str(broken)


def _fill_the_disk(place: RankPlace, stop: threading.Event) -> None:
    if place.rank:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "rollouts/step-1.parquet")
    stop.wait()


def _run_on_a_full_disk(address: str) -> OSError:
    with pytest.raises(OSError, match="No space left") as caught:
        RayRanks().run(_fill_the_disk, 2, 1, address, {}, threading.Event(), together=2)
    return caught.value


@pytest.mark.slow
def test_what_a_disk_refuses_a_rank_reaches_the_job_with_its_number(nodes: Nodes, tmp_path: Path) -> None:
    """By which a job knows to keep the state of a training: the machine is at fault."""
    error = apart(tmp_path, _run_on_a_full_disk, nodes.address)
    assert (error.errno, error.filename) == (errno.ENOSPC, "rollouts/step-1.parquet")


def _take_memory(place: RankPlace, stop: threading.Event) -> None:
    held = bytearray(100 << 20)
    stop.wait()
    raise AssertionError(len(held))


def _run_beyond_memory() -> InfrastructureError:
    os.environ |= {"RAY_memory_usage_threshold": "0.0001", "RAY_memory_monitor_refresh_ms": "100"}
    with pytest.raises(RankLost) as caught:
        RayRanks().run(_take_memory, 2, 1, None, {}, threading.Event())
    return caught.value


@pytest.mark.slow
def test_a_rank_that_rays_memory_monitor_kills_is_lost(tmp_path: Path) -> None:
    """Hence the job is tried again from its last state."""
    lost = apart(tmp_path, _run_beyond_memory)
    assert re.match("rank [01] of 2 died: ", lost.what)


_SAYS_ITS_GPUS = """
import http.server, os, sys
class Says(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.environ['CUDA_VISIBLE_DEVICES']} {os.getpid()}".encode())
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Says).serve_forever()
"""


def _note_gpus(folder: Path, place: RankPlace, stop: threading.Event) -> str:
    """Each rank leaves its GPU; rank 0 asks the engine for its own."""
    import ray

    [gpu] = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    (folder / f"gpu-{place.rank}").write_text(gpu)
    while not all((folder / f"gpu-{rank}").exists() for rank in range(place.size)):
        pass
    return httpx.get(place.engines[0], timeout=60.0).text


def _run_colocated(folder: Path, address: str) -> str:
    says = (sys.executable, "-c", _SAYS_ITS_GPUS, "{host}", "{port}")
    engine = EngineServer(says, {}, health="/", beside=(0, 1))
    work = partial(_note_gpus, folder)
    told: str = RayRanks().run(work, 2, 1, address, {"GPU": 1.0}, threading.Event(), together=2, engines=[engine])
    return told


@pytest.mark.slow
def test_an_engine_that_takes_turns_has_the_gpus_of_its_ranks_SLM_10(nodes: Nodes, tmp_path: Path) -> None:
    """SLM-10: "rollout engines and trainer share GPUs and alternate". The node has no GPU more than its ranks take.

    And the engine ends with the training.
    """
    result = apart(tmp_path, _run_colocated, tmp_path, nodes.address)
    assert not isinstance(result, Exception), result
    told, pid = result.split()
    with suppress(psutil.NoSuchProcess):
        psutil.Process(int(pid)).wait(60.0)
    assert not psutil.pid_exists(int(pid))
    assert told.split(",") == [(tmp_path / f"gpu-{rank}").read_text() for rank in range(2)]
    assert sorted(told.split(",")) == ["0", "1"]


class _Mortal:
    """An environment whose verifier kills its process for one kind of problem."""

    tools: Sequence[ToolSchema] = ()

    def call(self, call: ToolCall) -> ToolResult:
        raise AssertionError(call)

    def score(self, episode: Episode) -> Verdict:
        if episode.problem.id == DEADLY:
            os._exit(1)
        return Verdict(kind=VerdictKind.PASS, score=1.0)

    def cleanup(self) -> None: ...


class _MortalGym:
    def open(self, problem: Problem) -> Environment:
        return _Mortal()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...


class _Silent:
    """An engine that ends each answer at once."""

    context_length = 128

    def __init__(self, chat: ChatFormat) -> None:
        self._stop = chat.stop_token_ids[0]

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        return [GenerateResult(each.rid, [self._stop], [0.0], "stop", "1") for each in requests]


def _play(chat: ChatFormat, address: str) -> list[list[tuple[str, Termination, str]]]:
    problems = [
        Problem(id=name, family="f", source="s", prompt=(Message(role="user", content="add"),))
        for name in ("a", DEADLY)
    ]
    specs = [EpisodeSpec(problem, 0, 0) for problem in problems]
    limits = Limits(turn_tokens=8, trajectory_tokens=100, tool_calls=0, result_tokens=8)
    played = []
    with RayRanks().gym(GymActors(_MortalGym, 2, 1), address) as gym:
        for _ in range(2):  # the second time, the dead actor was started anew
            trajectories = run_episodes(_Silent(chat), chat, gym, specs, limits)
            played.append([(t.problem_id, t.episode.termination, t.verdict.kind.value) for t in trajectories])
    return played


@pytest.mark.slow
def test_an_episode_whose_actor_dies_is_aborted_and_no_zero(nodes: Nodes, tmp_path: Path, chat: ChatFormat) -> None:
    played = apart(tmp_path, _play, chat, nodes.address)
    assert not isinstance(played, Exception), played
    lives = ("a", Termination.TASK_COMPLETE, VerdictKind.PASS.value)
    dies = (DEADLY, Termination.ABORTED_VERIFIER_TIMEOUT, VerdictKind.ABORTED.value)
    assert played == [[lives, dies]] * 2
