import json

import pytest
from typer import Typer
from typer.testing import CliRunner

from rufus_core.cli.table import table
from rufus_core.errors import DataError
from rufus_core.evaluation.collect import collect_rows
from rufus_core.evaluation.scores import Scores
from rufus_core.lineage.home import store_root
from rufus_core.lineage.record import Draft
from rufus_core.lineage.store import Store


class Chain:
    """Publishes artifacts as a run does, with true records."""

    def __init__(self, home):
        self.store = Store(store_root(home))
        self._count = 0

    def publish(self, name, kind, inputs=None, stage=None, files=None, step=None):
        self._count += 1
        attempt = self.store.attempt(name, f"{self._count:016x}" * 4)
        for file, text in (files or {"weights": f"{name} {self._count}"}).items():
            (attempt.folder / file).write_text(text)
        links = {role: record.as_input() for role, record in (inputs or {}).items()}
        return self.store.publish(attempt, Draft(kind=kind, version="1", stage=stage, step=step, inputs=links))

    def checkpoint(self, stage, parent, **others):
        training = self.publish(f"stages/{stage}/training", "training", {"parent": parent, **others}, stage)
        return self.publish(f"stages/{stage}/checkpoint", "checkpoint", {"training": training}, stage, step=7)

    def scores(self, checkpoint, under="scores", **passed):
        """One artifact with a file for each benchmark: how many of 20 problems the checkpoint solves."""
        stage = checkpoint.stage or "base"
        files = {
            f"{benchmark}.json": Scores(
                benchmark=benchmark,
                stage=stage,
                checkpoint=checkpoint.name,
                digest=checkpoint.digest,
                protocol={"samples": 1},
                per_problem={f"p{i}": (float(i < count),) for i in range(20)},
            ).model_dump_json()
            for benchmark, count in passed.items()
        }
        self.publish(f"{under}/{stage}", "scores", {"checkpoint": checkpoint}, files=files)


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


def run(home, *arguments):
    app = Typer()
    app.command()(table)
    return CliRunner().invoke(app, ["--home", str(home), *arguments])


def test_rows_follow_the_newest_chain_from_the_base(chain):
    base = chain.publish("base", "base")
    old = chain.checkpoint("sft", base)
    new = chain.checkpoint("sft", base)
    chain.scores(base, math=2)
    chain.scores(old, math=18)
    chain.scores(new, math=12, code=5)
    rows = collect_rows(chain.store)
    assert [(row.stage, row.digest, row.step) for row in rows] == [("base", base.digest, None), ("sft", new.digest, 7)]
    assert rows[1].metrics["math"].mean == 0.6
    assert rows[1].metrics["math"].delta == pytest.approx(0.5)
    assert (rows[1].metrics["code"].mean, rows[1].metrics["code"].delta) == (0.25, None)


def test_an_evaluation_of_ones_own_is_no_row_of_the_table(chain):
    base = chain.publish("base", "base")
    chain.scores(base, math=2)
    chain.scores(base, under="evals", math=20, code=20)
    (row,) = collect_rows(chain.store)
    assert {name: cell.mean for name, cell in row.metrics.items()} == {"math": 0.1}


def test_a_problem_set_screened_by_an_older_checkpoint_is_no_parent(chain):
    base = chain.publish("base", "base")
    sft = chain.checkpoint("sft", base)
    problems = chain.publish("stages/reasoning_rl/problems", "problems", {"a_policy": base})
    reasoning = chain.checkpoint("reasoning_rl", sft, a_problems=problems, a_reference=base)
    rows = collect_rows(chain.store)
    assert [row.digest for row in rows] == [base.digest, sft.digest, reasoning.digest]


def test_a_checkpoint_that_was_made_again_does_not_end_its_chain(chain):
    sft = chain.checkpoint("sft", chain.publish("base", "base"))
    reasoning = chain.checkpoint("reasoning_rl", sft)
    weights = chain.store.path(sft) / "weights"
    content = weights.read_text()
    weights.write_text("damaged")
    attempt = chain.store.attempt(sft.name, sft.fingerprint)
    (attempt.folder / "weights").write_text(content)
    again = chain.store.publish(attempt, Draft(kind=sft.kind, version="1", stage="sft", step=7, inputs=sft.inputs))
    assert again.published > reasoning.published
    assert [row.stage for row in collect_rows(chain.store)] == ["base", "sft", "reasoning_rl"]


def test_an_empty_store_has_no_rows(chain, tmp_path):
    assert collect_rows(chain.store) == []
    result = run(tmp_path)
    assert (result.exit_code, result.stdout) == (0, f"No checkpoint in {tmp_path} yet. `rufus run` makes some.\n")
    assert json.loads(run(tmp_path, "--json").stdout) == []


def test_broken_scores_are_named_and_not_left_out(chain):
    base = chain.publish("base", "base")
    chain.publish("scores/math/base", "scores", {"checkpoint": base}, files={"math.json": "{"})
    with pytest.raises(DataError, match=r"math\.json"):
        collect_rows(chain.store)


def test_the_command_prints_every_format(chain, tmp_path):
    base = chain.publish("base", "base")
    sft = chain.checkpoint("sft", base)
    chain.scores(base, math=2)
    chain.scores(sft, math=12)
    assert "60.0 +50.0*" in run(tmp_path).stdout
    assert run(tmp_path, "--format", "csv").stdout.startswith("stage,checkpoint,digest,step,benchmark,mean")
    assert run(tmp_path, "--format", "md").stdout.startswith("| stage | step | checkpoint | math |")
    rows = json.loads(run(tmp_path, "--json").stdout)
    assert rows == json.loads(run(tmp_path, "--format", "json").stdout)
    assert rows[1]["metrics"]["math"]["delta"] == pytest.approx(0.5)


def test_a_checkpoint_whose_record_cant_be_read_is_missed_aloud(chain, tmp_path):
    sft = chain.checkpoint("sft", chain.publish("base", "base"))
    (chain.store.path(sft) / "record.json").write_text("{")
    result = run(tmp_path, "--json")
    assert [row["stage"] for row in json.loads(result.stdout)] == ["base"]
    assert result.stderr.startswith("warning: ")
    assert "this record is not JSON" in result.stderr
