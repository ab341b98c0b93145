"""Scenario worlds behind MCP servers: section 7 of the specification."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rufus_core.data.generators import mcp_worlds
from rufus_core.data.worlds import WORLDS
from rufus_core.errors import DataError, InfrastructureError
from rufus_core.gym.mcp_world import McpWorldEnvironment, McpWorldGym
from rufus_core.types import Episode, Message, Problem, Termination, ToolCall, VerdictKind

PROBLEMS = list(mcp_worlds.problems(3, 90, {}))


@pytest.fixture(scope="module")
def gym() -> Iterator[McpWorldGym]:
    with McpWorldGym() as opened:
        yield opened


def call(environment: McpWorldEnvironment, name: str, **arguments: object) -> tuple[str, bool]:
    result = environment.call(ToolCall(name=name, arguments=arguments))
    return result.content, result.failed


def score(environment: McpWorldEnvironment, problem: Problem, end: Termination = Termination.TASK_COMPLETE) -> float:
    verdict = environment.score(Episode(problem, list(problem.prompt), end))
    assert verdict.counts
    return verdict.score


def play(gym: McpWorldGym, problem: Problem, messages: list[Message]) -> tuple[list[str], float]:
    environment = gym.open(problem)
    said = [environment.call(c).content for message in messages for c in message.tool_calls]
    result = score(environment, problem)
    environment.cleanup()
    return said, result


def shop(checks: list[dict[str, object]], rows: dict[str, object] | None = None) -> Problem:
    truth = {"world": "shop", "rows": rows or {"items": [["pen", 3]], "orders": []}, "checks": checks}
    return Problem.build("shop", "test", [Message(role="user", content="x")], truth)


@pytest.mark.parametrize("wrong", [False, True])
def test_demonstrations_see_what_the_servers_say_and_score_GA_R1(gym: McpWorldGym, wrong: bool) -> None:
    rng = random.Random(5)
    for problem in PROBLEMS:
        messages = mcp_worlds.demonstrate(problem, rng, wrong)
        said, reward = play(gym, problem, messages)
        assert said == [message.content for message in messages if message.role == "tool"]
        assert reward == (0.0 if wrong else 1.0)
        assert messages[-1].role == "assistant"
        assert not messages[-1].tool_calls


def test_tools_come_from_the_server_without_meta_tools_GA_E2(gym: McpWorldGym) -> None:
    for problem in PROBLEMS[:9]:
        environment = gym.open(problem)
        names = {tool.name for tool in environment.tools}
        assert tuple(environment.tools) == problem.tools
        assert not names & {"list_tools", "call_tool"}
        assert len(names) <= 5
        assert all(1 <= len(tool.parameters["properties"]) <= 2 for tool in environment.tools)
        environment.cleanup()


def test_tools_read_and_write_the_database_GA_E1(gym: McpWorldGym) -> None:
    environment = gym.open(shop([{"query": "SELECT * FROM items", "rows": [["pen", 5]]}]))
    assert call(environment, "get_price", item="pen") == ("price 3", False)
    assert call(environment, "set_price", item="pen", price=5) == ("done", False)
    assert call(environment, "get_price", item="pen") == ("price 5", False)


def test_each_episode_has_its_own_database_GYM_04(gym: McpWorldGym) -> None:
    problem = shop([{"query": "SELECT price FROM items", "rows": [[5]]}])
    first, second = gym.open(problem), gym.open(problem)
    call(first, "set_price", item="pen", price=5)
    assert call(second, "get_price", item="pen") == ("price 3", False)
    assert (score(first, problem), score(second, problem)) == (1.0, 0.0)


def test_a_change_beside_the_goal_is_no_success(gym: McpWorldGym) -> None:
    problem = next(p for p in PROBLEMS if p.family == "shop")
    right = mcp_worlds.demonstrate(problem, random.Random(0), wrong=False)
    environment = gym.open(problem)
    for message in right:
        for tool_call in message.tool_calls:
            environment.call(tool_call)
    assert score(environment, problem) == 1.0
    item = problem.ground_truth["rows"]["items"][0][0]
    call(environment, "set_price", item=item, price=1000)
    assert score(environment, problem) == 0.0


def test_the_state_alone_is_scored_however_the_episode_ended_GA_R2(gym: McpWorldGym) -> None:
    problem = shop([{"query": "SELECT price FROM items", "rows": [[5]]}])
    environment = gym.open(problem)
    call(environment, "set_price", item="pen", price=5)
    assert score(environment, problem, Termination.MAX_CONTEXT_LENGTH) == 1.0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("set_price", {"item": "pen"}),
        ("set_price", {"item": "pen", "price": "five"}),
        ("set_price", {"item": "pen", "price": 5, "currency": "euro"}),
        ("set_price", {"item": "pen", "price": 10**30}),
        ("set_price", {"item": "chalk", "price": 5}),
        ("cancel_order", {"order": 5}),
        ("drop_table", {}),
    ],
)
def test_a_failing_call_is_an_observation_and_changes_nothing(
    gym: McpWorldGym, name: str, arguments: dict[str, object]
) -> None:
    problem = shop([{"query": "SELECT * FROM items", "rows": [["pen", 3]]}])
    environment = gym.open(problem)
    content, failed = call(environment, name, **arguments)
    assert failed
    assert content.startswith("error: ")
    assert score(environment, problem) == 1.0


@pytest.mark.parametrize(
    "query",
    ["SELECT * FROM nothing", "DELETE FROM items", "ATTACH 'x.db' AS x", "PRAGMA user_version = 3", "SELECT"],
)
def test_criteria_that_fail_or_write_are_the_reference_at_fault(gym: McpWorldGym, query: str) -> None:
    problem = shop([{"query": query, "rows": []}])
    environment = gym.open(problem)
    verdict = environment.score(Episode(problem, list(problem.prompt), Termination.TASK_COMPLETE))
    assert verdict.kind is VerdictKind.UNSCORABLE
    assert call(environment, "get_price", item="pen") == ("price 3", False)


def test_a_criterion_that_runs_for_ever_is_interrupted(gym: McpWorldGym) -> None:
    endless = "SELECT count(*) FROM " + ", ".join(f"items AS i{n}" for n in range(12))
    rows = {"items": [[f"pen{n}", n] for n in range(50)], "orders": []}
    problem = shop([{"query": endless, "rows": []}], rows)
    environment = gym.open(problem)
    verdict = environment.score(Episode(problem, list(problem.prompt), Termination.TASK_COMPLETE))
    assert verdict.kind is VerdictKind.UNSCORABLE


@pytest.mark.parametrize(
    "truth",
    [
        {},
        {"world": "moon", "rows": {}, "checks": []},
        {"world": "shop", "rows": {"items": [["pen"]]}, "checks": []},
        {"world": "shop", "rows": {"items": [["pen", 1], ["pen", 2]]}, "checks": []},
    ],
)
def test_ground_truth_of_no_world_is_the_users_mistake(gym: McpWorldGym, truth: dict[str, object]) -> None:
    with pytest.raises(DataError):
        gym.open(Problem.build("shop", "test", [Message(role="user", content="x")], truth))


def test_cleanup_twice_does_no_harm_and_ends_the_episode(gym: McpWorldGym) -> None:
    environment = gym.open(PROBLEMS[0])
    environment.cleanup()
    environment.cleanup()
    with pytest.raises(InfrastructureError):
        call(environment, "get_price", item="pen")


def test_episodes_run_side_by_side(gym: McpWorldGym) -> None:
    def episode(problem: Problem) -> float:
        return play(gym, problem, mcp_worlds.demonstrate(problem, random.Random(1), wrong=False))[1]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(episode, PROBLEMS)) == [1.0] * len(PROBLEMS)


def test_a_closed_gym_is_an_infrastructure_error_and_can_open_again() -> None:
    gym = McpWorldGym()
    for _ in range(2):
        with gym:
            environment = gym.open(PROBLEMS[0])
            assert environment.tools
        with pytest.raises(InfrastructureError):
            call(environment, "get_price", item="pen")


def test_problems_are_deterministic_distinct_and_of_every_world() -> None:
    again = list(mcp_worlds.problems(3, 90, {}))
    assert again == PROBLEMS
    assert list(mcp_worlds.problems(4, 90, {})) != PROBLEMS
    assert len({problem.id for problem in PROBLEMS}) == 90
    assert {problem.family for problem in PROBLEMS} == set(WORLDS)
    assert all(len(problem.prompt[0].content.split()) <= 14 for problem in PROBLEMS)


def test_two_problems_never_share_a_sentence() -> None:
    many = list(mcp_worlds.problems(0, 2000, {}))
    assert len({problem.prompt[0].content for problem in many}) == 2000


def test_options_choose_worlds_and_mistakes_are_told() -> None:
    assert {p.family for p in mcp_worlds.problems(0, 20, {"worlds": ["library"]})} == {"library"}
    with pytest.raises(DataError, match="moon"):
        next(mcp_worlds.problems(0, 1, {"worlds": ["moon"]}))
    with pytest.raises(DataError, match="asked for"):
        next(mcp_worlds.problems(0, 10**6, {}))
