import pytest

from rufus_core.errors import DataError
from rufus_core.evaluation.scores import Scores


def test_scores_survive_a_file(tmp_path):
    scores = Scores(
        benchmark="gpqa",
        stage="sft",
        checkpoint="stages/sft/checkpoint",
        digest="d1",
        step=3799,
        protocol={"samples": 4, "temperature": 1.0, "judge": None},
        per_problem={"p1": (1.0, 0.0, None, 0.25), "p2": ()},
    )
    scores.save(tmp_path / "scores.json")
    assert Scores.load(tmp_path / "scores.json") == scores


@pytest.mark.parametrize("text", ["", "{}", '{"benchmark": 1}', "[1"])
def test_a_file_without_scores_is_named(tmp_path, text):
    path = tmp_path / "scores.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"scores\.json"):
        Scores.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json"):
        Scores.load(tmp_path / "gone.json")


def test_a_score_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        Scores(benchmark="b", stage="s", checkpoint="c", digest="d", per_problem={"p": (float("nan"),)})
