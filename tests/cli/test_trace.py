import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rufus_core.cli.trace import trace
from rufus_core.errors import LineageError
from tests.lineage.miniature import make, make_stage

ROOT = Path(__file__).parents[2]
app = typer.Typer()
app.command()(trace)


def run(home, *arguments):
    return CliRunner().invoke(app, [*arguments, "--home", str(home)])


def test_an_intact_checkpoint_is_told_down_to_its_base_and_data(home, checkpoint):
    result = run(home, "coding_rl")
    assert (result.exit_code, result.stderr) == (0, "")
    words = " ".join(result.stdout.split())
    for said in (
        f"stages/coding_rl/checkpoint digest {checkpoint.digest[:12]} step 8 seed 7 commit ab12cd34-dirty",
        "carried forward: step 8, peak of validation/pass@1 [4: 0.25, 8: 0.5, 12: 0.375]",
        "problems: data/coding_rl",
        "optimizer.lr_peak=0.001",
        "sums: arithmetic generator 500 rows",
        "chats.jsonl",
        "base digest",
    ):
        assert said in words
    assert words.count("packages: numpy 2.4.0, torch 2.13.0") == 1
    assert "as recorded" in words


def test_forks_inside_a_training_and_rejected_candidates_are_told(home, store, checkpoint):
    phases = [{"from_step": 24, "prompts_per_rollout": 64, "kl_coef": None}, {"from_step": 30, "kl_coef": 0.001}]
    make(store, "stages/rlhf/train", "training", {"x": "x"}, config={"settings": {"phases": phases}})
    lines = [line.strip(" │├└─") for line in run(home, "stages/rlhf/train").stdout.splitlines()]
    assert "from step 24 on: prompts_per_rollout=64" in lines
    assert "from step 30 on: kl_coef=0.001" in lines
    assert not any("config:" in line for line in lines)
    assert "rejected: 4, 12" in " ".join(run(home, "coding_rl").stdout.split())


def test_a_node_with_several_children_is_told_once(home, store, checkpoint):
    out = run(home, "coding_rl").stdout
    sft, data = store.resolve("sft").record, "chats.jsonl"
    assert sum(f"digest {sft.digest[:12]}" in line for line in out.splitlines()) == 1
    assert out.count("(see below)") == 4  # the parent policy of a run and of a screen, in two stages
    assert sum("2 rows" in line for line in out.splitlines()) == 1
    assert out.count("(see above)") == 1
    assert out.count(data) == 2


def test_a_long_recipe_stays_within_100_columns_without_colours(home, store, checkpoint, tmp_path):
    parent = checkpoint
    for stage in ("reasoning_rl", "general_rl", "coding_agent_rl", "search_agent_rl", "general_agent_rl", "rlhf"):
        parent = make_stage(store, stage, parent, tmp_path / "chats.jsonl")
    out = run(home, "rlhf").stdout
    assert max(map(len, out.splitlines())) <= 100
    assert "\x1b" not in out
    assert out.count("carried forward") == 8


def test_each_artifact_that_differs_is_one_line_and_exit_1(home, store, checkpoint, tmp_path):
    for name in ("stages/sft/train", "base"):
        (record,) = store.records(name)
        (store.path(record) / next(iter(record.files))).write_text("x")
    (tmp_path / "chats.jsonl").write_text("x")
    result = run(home, "coding_rl")
    lines = result.stderr.splitlines()
    assert result.exit_code == 1
    assert len(lines) == 3
    assert [sum(word in line for line in lines) for word in ("stages/sft/train", "base", "chats")] == [1, 1, 1]
    assert result.stdout.count("CHANGED") == 3
    assert "as recorded" not in result.stdout
    quick = run(home, "coding_rl", "--no-verify")
    assert (quick.exit_code, quick.stderr) == (0, "")
    assert "as recorded" not in quick.stdout


def test_json_holds_the_same_answer(home, store, checkpoint):
    (store.path(checkpoint) / "model.bin").write_text("x")
    result = run(home, "coding_rl", "--json")
    answer = json.loads(result.stdout)
    assert result.exit_code == 1
    assert answer["root"] == checkpoint.id
    assert answer["nodes"][0]["changes"] == [{"path": "model.bin", "change": "changed"}]
    assert answer["problems"] == result.stderr.splitlines()


def test_an_unknown_checkpoint_and_an_empty_home_are_a_user_s_mistake(home, checkpoint, tmp_path):
    with pytest.raises(LineageError, match="no checkpoint"):
        CliRunner().invoke(app, ["nope", "--home", str(home)], catch_exceptions=False)
    with pytest.raises(LineageError, match="store is empty"):
        CliRunner().invoke(app, ["sft", "--home", str(tmp_path / "none")], catch_exceptions=False)
    assert not (tmp_path / "none").exists()


def test_rufus_home_names_the_store(home, checkpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("RUFUS_HOME", str(home))
    assert CliRunner().invoke(app, ["coding_rl"]).exit_code == 0
    monkeypatch.delenv("RUFUS_HOME")
    monkeypatch.chdir(tmp_path)
    home.rename(tmp_path / ".rufus")
    assert CliRunner().invoke(app, ["coding_rl"]).exit_code == 0


def test_text_in_a_record_can_not_steer_the_terminal(home, store):
    make(store, "base", "base", {"a": "a"}, config={"note": "\x1b[31m[bold]red[/bold]"})
    out = run(home, "base").stdout
    assert "\x1b" not in out
    assert "[bold]red" in out


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_pipe_gets_plain_text(home, checkpoint, encoding):
    program = "import typer; from rufus_core.cli.trace import trace; typer.run(trace)"
    command = [sys.executable, "-c", program, "coding_rl", "--home", str(home)]
    env = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "300"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True)
    text = done.stdout.decode(encoding)
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text


def test_the_command_does_not_import_torch():
    program = "import sys, rufus_core.cli.trace; print(sorted({'torch', 'transformers', 'prefect'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
