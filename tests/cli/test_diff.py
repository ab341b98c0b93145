"""`rufus diff`, as a user meets it."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rufus_core.cli.diff import diff
from rufus_core.errors import LineageError
from rufus_core.evaluation.scores import Scores
from tests.lineage.miniature import make, make_stage

app = typer.Typer()
app.command()(diff)


def run(home, *arguments):
    return CliRunner().invoke(app, [*arguments, "--home", str(home)])


def measured(store, record, passed, seed):
    scores = Scores(
        benchmark="math",
        stage="coding_rl",
        checkpoint=record.name,
        digest=record.digest,
        protocol={"p": 1},
        per_problem={f"p{index}": (float(index < passed),) for index in range(10)},
    )
    files = {"math.json": scores.model_dump_json()}
    make(store, "scores/coding_rl", "scores", files, {"checkpoint": record}, seed=seed)


def test_what_differs_and_where_it_began_is_shown_within_100_columns(home, store, checkpoint, tmp_path):
    again = make_stage(store, "coding_rl", store.resolve("sft").record, tmp_path / "chats.jsonl", seed=8)
    measured(store, checkpoint, 2, 1)
    measured(store, again, 7, 2)
    result = run(home, checkpoint.id, "coding_rl")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert max(map(len, lines)) <= 100
    assert lines[0] == f"A  {checkpoint.id}  digest {checkpoint.digest[:12]}"
    assert lines.count("  seed: 7 -> 8") == 2  # of the training, and of the selection
    assert any(line.startswith("training: stages/coding_rl/train/") for line in lines)
    math = next(line.split() for line in lines if line.startswith("math"))
    assert math[:4] == ["math", "20.0", "70.0", "+50.0"]
    assert math[-1] == "10"


def test_equal_artifacts_say_so(home, checkpoint):
    result = run(home, "coding_rl", checkpoint.digest[:8])
    assert result.exit_code == 0
    assert "The same bytes." in result.stdout
    assert "made alike" in result.stdout


def test_changed_rows_are_counted_by_source_with_examples(home, store):
    def data(ids, seed):
        rows = [{"id": key, "source": "sums", "prompt": [{"role": "user", "content": f"say {key}"}]} for key in ids]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        return make(store, "data/sft", "problems", {"train.jsonl": lines}, seed=seed)

    old, new = data("abc", 1), data("bcd", 2)
    out = run(home, old.id, new.id).stdout
    assert [line.split() for line in out.splitlines() if "train.jsonl" in line] == [
        ["train.jsonl", "3", "3", "1", "1", "0"]
    ]
    assert "added d (sums): say d" in out
    assert "removed a (sums): say a" in out


def test_json_holds_the_same_and_nothing_else(home, store, checkpoint):
    measured(store, checkpoint, 2, 1)
    answer = json.loads(run(home, "sft", "coding_rl", "--json").stdout)
    assert answer.keys() == {"pairs", "faults", "scores"}
    assert [pair["role"] for pair in answer["pairs"]] == ["", "training", "training.problems"]
    assert answer["scores"][0]["why"] == "not measured on the first"


def test_text_in_a_record_can_not_steer_the_terminal(home, store):
    old = make(store, "base", "base", {"a": "a"}, config={"note": "\x1b[31m[bold]red"})
    new = make(store, "base", "base", {"a": "b"}, config={"note": "plain"})
    out = run(home, old.id, new.id).stdout
    assert "\x1b" not in out
    assert "[bold]red" in out


def test_an_unknown_artifact_is_a_user_s_mistake(home, checkpoint):
    with pytest.raises(LineageError, match="no checkpoint 'coding_lr'"):
        CliRunner().invoke(app, ["sft", "coding_lr", "--home", str(home)], catch_exceptions=False)
