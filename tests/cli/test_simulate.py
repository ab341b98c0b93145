"""`rufus simulate`, as a user meets it."""

from __future__ import annotations

import json

from tests.cli.test_plan import rufus


def test_tables_fit_100_columns_with_a_row_for_each_count_of_nodes() -> None:
    done = rufus("simulate", "rlhf", "--nodes", "8,16")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines if line.strip()[:1].isdecimal()] == ["8", "16", "8", "16"]
    assert "the printed hours of an SFT epoch come to 1.8%" in done.stdout


def test_json_holds_assumptions_and_is_the_same_each_time(tmp_path) -> None:
    command = ("simulate", "rlhf", "--nodes", "8", "--json", "--assume", "trainer.flops_share=0.1")
    once, again = rufus(*command), rufus(*command)
    assert once.stdout == again.stdout
    told = json.loads(once.stdout)
    assert told["assumptions"]["trainer"]["flops_share"] == 0.1
    [result] = told["simulated"]
    assert abs(sum(result["gpu_time"].values()) - 1) < 1e-9
    parts = result["seconds"]
    assert abs(parts["update"] + parts["rollout"] + parts["train"] - parts["step"]) < 1e-6


def test_the_figure_is_a_png(tmp_path) -> None:
    figure = tmp_path / "step.png"
    done = rufus("simulate", "rlhf", "--nodes", "8", "--figure", str(figure))
    assert done.returncode == 0, done.stderr
    assert figure.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_faults_are_one_line() -> None:
    for arguments, told in {
        ("rlhf", "--nodes", "8,x"): "no list of node counts",
        ("sft",): "is no RL stage",
        ("rlhf", "--figure", "no/such/folder.png"): "there is no such folder",
        ("rlhf", "--assume", "engine.memory=1"): "unknown key 'memory'",
        ("rlhf", "--assumptions", "h20"): "did you mean 'h200'",
    }.items():
        done = rufus("simulate", *arguments)
        assert done.returncode == 2, arguments
        assert told in done.stderr
        assert len(done.stderr.splitlines()) == 1
