"""Training jobs whose ranks are Ray actors: real ones, which are killed, told to stop, and go on."""

from __future__ import annotations

import importlib.util
import json
import socket
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from rufus_core.errors import ConfigError, InfrastructureError, RufusError
from rufus_core.jobs.ranks import load_launcher
from rufus_core.jobs.run import KINDS
from rufus_core.ports.ranks import RankPlace
from rufus_core.settings import ExecutionSettings
from rufus_core.training.ranks import ALONE, Ranks, TorchRanks
from tasks import ray_places
from tasks.ray_cluster import own_cluster
from tasks.ray_ranks import RayRanks
from tests.jobs import lives
from tests.jobs.lives import files_of, job_in, live_through_everything
from tests.jobs.miniature import Runner, short_chain, small_recipe
from tests.jobs.test_resume import MADE_ONCE, RL
from tests.training import toy
from tests.training.ranked import Trained, in_ranks, train
from tests.warm import apart

TWO_STEPS = {"run": {"steps": 2}, "optimizer": toy.PLAIN_STEP | {"lr_peak": 0.1}}
TOYS = {"sft": toy.sft_stage(**TWO_STEPS), "grpo": toy.rl_stage(**TWO_STEPS, algorithm={"name": "grpo"})}
RUN = {"steps": 40, "checkpoint_interval_steps": 20}  # enough that none of what is done to it comes too late


def _both_toys(parent: Path, folder: Path, ranks: Ranks) -> list[Trained]:
    return [train(ranks, parent, stage, folder / name) for name, stage in TOYS.items()]


def _both_toys_at(parent: Path, folder: Path, place: RankPlace, stop: threading.Event) -> list[Trained]:
    return _both_toys(parent, folder, TorchRanks(place))


def _on_a_running_cluster(parent: Path, folder: Path) -> tuple[list[Trained], RufusError]:
    """What two actors train, and what one says that needs what isn't there."""
    ray_places.PLACEMENT_SECONDS = 1.0
    work = partial(_both_toys_at, parent, folder)
    with own_cluster(2) as address:
        with pytest.raises(InfrastructureError) as caught:
            RayRanks().run(work, 2, 1, address, {"unicorns": 1.0}, threading.Event())
        ray_places.PLACEMENT_SECONDS = 300.0
        return RayRanks().run(work, 2, 1, address, {}, threading.Event()), caught.value


@pytest.mark.slow
def test_two_actors_train_as_one_process_does_and_as_two_others_bit_for_bit(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    toy.speaking_policy().save(parent)
    alone = apart(tmp_path, _both_toys, parent, tmp_path, ALONE)
    (tmp_path / "plain").mkdir()
    plain, _ = in_ranks(2, tmp_path, _both_toys_in, parent, tmp_path / "plain")
    (tmp_path / "actors").mkdir()
    actors, no_room = apart(tmp_path, _on_a_running_cluster, parent, tmp_path / "actors")
    for one, two, ours in zip(alone, plain, actors, strict=True):
        assert (ours.rows, ours.issued) == (two.rows, two.issued)
        assert [ids for _, ids, _ in ours.issued] == [ids for _, ids, _ in one.issued]
        assert len(ours.rows) == 2
        for here, there in zip(ours.rows, one.rows, strict=True):
            assert here == pytest.approx(there, rel=1e-5, abs=1e-5)
        for name, weight in one.weights.items():
            assert torch.equal(ours.weights[name], two.weights[name])
            assert (ours.weights[name] - weight).abs().max() < 1e-5
    assert "no room for [{'CPU': 1.0, 'unicorns': 1.0}, {" in no_room.what
    assert "'unicorns': 0.0" in no_room.what


def _both_toys_in(ranks: Ranks, parent: Path, folder: Path) -> list[Trained]:
    return _both_toys(parent, folder, ranks)


@pytest.mark.slow
def test_a_job_of_two_ranks_is_killed_loses_a_rank_is_stopped_and_ends_as_if_undisturbed(
    home: Path, tmp_path: Path
) -> None:
    runner = Runner(home, short_chain(*MADE_ONCE, *RL, f"stages.rlhf.run={json.dumps(RUN)}"))
    document = runner.document("stages/rlhf/train")
    placement = {**document.placement, "data_parallel": 2, "gym_actors": 1}  # where verdicts are made changes none
    document = document.model_copy(update={"placement": placement})
    live_through_everything(document, tmp_path)
    record = runner.store.find("stages/rlhf/train", document.fingerprint)
    assert record is not None
    assert record.placement["data_parallel"] == 2

    here = document.model_copy(update={"placement": {**placement, "gym_actors": 0}})
    undisturbed = job_in(tmp_path / "undisturbed", here)
    outcome, _ = in_ranks(2, tmp_path, lives.train, undisturbed)
    assert outcome.metrics == record.metrics
    published = runner.store.path(record)
    assert {name: (published / name).read_bytes() for name in record.files} == files_of(undisturbed.output)


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"execution.data_parallel: .* needs Ray \(pip install 'rufus-air\[ray\]'"):
        load_launcher()


def test_how_many_ranks_there_are_is_placement() -> None:
    """Of trainings alone; and they take cores of this machine unless a cluster is named."""
    execution = ExecutionSettings(threads=2, data_parallel=3)
    assert {kind: execution.for_step(kind).data_parallel for kind in KINDS} == dict.fromkeys(KINDS, 1) | {"training": 3}
    assert execution.for_step("training").cores == 6
    assert execution.for_step("base").cores == 2
    assert execution.model_copy(update={"ray_address": "ray://head:10001"}).cores == 2
    two, one = (Runner(Path(), small_recipe(f"execution.data_parallel={count}")) for count in (2, 1))
    assert two.document("base").fingerprint == one.document("base").fingerprint


def test_a_cluster_that_isnt_there_is_named(tmp_path: Path) -> None:
    error = apart(tmp_path, _on_no_cluster, "127.0.0.1:1")
    assert isinstance(error, InfrastructureError)
    assert str(error).startswith("127.0.0.1:1: can't use this Ray cluster: ")


def test_a_cluster_of_the_loopback_interface_is_named_where_ray_would_look_for_it_elsewhere(tmp_path: Path) -> None:
    """Ray reads 127.0.0.1 as the node's own address, and tries there for a quarter of an hour."""
    error, node = apart(tmp_path, _on_a_cluster_of_the_loopback_interface)
    if error is None:
        pytest.skip("this machine has no address but that of the loopback interface")
    assert f"at {node}:" in str(error)


def _on_a_cluster_of_the_loopback_interface() -> tuple[InfrastructureError | None, str]:
    import ray

    with socket.create_server(("127.0.0.1", 0)) as listener:
        if (node := ray.util.get_node_ip_address()) == "127.0.0.1":
            return None, node
        with pytest.raises(InfrastructureError) as caught:
            _on_no_cluster(f"127.0.0.1:{listener.getsockname()[1]}")
        return caught.value, node


def _on_no_cluster(address: str) -> None:
    RayRanks().run(_never, 2, 1, address, {}, threading.Event())


def _never(place: RankPlace, stop: threading.Event) -> None:
    raise AssertionError
