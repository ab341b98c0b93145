"""The whole recipe through the command that a user types, two steps a stage, with nothing stood in for.

One run is shared; each test says what it must have left. Those that run again leave the home as they found it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from rufus_core.data.split import SupervisedExample
from rufus_core.jobs.problem_files import load_examples, load_problems
from rufus_core.lineage.record import Record
from rufus_core.lineage.store import Store
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step
from rufus_core.types import Message, Problem
from tests.jobs.miniature import RL_STAGES, small_overrides

pytestmark = pytest.mark.slow

RUFUS = str(Path(sys.executable).with_name("rufus"))
STAGES = ("sft", *RL_STAGES)
NUM_STEPS = 35
WAIT_SECONDS = 120.0
LINE = re.compile(rf"^ *\d+/{NUM_STEPS}  (?P<title>\S.*?)  +(?P<word>started|done|reused)\b", re.MULTILINE)

# Random weights earn no reward: the entropy bonus gives every step a gradient, and the window keeps failed groups.
LEARNING = [
    *(f"stages.{stage}.algorithm={{entropy_coef: 0.01, truncation_masking: false}}" for stage in RL_STAGES),
    *(
        f"stages.{stage}.dynamic_sampling.low_exclusive=-1.0"
        for stage in ("reasoning_rl", "if_rl", "general_agent", "coding_agent")
    ),
]
OVERRIDES = [*small_overrides(), *LEARNING]


@dataclass
class Home:
    """A home of runs. Its processes are known by the variable that names it, which they inherit."""

    folder: Path
    first: str = ""  # what the first run printed
    env: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "MLFLOW_"))}
        self.env = {**kept, "RUFUS_HOME": str(self.folder), "COLUMNS": "200"}

    @property
    def store(self) -> Store:
        return Store(self.folder / "store")

    def rufus(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([RUFUS, *words], capture_output=True, text=True, env=self.env, cwd=self.folder)

    def run(self) -> str:
        """What `rufus run` prints."""
        done = self.rufus(*run_words())
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stderr == ""
        return done.stdout

    def json(self, *words: str) -> Any:
        done = self.rufus(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def artifact(self, name: str) -> Record:
        """The only one of its name that the first run's settings make."""
        return self.store.records(name)[0]

    def path(self, name: str) -> Path:
        return self.store.path(self.artifact(name))

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._owns(process)]

    def _owns(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get("RUFUS_HOME") == str(self.folder)
        except psutil.Error:  # another user's, or gone
            return False


def run_words(*overrides: str) -> list[str]:
    return ["run", *(word for override in [*OVERRIDES, *overrides] for word in ("--set", override))]


def ends(output: str) -> dict[str, str]:
    """How each step ended, by its title."""
    return {m["title"]: m["word"] for m in LINE.finditer(output) if m["word"] != "started"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """The recipe, run once."""
    home = Home(tmp_path_factory.mktemp("home"))
    home.first = home.run()
    return home


@pytest.fixture(scope="module")
def graph() -> dict[str, Step]:
    return {step.name: step for step in build_graph(load_recipe(overrides=OVERRIDES))}


def test_every_step_is_made_and_nothing_is_left_running(home: Home, graph: dict[str, Step]) -> None:
    assert len(graph) == NUM_STEPS
    assert ends(home.first) == {step.title: "done" for step in graph.values()}
    assert {record.name for record in home.store.records()} == set(graph)
    assert home.processes() == []


def test_the_summary_shows_the_table_and_draws_the_curves(home: Home) -> None:
    assert "next:   rufus trace rlhf" in home.first
    for figure in ("learning_curves.png", "stage_scores.png"):
        assert str(home.folder / "figures" / figure) in home.first
        assert (home.folder / "figures" / figure).read_bytes().startswith(b"\x89PNG")


def test_every_stage_changes_the_weights_of_its_parent_PIPE_01(home: Home, graph: dict[str, Step]) -> None:
    weights = {"base": (home.path("base") / "model.safetensors").read_bytes()}
    for stage, parent in zip(STAGES, ("base", *STAGES), strict=False):
        name = f"stages/{stage}/checkpoint"
        assert graph[f"stages/{stage}/train"].inputs["parent"] in (parent, f"stages/{parent}/checkpoint")
        weights[stage] = (home.path(name) / "model.safetensors").read_bytes()
        assert home.artifact(name).step == 2
    assert len(set(weights.values())) == 9


def test_the_table_compares_each_checkpoint_with_its_parent_PIPE_07_EVAL_07(home: Home) -> None:
    rows = home.json("table")
    assert [row["stage"] for row in rows] == ["base", *STAGES]
    assert all(row.keys() == {"stage", "checkpoint", "digest", "step", "metrics"} for row in rows)
    assert [row["digest"] for row in rows] == [home.artifact(row["checkpoint"]).digest for row in rows]
    recipe = load_recipe(overrides=OVERRIDES)
    for row in rows[1:]:
        asked = recipe.stages[row["stage"]].evaluation
        for benchmark in (*asked.targets, *asked.guardrails):
            cell = row["metrics"][benchmark]
            assert cell["n"] == 12
            assert cell["num_lost_samples"] == 0
            assert cell["stderr"] is not None
            low, high = cell["ci95"]
            assert low <= cell["delta"] <= high
            assert cell["delta"] == pytest.approx(cell["mean"] - cell["parent_mean"])
    assert not any(cell["other_protocol"] for row in rows for cell in row["metrics"].values())


def test_the_trace_names_everything_down_to_the_base_and_every_source(home: Home, graph: dict[str, Step]) -> None:
    traced = home.json("trace", "rlhf")
    artifacts = {node["id"]: node for node in traced["nodes"] if node["kind"] != "generator"}
    made = {name: home.artifact(name) for name, step in graph.items() if step.kind != "scores"}
    assert {node["name"]: node["digest"] for node in artifacts.values()} == {n: r.digest for n, r in made.items()}
    assert {node["status"] for node in artifacts.values()} == {"intact"}
    edges = {(edge["child"], edge["role"], edge["parent"]) for edge in traced["edges"]}
    for name, record in made.items():
        assert record.inputs.keys() == graph[name].inputs.keys()
        for role, given in record.inputs.items():
            assert (record.id, role, given.record_id) in edges
            assert artifacts[given.record_id]["digest"] == given.digest
    sources = {(name, source) for name, r in made.items() for source in r.config.get("sources", {})}
    told = {(artifacts[child]["name"], role) for child, role, parent in edges if parent not in artifacts}
    assert len(sources) == 20
    assert told == sources


def test_no_held_out_prompt_is_trained_on(home: Home) -> None:
    heldout = [problem for stage in STAGES for problem in load_problems(home.path(f"data/{stage}"), "heldout")]
    assert len(heldout) == 20 + 12 * len(RL_STAGES)
    training = [problem for stage in RL_STAGES for problem in load_problems(home.path(f"data/{stage}"), "train")]
    assert not {problem.id for problem in heldout} & {problem.id for problem in training}
    assert not {spoken(problem) for problem in heldout} & {spoken(problem) for problem in training}
    examples = load_examples(home.path("data/sft") / "examples.jsonl")
    asked = {prompt for example in examples for prompt in prompts(example)}
    assert not {spoken(problem) for problem in heldout} & asked


def spoken(problem: Problem) -> tuple[tuple[str, str], ...]:
    return tuple(map(_said, problem.prompt))


def prompts(example: SupervisedExample) -> Iterator[tuple[tuple[str, str], ...]]:
    """All beginnings of an example: one of them is the prompt that it answers."""
    said = tuple(map(_said, example.messages))
    return (said[:end] for end in range(1, len(said) + 1))


def _said(message: Message) -> tuple[str, str]:
    return message.role, message.content.strip()


@pytest.mark.parametrize("stage", RL_STAGES)
def test_no_rollout_is_lost_on_the_way(home: Home, stage: str) -> None:
    lines = (home.path(f"stages/{stage}/train") / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]
    for line in lines:
        count = {k.removeprefix("rollouts/"): v for k, v in json.loads(line)["metrics"].items()}
        assert count["issued"] == count["trained"] + count["filtered"] + count["aborted"]
        assert count["trained"] == 8  # two prompts of four samples
        assert (count["aborted"], count["short_groups"], count["skipped_updates"]) == (0, 0, 0)


@pytest.mark.parametrize("stage", ["sft", *RL_STAGES])
def test_every_curve_of_a_stage_is_in_mlflow_and_in_its_picture(home: Home, graph: dict[str, Step], stage: str) -> None:
    folder = home.path(f"stages/{stage}/train")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    client = MlflowClient(f"sqlite:///{home.folder}/mlflow/mlflow.db")
    (run,) = client.search_runs(
        [each.experiment_id for each in client.search_experiments()],
        f"attributes.run_name = '{graph[f'stages/{stage}/train'].title}'",
    )
    logged = set().union(*(row["metrics"] for row in rows))
    watched = {"loss", "grad_norm", "lr", "tokens"}
    if stage != "sft":
        watched = {"reward", "response_tokens", "truncation_ratio", "rollouts/filtered", "rollouts/short_groups"}
        watched |= {"entropy", "policy_kl", "ratio", "clip_fraction", "grad_norm", "lr"}
    assert watched <= logged
    for name in logged:
        points = [(p.step, p.value) for p in client.get_metric_history(run.info.run_id, name)]
        assert sorted(points) == [(row["step"], row["metrics"][name]) for row in rows if name in row["metrics"]]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_mlflow_has_a_child_for_each_step_and_a_model_for_each_checkpoint(home: Home, graph: dict[str, Step]) -> None:
    uri = f"sqlite:///{home.folder}/mlflow/mlflow.db"
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    experiment = client.get_experiment_by_name("rufus_air")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])
    parent = next(run for run in runs if "mlflow.parentRunId" not in run.data.tags)
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent.info.run_id]
    assert sorted(run.info.run_name for run in children) == sorted(step.title for step in graph.values())
    assert {run.info.status for run in (parent, *children)} == {"FINISHED"}
    assert parent.data.tags["rufus.completed"] == str(NUM_STEPS)
    models = client.search_logged_models([experiment.experiment_id])
    known = {model.tags["rufus.digest"] for model in models}
    assert {home.artifact(f"stages/{stage}/checkpoint").digest for stage in STAGES} < known
    assert home.artifact("base").digest in known


def test_prefect_has_a_flow_run_with_a_task_run_for_each_step(home: Home, graph: dict[str, Step]) -> None:
    with closing(sqlite3.connect(f"file:{home.folder}/prefect/prefect.db?mode=ro", uri=True)) as database:
        flow_run, name, state = database.execute(
            "SELECT id, name, state_type FROM flow_run ORDER BY start_time LIMIT 1"
        ).fetchone()
        tasks = database.execute("SELECT name, state_type FROM task_run WHERE flow_run_id = ?", (flow_run,)).fetchall()
    assert (name, state) == ("rufus_air on cpu", "COMPLETED")
    assert sorted(tasks) == sorted((step.title, "COMPLETED") for step in graph.values())


def test_a_second_run_makes_nothing(home: Home) -> None:
    before = left(home)
    assert set(ends(home.run()).values()) == {"reused"}
    assert left(home) == before


def left(home: Home) -> dict[str, int]:
    """Every file of the store, with attempts and jobs, and when it was written."""
    folders: Sequence[Path] = (home.folder / "store", home.folder / "jobs")
    return {str(file): file.stat().st_mtime_ns for folder in folders for file in sorted(folder.rglob("*"))}


def test_a_flipped_byte_is_named_and_its_step_alone_is_made_again(home: Home) -> None:
    record = home.artifact("stages/coding_rl/checkpoint")
    table = home.json("table")
    weights = home.store.path(record) / "model.safetensors"
    flip_last_byte(weights)
    traced = home.rufus("trace", "rlhf")
    assert traced.returncode == 1
    (told,) = traced.stderr.splitlines()
    assert told == f"{record.id}: differs from its record: model.safetensors changed"
    assert [title for title, word in ends(home.run()).items() if word == "done"] == ["Coding RL: select"]
    assert home.artifact(record.name).digest == record.digest
    assert home.rufus("trace", "rlhf").returncode == 0
    assert home.json("table") == table


def flip_last_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def test_ctrl_c_ends_everything_and_keeps_what_was_finished(home: Home) -> None:
    before = {record.id for record in home.store.records()}
    words = run_words("stages.rlhf.reward_model.steps=3", "stages.rlhf.run.steps=100000")
    with subprocess.Popen(
        [RUFUS, *words], env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        wait_for_first_step(home, run)
        assert len(home.processes()) > 2  # the command, Prefect, the job
        os.kill(run.pid, signal.SIGINT)
        _, error = run.communicate(timeout=WAIT_SECONDS)
    assert run.returncode == 130
    assert error == f"Stopped. Finished steps are kept: type `{shlex.join(['rufus', *words])}` to go on.\n"
    assert home.processes() == []
    new = [record.name for record in home.store.records() if record.id not in before]
    assert new == ["stages/rlhf/reward_model"]


def wait_for_first_step(home: Home, run: subprocess.Popen[str]) -> None:
    """Until the run that never ends has trained a step: its progress is longer than that of the first run."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and run.poll() is None:
        for file in (home.folder / "jobs").glob("stages.rlhf.train.*/progress.jsonl"):
            if '"total": 100000' in file.read_text():
                return
        time.sleep(0.1)
    run.kill()
    pytest.fail("the run did not come to its training")
