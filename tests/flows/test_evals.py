"""`rufus eval` through Prefect, with a job in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from mlflow import MlflowClient

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
