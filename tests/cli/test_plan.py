"""`rufus plan` and the command line around it, as a user meets them: in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rufus_core.lineage import Draft, Store, Timings, fingerprint
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe

ROOT = Path(__file__).resolve().parents[2]
WITH_SERVICES = ("coding_rl", "if_rl", "coding_agent", "search_agent", "rlhf")
UNEVEN = "stages.if_rl.rollout={prompts_per_rollout: 16, samples_per_prompt: 8, opt_steps_per_rollout: 3}"


def rufus(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [sys.executable, "-m", "rufus_core.cli.main", *arguments],
        cwd=cwd,
        env={**env, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(("profile", "services"), [("cpu", ()), ("h200", WITH_SERVICES), ("node8", ("coding_rl",))])
def test_plan_fits_100_columns_and_has_a_row_per_stage(profile: str, services: tuple[str, ...]) -> None:
    done = rufus("plan", "--profile", profile)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert "\x1b" not in done.stdout
    for stage in ("sft", "reasoning_rl", "coding_rl", "if_rl", "general_agent", "coding_agent", "search_agent", "rlhf"):
        tables = 3  # batches, runs, data
        if profile != "cpu":
            tables += 2 + (stage != "sft") + (stage in services)  # training, a step, rollouts, services
        assert sum(line.split(maxsplit=1)[:1] == [stage] for line in lines) == tables, stage
    assert not any(line.startswith("BAD") for line in lines)


def test_plan_of_a_profile_with_one_stage(tmp_path: Path) -> None:
    gguf = tmp_path / "model.gguf"
    gguf.write_bytes(b"GGUF and more")
    base = f"base.gguf=!replace {{file: {gguf}}}"
    done = rufus("plan", "--profile", "smol", "--set", base, "--home", str(tmp_path / "home"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "base SmolLM2-135M-Instruct" in done.stdout
    assert sum(line.split(maxsplit=1)[:1] == ["reasoning_rl"] for line in done.stdout.splitlines()) == 3
    assert "of 6 steps 0 reused, 6 made" in done.stdout


def test_plan_of_production_shows_what_table_16_prints_T16() -> None:
    out = rufus("plan", "--profile", "h200").stdout
    for text in (
        "5e-5 -> 5e-6", "256 x 16 = 4,096", "768 x 5 = 3,840", "8+1", "1.5e-6", "grpo mean-only", "step 24 on",
        "161,280", "840 node-days (printed: about 832)", "not stated", "9,014,929", "sglang 24c9100", "step 3799",
    ):  # fmt: skip
        assert text in out


def test_plan_of_one_gpu() -> None:
    done = rufus("plan", "--profile", "gpu1")
    assert (done.returncode, done.stderr) == (0, "")
    assert max(map(len, done.stdout.splitlines())) <= 100
    for text in ("base Qwen3-0.6B", "NVIDIA H200 SXM, 141 GB", "whole", "1 x 1"):
        assert text in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["--profile", "h200", "--set", "stages.sft.compute.layout.pipeline_parallel=4"],
            "error: stages.sft.compute.layout.pipeline_parallel: 46 layers can't be cut into 4 equal parts",
        ),
        (
            ["--profile", "h200", "--set", "execution.layout.recompute=none"],
            "error: execution.layout: training needs 185.7 GB on each GPU, which has room for 131.0 GB; its largest "
            "term is activations, 117.9 GB (recompute: full,",
        ),
        (
            ["--profile", "gpu1", "--set", "stages.coding_rl.compute.gpu=h100", "--set", "stages.coding_rl.compute"
             ".layout.micro_batch_tokens=16384"],
            "error: stages.coding_rl.compute.layout: training needs",
        ),
    ],
)  # fmt: skip
def test_a_layout_that_cannot_be_is_refused_with_its_place(arguments: list[str], told: str) -> None:
    done = rufus("plan", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(told)
    assert done.stderr.count("\n") == 1


def test_json_is_the_same_plan_and_nothing_else() -> None:
    done = rufus("plan", "--profile", "h200", "--json")
    plan = json.loads(done.stdout)
    assert done.stderr == ""
    assert plan["stages"][0]["name"] == "sft"
    assert plan["profile"] == "h200"
    assert all(check["ok"] for check in plan["checks"])
    sft, reasoning, *_ = (stage["footprint"] for stage in plan["stages"])
    assert (sft["engine"], sft["ranks"]["gpus"], sft["layout"]["tensor_parallel"]) == (None, 512, 8)
    assert set(reasoning["training"]) == {"weights", "gradients", "optimizer", "reference", "activations", "logits"}
    assert reasoning["engine"]["memory"]["kv_cache"] > 0
    assert reasoning["phases"][0]["rollout"]["bound"] == "memory bandwidth"


def test_a_plan_says_what_a_run_would_do_with_what_the_home_holds(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    step = build_graph(load_recipe())[0]
    now = datetime(2026, 5, 1, tzinfo=UTC)
    attempt = store.attempt(step.name, fingerprint(step.kind, step.version, {**step.config, "seed": step.seed}, {}))
    (attempt.folder / "text").write_text("weights")
    timings = Timings(started=now, ended=now, seconds=90.0)
    draft = Draft(kind="base", version=step.version, config=step.config, seed=step.seed, timings=timings)
    record = store.publish(attempt, draft)

    here = ("--home", str(tmp_path))
    intact = rufus("plan", *here).stdout
    assert "`rufus run`: of 35 steps 1 reused, 34 made.\n" in intact
    assert "never made" in intact
    changed = rufus("plan", "--steps", "--set", "base.pretrain.steps=7", *here).stdout
    assert max(map(len, changed.splitlines())) <= 100
    row = next(line for line in changed.splitlines() if line.startswith("base "))
    assert row.split() == ["base", "stale", "1m30s", "2026-05-01", "config.pretrain.steps:", "600", "->", "7"]
    assert "Batches" not in changed
    assert sum(line.startswith(("base ", "data/", "stages/", "scores/")) for line in changed.splitlines()) == 35

    told = json.loads(rufus("plan", "--json", "--set", "base.pretrain.steps=7", *here).stdout)
    base = told["run"]["steps"][0]
    assert (base["action"], base["record"], base["seconds"]) == ("stale", record.id, 90.0)
    assert base["changes"] == [{"path": "config.pretrain.steps", "old": 600, "new": 7}]
    assert told["stages"][0]["name"] == "sft"
    assert told["refusal"] is None


def test_a_part_of_the_recipe_is_planned_as_it_would_run(tmp_path: Path) -> None:
    told = json.loads(rufus("plan", "--until", "sft", "--force", "sft", "--json", "--home", str(tmp_path)).stdout)
    names = [step["name"] for step in told["run"]["steps"]]
    assert "stages/sft/train" in names
    assert "stages/reasoning_rl/train" not in names
    done = rufus("plan", "--only", "sft", "--home", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("the store holds no base to start from (make it with `rufus run --until base`)\n")


def test_a_plan_of_a_home_without_a_store_is_one_line_about_the_steps(tmp_path: Path) -> None:
    lines = rufus("plan", "--home", str(tmp_path / "none")).stdout.splitlines()
    assert lines[-1] == "`rufus run`: of 35 steps 0 reused, 35 made."
    assert not any(line.startswith("stages/") for line in lines)
    assert not (tmp_path / "none").exists()


def test_a_recipe_that_cant_run_here_is_planned_all_the_same_and_says_why() -> None:
    shown = rufus("plan", "--profile", "h200")
    assert shown.returncode == 0
    assert "`rufus run` would refuse this: decontamination: this release doesn't screen" in shown.stdout
    told = json.loads(rufus("plan", "--profile", "h200", "--json").stdout)
    assert told["run"] is None
    assert told["refusal"].startswith("decontamination")
    done = rufus("plan", "--profile", "h200", "--steps")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def test_set_may_be_repeated() -> None:
    done = rufus("plan", "--json", "--set", "seed=3", "--set", "stages.if_rl.rollout.samples_per_prompt=4")
    plan = json.loads(done.stdout)
    assert plan["seed"] == 3
    assert next(s for s in plan["stages"] if s["name"] == "if_rl")["phases"][0]["samples"] == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "sed=1"], "error: --set sed=1: unknown key 'sed' in the recipe (did you mean 'seed'?)"),
        (["--profile", "h20"], "error: deployments/profiles: no profile 'h20' (did you mean 'h200'?)"),
        (["--recipe", "no.yaml"], "error: no file no.yaml"),
        (["--recipe", "deployments/recipes"], "error: deployments/recipes is a folder"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = rufus("plan", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


def test_works_from_any_folder(tmp_path: Path) -> None:
    assert rufus("plan", "--json", cwd=tmp_path).returncode == 0


def test_a_plan_that_does_not_come_out_even_says_so() -> None:
    done = rufus("plan", "--set", UNEVEN)
    assert "BAD if_rl: 16 x 8 / 3 = 42.67 sequences per optimizer step" in done.stdout


@pytest.mark.parametrize(
    "arguments", [["--help"], ["plan"], ["plan", "--profile", "h200"], ["plan", "--profile", "gpu1"], ["--version"]]
)
def test_no_command_line_imports_torch(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom rufus_core.cli.main import main\n"
        f"sys.argv = ['rufus', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "heavy = {'torch', 'transformers', 'prefect', 'mlflow', 'mcp', 'matplotlib'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy), file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == "heavy: []"


def test_version_and_help() -> None:
    assert rufus("--version").stdout.startswith("rufus 0.")
    out = rufus("--help").stdout
    for command in ("plan", "table", "trace", "diff", "impact"):
        assert command in out


@pytest.mark.parametrize(
    ("leave", "line"),
    [
        ("raise KeyboardInterrupt", "interrupted\n"),
        ("typer.echo('Stopped.', err=True)\n    raise typer.Exit(130)", "Stopped.\n"),
    ],
)
def test_an_interrupt_is_one_line_and_exit_code_130(leave: str, line: str) -> None:
    code = (
        "import typer\n"
        "from rufus_core.cli import main as cli\n"
        "@cli.app.command()\n"
        f"def wait():\n    {leave}\n"
        "import sys\nsys.argv = ['rufus', 'wait']\ncli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", line)


def test_colour_only_where_asked_for() -> None:
    red, uneven = "\x1b[31m", ("plan", "--set", UNEVEN)
    assert red in rufus(*uneven, FORCE_COLOR="1").stdout
    assert red not in rufus(*uneven, FORCE_COLOR="1", NO_COLOR="1").stdout


def _shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script in which `rufus` is the command."""
    command = f'rufus() {{ "{sys.executable}" -m rufus_core.cli.main "$@"; }}\n{script}'
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def test_a_full_disk_behind_the_output_is_one_line(tmp_path: Path) -> None:
    done = _shell("rufus plan > /dev/full", tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left on device (the disk is full")
    assert done.stderr.count("\n") == 1


def test_a_current_folder_that_was_deleted_is_one_line(tmp_path: Path) -> None:
    done = _shell("mkdir gone; cd gone; rmdir ../gone; rufus plan", tmp_path)
    assert (done.returncode, done.stderr) == (1, "error: the current folder was deleted (cd to another one)\n")


def test_a_reader_that_leaves_early_is_no_error_to_tell(tmp_path: Path) -> None:
    assert _shell("rufus plan | head -1; rufus plan --json | head -1", tmp_path).stderr == ""


@pytest.mark.parametrize(
    ("ports", "told"),
    [
        (["--prefect-port", "99999"], "Invalid value for '--prefect-port'"),
        (["--mlflow-port", "0"], "Invalid value for '--mlflow-port'"),
        (["--prefect-port", "5000"], "error: both pages are given port 5000 (choose another one with --mlflow-port)"),
    ],
)
def test_ports_that_cant_be_are_refused(ports: list[str], told: str, tmp_path: Path) -> None:
    done = rufus("ui", "--home", str(tmp_path), *ports)
    assert done.returncode == 2
    assert told in done.stderr
