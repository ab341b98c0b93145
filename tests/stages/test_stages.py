"""Every stage end to end: prompt, tools, observations, reward, with the tokens of demonstrated answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from rufus_core.recipe.load import load_recipe
from rufus_core.settings import ExecutionSettings, RLStage
from rufus_core.stages import STAGE_OF_FAMILY, STAGES, open_mixed_gym
from rufus_core.stages.stage import GymContext
from rufus_core.training.reward_model import RewardModel
from rufus_core.types import Message, Problem, Termination
from tests.sandbox.e2b.running import e2b_server
from tests.sandbox.real import require_isolation
from tests.stages.replay import Demonstrated, demonstrations, replay
from tests.training import toy

OF_FILES = {"math", "ifeval", "ifbench"}  # users bring these problems; no generator makes them
SANDBOXED = ("coding_rl", "coding_agent", "search_agent")


def _settings(name: str) -> RLStage:
    stage = load_recipe("rufus_air", "cpu").stages[name]
    assert isinstance(stage, RLStage)
    return stage


def test_the_stages_are_those_of_the_recipe_PIPE_01() -> None:
    assert ["sft", *STAGES] == list(load_recipe("rufus_air", "cpu").stages)


def test_a_family_belongs_to_one_stage() -> None:
    families = [family for stage in STAGES.values() for family in stage.families]
    assert len(set(families)) == len(families)
    assert STAGE_OF_FAMILY.keys() == set(families)


@pytest.mark.parametrize("name", STAGES)
def test_a_demonstrated_answer_passes_and_a_wrong_one_fails(name: str) -> None:
    """The engine also checks that each observation is, to the token, the demonstrated one."""
    if name in SANDBOXED:
        require_isolation()
    settings = _settings(name)
    shown = demonstrations(STAGES[name].families, 2)
    assert {each.problem.family for each in shown} == set(STAGES[name].families) - OF_FILES
    training = name != "rlhf"  # its reward in training is a learned one: see below
    with STAGES[name].open_gym(GymContext(settings, training=training)) as gym:
        trajectories = replay(gym, settings, shown)
    for each, trajectory in zip(shown, trajectories, strict=True):
        assert trajectory.verdict.counts, trajectory.verdict.reason
        assert trajectory.verdict.passed is not each.wrong, (each.messages, trajectory.verdict)
        assert trajectory.episode.termination is Termination.TASK_COMPLETE
        assert [m.role for m in trajectory.episode.messages] == [m.role for m in each.messages]
        calls = sum(len(m.tool_calls) for m in each.messages)
        assert trajectory.episode.num_calls == calls
        if not each.wrong:
            assert trajectory.verdict.score > 0
            assert trajectory.episode.num_malformed_calls == 0
            assert (calls > 0) == bool(each.problem.tools)


def test_rlhf_is_rewarded_by_its_reward_model(tmp_path: Path) -> None:
    """Raw scores (RM-R1), of the final response alone."""
    model = RewardModel(toy.toy_policy(), seed=2).eval()
    model.save(tmp_path)
    settings = _settings("rlhf")
    shown = demonstrations(["chat"], 2)
    with STAGES["rlhf"].open_gym(GymContext(settings, training=True, reward_model=tmp_path)) as gym:
        trajectories = replay(gym, settings, shown)
    for each, trajectory in zip(shown, trajectories, strict=True):
        expected = model.score(each.problem.prompt, each.messages[-1].content)
        assert trajectory.verdict.score == pytest.approx(expected, abs=1e-6)
        assert trajectory.verdict.passed is (expected > 0)


def test_neither_policy_nor_reward_model_sees_a_pair_or_which_was_chosen_RM_D2(tmp_path: Path) -> None:
    """The same answers to the same prompts, with the labels as they are, exchanged and left out."""
    RewardModel(toy.toy_policy(), seed=2).eval().save(tmp_path)
    settings = _settings("rlhf")
    shown = demonstrations(["chat"], 2)
    pair = {"chosen": "Thanks, that is a kind thing to say.", "rejected": "Go away, that is dull."}
    seen = []
    for labels in (pair, {"chosen": pair["rejected"], "rejected": pair["chosen"]}, {}):
        problems = [Problem.build("chat", "mine", each.problem.prompt, dict(labels)) for each in shown]
        labelled = [Demonstrated(p, each.wrong, each.messages) for p, each in zip(problems, shown, strict=True)]
        with STAGES["rlhf"].open_gym(GymContext(settings, training=True, reward_model=tmp_path)) as gym:
            seen.append([(t.token_ids, t.verdict.score) for t in replay(gym, settings, labelled)])
    assert seen[0] == seen[1] == seen[2]
    assert len({score for _, score in seen[0]}) > 1


def test_a_mixed_gym_plays_each_family_in_its_own_stage() -> None:
    """As the SFT mixture is measured: reasoning, instructions and chat side by side."""
    names = ("reasoning_rl", "if_rl", "rlhf")
    shown = [each for name in names for each in demonstrations(STAGES[name].families, 1)]
    with open_mixed_gym({name: _settings(name) for name in names}, ExecutionSettings()) as gym:
        trajectories = replay(gym, _settings("if_rl"), shown)
    assert [t.verdict.passed for t in trajectories] == [not each.wrong for each in shown]


def test_the_number_of_tool_calls_that_a_search_needs_is_the_recipes_SA_R3() -> None:
    require_isolation()
    right, _ = demonstrations(STAGES["search_agent"].families, 1)[:2]
    assert "of 9 successful tool calls" in _reason("search_agent", {"min_successful_tool_calls": 9}, right)


def test_the_time_that_a_program_may_take_is_the_recipes() -> None:
    require_isolation()
    right, _ = demonstrations(STAGES["coding_rl"].families, 1)[:2]
    endless = Message(role="assistant", reasoning="", content="```python\nwhile True:\n    pass\n```")
    shown = Demonstrated(right.problem, True, (*right.problem.prompt, endless))
    assert "time" in _reason("coding_rl", {"seconds_per_test": 0.2}, shown)


def _reason(name: str, reward: dict[str, float], shown: Demonstrated) -> str:
    """Why a demonstration fails when numbers of the stage's reward are changed."""
    settings = _settings(name)
    assert settings.reward is not None
    settings = settings.model_copy(update={"reward": settings.reward.model_copy(update=reward)})
    with STAGES[name].open_gym(GymContext(settings, training=True)) as gym:
        (trajectory,) = replay(gym, settings, [shown])
    assert not trajectory.verdict.passed
    return trajectory.verdict.reason


def test_the_threshold_of_science_answers_is_the_recipes_RRL_R1() -> None:
    settings = _settings("reasoning_rl")
    assert settings.reward is not None
    problem = Problem.build("science", "s", [Message(role="user", content="what")], {"answer": "a large red fish"})
    said = (*problem.prompt, Message(role="assistant", reasoning="", content="a small red fish"))
    passed = []
    for threshold in (0.9, 0.6):
        loose = settings.reward.model_copy(update={"similarity_threshold": threshold})
        stage = settings.model_copy(update={"reward": loose})
        with STAGES["reasoning_rl"].open_gym(GymContext(stage, training=True)) as gym:
            (trajectory,) = replay(gym, stage, [Demonstrated(problem, False, said)])
        passed.append(trajectory.verdict.passed)
    assert passed == [False, True]


def test_verdicts_are_the_same_in_microvms_GYM_19() -> None:
    """Every stage that runs code, with right answers and wrong ones, here and there."""
    require_isolation()
    with e2b_server() as server:
        for name in SANDBOXED:
            settings, shown = _settings(name), demonstrations(STAGES[name].families, 2)
            told = []
            for execution in (ExecutionSettings(rollout_workers=1), server.execution):
                with STAGES[name].open_gym(GymContext(settings, training=True, execution=execution)) as gym:
                    told.append([trajectory.verdict for trajectory in replay(gym, settings, shown)])
            here, there = told
            assert here == there
            assert [verdict.passed for verdict in there] == [not each.wrong for each in shown]
        assert server.count("POST /v2/sandboxes") >= len(SANDBOXED)
        assert server.log()["machines"] == {}
