"""`rufus run`: checks before it starts, what it shows, and how it ends. The orchestrator is a stand-in here; whole runs
are in tests/flows."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import typer
from rich.console import Console

from rufus_core.cli import preflight, run
from rufus_core.cli.progress import RunDisplay, duration
from rufus_core.cli.summary import next_commands, stage_remarks
from rufus_core.errors import ConfigError, DataError, InfrastructureError, JobFailed, RufusError, SandboxUnavailable
from rufus_core.lineage import Draft, Store, store_root
from rufus_core.ports.orchestration import RunObserver, RunOutcome, StepOutcome
from rufus_core.ports.progress import StepProgress
from rufus_core.recipe.graph import build_graph
from rufus_core.recipe.load import load_recipe
from rufus_core.recipe.step import Step
from rufus_core.recipe.until import up_to
from rufus_core.settings import ExecutionSettings, Recipe
from rufus_core.training.monitor import stage_totals
from tests.lineage.miniature import make

STEPS = [
    Step("base", "base", "base policy", {}),
    Step("stages/sft/train", "training", "SFT: train [x]", {}, stage="sft", inputs={"parent": "base"}),
]


class StandIn:
    """Plays a run that ends as `play` says."""

    def __init__(self, play: Callable[[Sequence[Step], RunObserver], RunOutcome]) -> None:
        self._play = play
        self.homes: list[Path] = []

    def run(self, recipe: Recipe, graph: Sequence[Step], home: Path, observer: RunObserver) -> RunOutcome:
        self.homes.append(home)
        return self._play(graph, observer)


def use(monkeypatch: pytest.MonkeyPatch, play: Callable[[Sequence[Step], RunObserver], RunOutcome]) -> StandIn:
    stand_in = StandIn(play)
    monkeypatch.setattr("rufus_core.cli.orchestration.load_orchestrator", lambda: stand_in)
    monkeypatch.setattr("rufus_core.cli.orchestration.preflight", lambda *_: None)
    return stand_in


def fail(error: BaseException) -> Callable[[Sequence[Step], RunObserver], RunOutcome]:
    def play(graph: Sequence[Step], observer: RunObserver) -> RunOutcome:
        raise error

    return play


def start(home: Path, **options: object) -> None:
    nothing = dict.fromkeys(("set_", "until", "from_", "only", "force"))
    run.run(**{"profile": "cpu", "recipe": "rufus_air", "home": home, **nothing, **options})


def test_an_interrupted_run_says_how_to_go_on_and_exits_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in = use(monkeypatch, lambda graph, observer: RunOutcome({}, interrupted=True))
    monkeypatch.setattr("sys.argv", ["/venv/bin/rufus", "run", "--set", "base.path=my base"])
    with pytest.raises(typer.Exit) as stopped:
        start(tmp_path / "new" / "home")
    assert stopped.value.exit_code == 130
    assert "type `rufus run --set 'base.path=my base'` to go on" in capsys.readouterr().err
    assert stand_in.homes == [tmp_path / "new" / "home"]


def test_a_failed_step_is_one_error_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "job.log"
    log.touch()
    failed = StepOutcome("failed", error="my.jsonl:3: no such row", log=log)
    use(monkeypatch, lambda graph, observer: RunOutcome({"base": StepOutcome("reused"), "data/sft": failed}))
    with pytest.raises(JobFailed) as error:
        start(tmp_path)
    assert str(error.value) == f"my.jsonl:3: no such row (its output is in {log})"
    assert error.value.exit_code == 1


def test_a_full_disk_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, fail(OSError(28, "No space left on device", "some/file")))
    with pytest.raises(RufusError, match=r"^some/file: the run stopped: No space left on device \(the disk is full"):
        start(tmp_path)


def test_an_unknown_stage_is_refused_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = use(monkeypatch, fail(AssertionError()))
    with pytest.raises(ConfigError, match="there is no stage 'sftt'"):
        start(tmp_path, until="sftt")
    assert stand_in.homes == []


def test_a_stage_alone_is_run_on_the_newest_checkpoint_above_and_says_on_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    above = make(Store(store_root(tmp_path)), "stages/if_rl/checkpoint", "checkpoint", {"model.bin": "x"})
    seen: list[Step] = []

    def play(graph: Sequence[Step], observer: RunObserver) -> RunOutcome:
        seen.extend(graph)
        return RunOutcome({}, interrupted=True)

    use(monkeypatch, play)
    with pytest.raises(typer.Exit):
        start(tmp_path, only="general_agent", force="general_agent")
    assert {step.stage for step in seen if step.kind == "training"} == {"general_agent"}
    assert {step.stage for step in seen if step.force} == {"general_agent"}
    assert f"on stages/if_rl/checkpoint {above.digest[:12]} of {above.published:%Y-%m-%d}" in capsys.readouterr().out


def test_until_keeps_what_a_stage_is_made_from_and_the_scores_on_the_way_PIPE_01() -> None:
    graph = build_graph(load_recipe())
    kept = {step.name for step in up_to(graph, "coding_rl")}
    assert {"base", "scores/base", "scores/sft", "scores/coding_rl", "stages/coding_rl/checkpoint"} <= kept
    assert not {"stages/if_rl/train", "scores/if_rl", "stages/rlhf/reward_model"} & kept
    by_name = {step.name: step for step in graph}
    assert all(set(by_name[name].inputs.values()) <= kept for name in kept)
    assert up_to(graph, None) == graph


def test_preflight_reads_every_row_of_the_users_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "chats.jsonl"
    good = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]})
    file.write_text(f"{good}\nnot json\n")
    recipe = load_recipe(overrides=[f"stages.sft.data.sources.mine={{path: {file}, category: general_chat}}"])
    monkeypatch.setattr(preflight, "require_sandbox", lambda execution: None)
    with pytest.raises(DataError, match=r"chats\.jsonl:2"):
        preflight.preflight(recipe, build_graph(recipe), tmp_path)
    file.write_text(f"{good}\n")
    preflight.preflight(recipe, build_graph(recipe), tmp_path)


def test_preflight_tells_of_a_nearly_full_disk_and_of_a_missing_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "require_sandbox", lambda execution: None)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100 << 20}))
    with pytest.raises(InfrastructureError, match=r"0\.1 GiB are free"):
        preflight.preflight(load_recipe(), STEPS, tmp_path / "not" / "there")

    def refuse(execution: ExecutionSettings) -> None:
        raise SandboxUnavailable("no namespaces")

    monkeypatch.setattr(preflight, "require_sandbox", refuse)
    with pytest.raises(SandboxUnavailable):
        preflight.preflight(load_recipe(), STEPS, tmp_path)


def display(terminal: bool) -> tuple[RunDisplay, io.StringIO]:
    out = io.StringIO()
    return RunDisplay(STEPS, Console(file=out, force_terminal=terminal, width=100, highlight=False)), out


def play_two_steps(shown: RunDisplay) -> None:
    with shown:
        shown.step_finished("base", StepOutcome("reused", "d"))
        shown.step_started("stages/sft/train")
        for step in range(1, 200):
            shown.step_progressed("stages/sft/train", StepProgress(step, 200, {"loss": 2.5, "lr": 1.0, "tokens": 9.0}))
        shown.step_finished("stages/sft/train", StepOutcome("completed", "e"))
        shown.warned("MLflow [is] out")


def test_without_a_terminal_there_is_a_plain_line_for_each_start_and_end() -> None:
    shown, out = display(terminal=False)
    play_two_steps(shown)
    lines = out.getvalue().splitlines()
    assert lines[0] == "1/2  base policy     reused"
    assert lines[1] == "1/2  SFT: train [x]  started"
    assert lines[2].startswith("2/2  SFT: train [x]  done ")
    assert lines[2].endswith("loss 2.5")
    assert lines[3] == "warning: MLflow [is] out"
    assert len(lines) == 4
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_step_that_waits_says_for_whom(terminal: bool) -> None:
    shown, out = display(terminal)
    with shown:
        shown.step_started("base")
        shown.step_progressed("base", StepProgress(message="a job of process 7 on there is making it"))
        shown._progress.refresh()
        assert "a job of process 7 on there is making it" in out.getvalue()
    if not terminal:
        assert (
            out.getvalue().splitlines()[-1]
            == "0/2  base policy     waiting    a job of process 7 on there is making it"
        )


def test_a_step_that_was_made_anew_says_what_came_of_it() -> None:
    shown, out = display(terminal=False)
    with shown:
        shown.step_started("base")
        shown.step_finished("base", StepOutcome("completed", "d", note="the same bytes as before: its record stays"))
    assert out.getvalue().splitlines()[-1].endswith("s  the same bytes as before: its record stays")


def test_on_a_terminal_a_running_step_has_a_bar_and_ends_as_a_line() -> None:
    shown, out = display(terminal=True)
    with shown:
        shown.step_started("base")
        shown.step_progressed("base", StepProgress(3, 8, {"reward": 0.25, "response_tokens": 31.0}))
        shown._progress.refresh()
        assert "3/8" in out.getvalue()
        assert "reward 0.25  length 31" in out.getvalue()
        shown.step_finished("base", StepOutcome("failed", error="x"))
    assert "1/2  base policy     failed" in out.getvalue()


def test_the_next_commands_name_a_home_that_they_would_not_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RUFUS_HOME", str(tmp_path))
    assert next_commands("sft", tmp_path)[0] == "next:   rufus trace sft  where this checkpoint comes from"
    other = next_commands("sft", tmp_path / "my runs")
    assert all(f" --home '{tmp_path}/my runs'  " in line.replace("   ", "  ") for line in other)


def test_the_next_commands_name_the_shared_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUFUS_HOME", str(tmp_path))
    trace, chat, table, ui = next_commands("sft", tmp_path, "s3://bucket/runs")
    assert "rufus trace sft --store s3://bucket/runs  " in trace
    assert "rufus chat sft --store s3://bucket/runs  " in chat
    assert "rufus table --store s3://bucket/runs  " in table
    assert "--store" not in ui  # its pages are the home's


def test_the_summary_tells_of_short_and_truncated_stages(tmp_path: Path) -> None:
    rows = [(step, {"rollouts/short_groups": 2.0, "truncation_ratio": 0.5}) for step in range(1, 7)]
    draft = Draft(kind="training", version="2", stage="if_rl", step=6, metrics=stage_totals(rows))
    store = Store(tmp_path)
    training = store.publish(store.attempt("stages/if_rl/train", "0" * 64), draft)
    recipe = load_recipe()
    title = recipe.stages["if_rl"].title
    assert list(stage_remarks(recipe, [make(store, "base", "base", {"a": "a"}), training])) == [
        f"{title}: 6 of 6 steps were short of groups, of 12 in all",
        f"{title}: 6 of 6 steps had over 10% of their responses truncated",
    ]


@pytest.mark.parametrize(("seconds", "text"), [(8.14, "8.1s"), (125, "2m05s"), (3720, "1h02m"), (59.99, "60.0s")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
