"""`rufus eval` and the eval sweep through Prefect, with jobs in processes of their own."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from mlflow import MlflowClient
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows.evals import rufus_evals, stages_with_checkpoints, sweep_graph
from rufus_core.cli.eval import eval_
from rufus_core.errors import JobFailed
from rufus_core.lineage.store import Store
from tasks import servers
from tests.jobs.miniature import Runner, small_overrides, small_recipe


def measure(home: Path) -> None:
    eval_(
        "base",
        benchmark=["instructions"],
        samples=1,
        problems=4,
        profile="cpu",
        recipe="rufus_air",
        set_=[*small_overrides(), "execution.allow_unisolated_code=true"],  # none is run
        home=home,
        json_=True,
    )


@pytest.mark.slow
def test_an_evaluation_is_a_flow_run_with_its_scores_in_mlflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    base = Runner(tmp_path, small_recipe()).run("base")
    with servers.prefect_server(tmp_path, servers.free_port()) as server:
        server.ready()
        monkeypatch.setenv("PREFECT_API_URL", f"{server.url}/api")
        measure(tmp_path)
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["digest"], row["num_problems"]) == (base.digest, 4)
        assert _task_states(server.url) == {
            "base": "Reused",
            "Instruction-Following RL: data": "Completed",
            "base: instructions": "Completed",
        }
        _mlflow_has(tmp_path, base.digest, row["pass_at_1"])

        (weights,) = Store(tmp_path / "store").path(base).glob("*.safetensors")
        weights.write_bytes(b"damaged")
        with pytest.raises(JobFailed, match=r"base/.* differs from its record .*rufus trace base/"):
            measure(tmp_path)


@pytest.mark.slow
def test_a_sweep_measures_each_cell_once_for_each_date(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    recipe = small_recipe()
    base = Runner(tmp_path, recipe).run("base")
    cells = ("base: instructions", "base: reasoning")
    with (
        servers.prefect_server(tmp_path, servers.free_port()) as server,
        temporary_settings({PREFECT_API_URL: f"{server.url}/api"}),
    ):
        server.ready()

        def sweep(day: int) -> tuple[str, dict[str, str]]:
            state = rufus_evals(
                ["base", base.digest[:12]],
                ["instructions", "reasoning"],
                on=date(2026, 3, day),
                overrides=[*small_overrides(), "execution.allow_unisolated_code=true"],
                home=str(tmp_path),
                return_state=True,
            )
            return state.name, {name: state for name, state in _task_states(server.url).items() if name in cells}

        assert sweep(1) == ("Completed", dict.fromkeys(cells, "Completed"))
        assert sweep(1) == ("Reused", dict.fromkeys(cells, "Reused"))
        for file in (tmp_path / "store" / "artifacts").glob("evals.base.reasoning.*/*/record.json"):
            file.unlink()
        assert sweep(1) == ("Completed", {cells[0]: "Reused", cells[1]: "Completed"})
        assert sweep(2) == ("Completed", dict.fromkeys(cells, "Completed"))


def test_a_sweep_names_each_checkpoint_by_its_digest_and_measures_it_once(tmp_path: Path) -> None:
    recipe = small_recipe()
    runner = Runner(tmp_path, recipe)
    base = runner.run("base")
    assert stages_with_checkpoints(recipe, runner.store) == ["base"]
    steps = sweep_graph(recipe, runner.store, ["base", base.digest[:8]], ["instructions"], date(2026, 3, 1))
    (cell,) = (step for step in steps if step.kind == "scores")
    assert cell.name == f"evals/base/instructions/{base.digest[:12]}"
    assert cell.config["date"] == "2026-03-01"
    by_name = {step.name: step for step in steps}
    assert by_name[cell.inputs["checkpoint"]].artifact == base
    assert set(cell.inputs.values()) < set(by_name)


def _task_states(url: str) -> dict[str, str]:
    """Of the newest flow run."""
    query: dict[str, Any] = {"sort": "START_TIME_DESC", "limit": 1}
    (flow_run,) = httpx.post(f"{url}/api/flow_runs/filter", json=query).json()
    chosen = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}}
    return {task["name"]: task["state_name"] for task in httpx.post(f"{url}/api/task_runs/filter", json=chosen).json()}


def _mlflow_has(home: Path, digest: str, score: float) -> None:
    client = MlflowClient(tracking_uri=f"sqlite:///{home}/mlflow/mlflow.db")
    (experiment,) = (each for each in client.search_experiments() if each.name == "rufus_air")
    runs = {
        run.info.run_name: client.get_run(run.info.run_id) for run in client.search_runs([experiment.experiment_id])
    }
    run = runs["base: instructions"]
    assert run.data.metrics["instructions"] == score
    (model,) = run.inputs.model_inputs
    assert client.get_logged_model(model.model_id).tags["rufus.digest"] == digest
