"""`rufus impact`, as a user meets it."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rufus_core.cli.impact import impact
from rufus_core.errors import LineageError
from rufus_core.lineage.aliases import Aliases
from tests.lineage.miniature import make

app = typer.Typer()
app.command()(impact)


def run(home, *arguments):
    return CliRunner().invoke(app, [*arguments, "--home", str(home)], env={"COLUMNS": "100"})


def test_everything_downstream_is_a_line_with_step_digest_date_and_way(home, store, checkpoint):
    make(store, "scores/coding_rl", "scores", {"a.json": "1"}, {"checkpoint": checkpoint})
    result = run(home, "arithmetic")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("generator arithmetic went into 7 artifacts: ")
    assert [line.split()[0] for line in lines[2:] if line[0] != " "] == [
        "data/sft",
        "stages/sft/train",
        "stages/sft/checkpoint",
        "data/coding_rl",
        "stages/coding_rl/train",
        "stages/coding_rl/checkpoint",
        "scores/coding_rl",
    ]
    words = next(line.split() for line in lines if line.startswith("stages/coding_rl/checkpoint"))
    assert words == [
        "stages/coding_rl/checkpoint",
        "8",
        checkpoint.digest[:12],
        f"{checkpoint.published:%Y-%m-%d}",
        f"{checkpoint.published:%H:%M}",
        "stages/coding_rl/train",
    ]


def test_an_alias_is_a_line_after_the_artifacts_and_in_json(home, store, checkpoint):
    Aliases(store.root).point("coding_rl", checkpoint, "rufus-air", "a test")
    first, *_, last = run(home, "arithmetic").stdout.splitlines()
    assert first == "generator arithmetic went into 6 artifacts: problems 2, training 2, checkpoint 2; aliases 1"
    pointer = Aliases(store.root).current()["coding_rl"]
    when = f"{pointer.when:%Y-%m-%d %H:%M}".split()
    assert last.split() == ["rufus-air@coding_rl", checkpoint.digest[:12], *when, "stages/coding_rl/checkpoint"]
    (told,) = json.loads(run(home, "arithmetic", "--json").stdout)["aliases"]
    assert (told["alias"], told["registered"], told["record_id"]) == ("coding_rl", "rufus-air", checkpoint.id)
    own = run(home, "coding_rl").stdout.splitlines()
    assert (own[0], own[-1].split()) == ("artifact coding_rl: nothing was made from it", last.split())


def test_what_went_into_nothing_says_so(home, checkpoint):
    result = run(home, "coding_rl")
    assert (result.exit_code, result.stdout) == (0, "artifact coding_rl: nothing was made from it\n")


def test_json_holds_every_field(home, checkpoint):
    answer = json.loads(run(home, "data/coding_rl", "--json").stdout)
    assert answer["is_a"] == "artifact"
    assert [each["name"] for each in answer["touched"]] == ["stages/coding_rl/train", "stages/coding_rl/checkpoint"]
    assert answer["touched"][1]["via"] == [answer["touched"][0]["id"]]
    assert answer["touched"][1]["stage"] == "coding_rl"


def test_an_unreadable_record_is_a_warning(home, store, checkpoint):
    (store.path(checkpoint) / "record.json").write_text("{")
    result = run(home, "arithmetic")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: ")
    assert result.stderr.count("\n") == 1


def test_an_unknown_source_is_a_user_s_mistake(home, checkpoint):
    with pytest.raises(LineageError, match="nothing here was made with 'nope'"):
        CliRunner().invoke(app, ["nope", "--home", str(home)], catch_exceptions=False)
