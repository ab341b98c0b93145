"""The terminal: one sandbox per episode, one tool, tests on the final state (CA-E1, CA-R1..R3, GYM-18..24)."""

import random
from contextlib import ExitStack
from itertools import pairwise

import pytest

from rufus_core.data.generators import terminal_problems
from rufus_core.data.harbor import HarborError, terminal_problem
from rufus_core.errors import InfrastructureError, OutcomeUnknown
from rufus_core.gym.terminal import TerminalGym
from rufus_core.sandbox.placement import open_sessions
from rufus_core.sandbox.sessions import LocalSessions
from rufus_core.settings import ExecutionSettings, ToolSettings
from rufus_core.types import Episode, Termination, ToolCall, VerdictKind
from tests.sandbox.e2b.running import e2b_server
from tests.sandbox.real import require_isolation

SETTINGS = ToolSettings(tool_call_limit_train=3, tool_call_limit_eval=3, result_tokens=256, command_timeout_seconds=1.0)


# What a microVM has otherwise (its own root), or is tested with elsewhere.
of_this_machine = pytest.mark.parametrize("gym", ["local"], indirect=True)


@pytest.fixture(scope="module", params=["local", "microvms"])
def gym(request):
    """The same terminal over every kind of session."""
    require_isolation()
    with ExitStack() as held:
        execution = ExecutionSettings()
        if request.param == "microvms":
            execution = held.enter_context(e2b_server()).execution
        yield held.enter_context(TerminalGym(SETTINGS, open_sessions(execution)))


@pytest.fixture
def opened(gym):
    terminals = []

    def open_terminal(test="true", tests=None, files=None, **extra):
        problem = terminal_problem("Do it.", files or {}, tests or {"test.sh": test}, "test", **extra)
        terminals.append(gym.open(problem))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.cleanup()


def run(terminal, command):
    return terminal.call(ToolCall(name="execute_command", arguments={"command": command}))


def score(terminal):
    problem = terminal_problem("Do it.", {}, {"test.sh": "true"}, "test")
    return terminal.score(Episode(problem, [], Termination.TASK_COMPLETE))


@pytest.mark.parametrize(
    ("command", "observation"),
    [
        ("true", "exit 0"),
        ("exit 3", "exit 3"),
        ("echo out; echo err >&2; exit 1", "out\nstderr: err\nexit 1"),
        ("cat a.txt sub/b.txt", "apple\nbread\nexit 0"),
        ("pwd", "/app\nexit 0"),
        ("printf 'a\\n\\n'", "a\nexit 0"),
        ("cat", "exit 0"),  # standard input is empty
    ],
)
def test_one_tool_returns_stdout_stderr_and_exit_code_CA_E1(opened, command, observation):
    terminal = opened(files={"a.txt": "apple\n", "sub/b.txt": "bread\n"})
    assert [tool.name for tool in terminal.tools] == ["execute_command"]
    result = run(terminal, command)
    assert (result.content, result.failed) == (observation, False)


def test_files_and_processes_persist_over_commands_GYM_18(opened):
    terminal = opened()
    run(terminal, "sleep 60 & echo $! > pid; mkdir kept; echo x > /tmp/x")
    assert run(terminal, "kill -0 $(cat pid) && ls -d kept /tmp/x").content == "/tmp/x\nkept\nexit 0"


def test_episodes_do_not_see_each_other(opened):
    first, second = opened(), opened()
    run(first, "echo x > mine; sleep 61 &")
    assert run(second, "ls; grep -l sleep /proc/[0-9]*/comm | wc -l").content == "0\nexit 0"


def test_a_timeout_kills_the_whole_group_and_the_episode_goes_on_GYM_23(opened):
    terminal = opened()
    result = run(terminal, "(sleep 62 & sleep 62); true")
    assert (result.content, result.failed) == ("error: stopped after 1 seconds", True)
    assert run(terminal, "grep -l sleep /proc/[0-9]*/comm | wc -l").content == "0\nexit 0"


def test_a_fork_bomb_ends_and_the_episode_goes_on():
    require_isolation()
    problem = terminal_problem("Do it.", {}, {"test.sh": "true"}, "test")
    settings = SETTINGS.model_copy(update={"command_timeout_seconds": 60.0})
    with TerminalGym(settings, LocalSessions()) as patient:
        terminal = patient.open(problem)
        result = run(terminal, "f() { f | f & }; f; while :; do :; done")
        assert result.failed
        assert "process_limit" in result.content
        assert run(terminal, "echo x").content == "x\nexit 0"
        terminal.cleanup()


def test_killing_everything_spares_the_sandbox(opened):
    terminal = opened()
    run(terminal, "kill -9 1; kill -9 -1")
    assert run(terminal, "echo x").content == "x\nexit 0"


def test_long_output_keeps_head_and_tail_GYM_24(opened):
    content = run(opened(), "echo first; seq 100000; echo last").content
    assert content.startswith("first\n1\n2\n")
    assert content.endswith("\n100000\nlast\nexit 0")
    assert "bytes omitted]" in content
    assert len(content) < 2 * 256 * 16


@pytest.mark.parametrize("arguments", [{}, {"command": 3}, {"cmd": "ls"}])
def test_a_call_without_a_command_is_a_tool_error(opened, arguments):
    assert opened().call(ToolCall(name="execute_command", arguments=arguments)).failed


def test_a_command_too_long_for_the_kernel_is_an_observation(opened):
    terminal = opened()
    assert run(terminal, "x" * (1 << 20)).content.endswith("exit 126")
    assert run(terminal, "echo x").content == "x\nexit 0"


@of_this_machine
@pytest.mark.parametrize("command", ["cat /etc/passwd", "ls /root", "touch /usr/x", "touch /x", "unshare -U true"])
def test_the_host_is_out_of_reach(opened, command):
    assert "exit 0" not in run(opened(), command).content


@of_this_machine
def test_the_supervisor_is_out_of_reach(opened):
    terminal = opened()
    for place in ("environ", "mem"):
        assert "exit 1" in run(terminal, f"head -c 1 /proc/1/{place}").content
    assert "HOME=/tmp" in run(terminal, "env").content
    assert "VIRTUAL_ENV" not in run(terminal, "env").content


def test_tests_decide_by_their_exit_code_CA_R1(opened):
    good, bad = (opened("grep -qx apple a.txt\n") for _ in range(2))
    run(good, "echo apple > a.txt")
    assert (score(good).score, score(good).passed) == (1.0, True)
    assert (score(bad).score, score(bad).kind) == (0.0, VerdictKind.FAIL)


def test_the_policy_does_not_see_the_tests_CA_R1(opened):
    terminal = opened("test -e seen\n")
    assert run(terminal, "ls /tests; test -e /tests/test.sh && touch seen").content == "exit 1"
    assert not score(terminal).passed


@pytest.mark.parametrize(
    "command",
    [
        "echo true > /tests/test.sh; chmod 444 /tests/test.sh",
        "mkdir -p /tests/test.sh/x; chmod 0 /tests/test.sh",
        "ln -s /bin/true /tests/test.sh",
        "rm -rf /logs/verifier; touch /logs/verifier",
        "mkdir -p /tests/more; ln -s /app /tests/more/link",
    ],
)
def test_what_the_policy_leaves_in_the_tests_place_is_removed(opened, command):
    terminal = opened(tests={"test.sh": "cat /tests/more/x && false\n", "more/x": "x"})
    run(terminal, command)
    verdict = score(terminal)
    assert (verdict.score, verdict.kind) == (0.0, VerdictKind.FAIL)
    assert "exit 1" in verdict.reason


@pytest.mark.parametrize(
    "change",
    ["echo more >> /tests/wanted", "rm /tests/wanted", "ln -sf /tests/test.sh /tests/wanted", "mv /tests/wanted /tmp"],
)
@pytest.mark.parametrize("told", ["", "echo 1 > /logs/verifier/reward.txt"])
def test_tests_that_a_process_of_the_policy_s_changes_are_not_passed(opened, change, told):
    """They run beside what was left running (GYM-18, GYM-22). These wait for the change, so that nothing is a race."""
    wait = "until [ -e /tmp/done ]; do sleep 0.01; done\n"
    terminal = opened(tests={"test.sh": wait + told, "wanted": "yes"})
    act = f"until [ -s /tests/wanted ]; do sleep 0.01; done; {change}; touch /tmp/done"
    run(terminal, f"({act}) > /dev/null 2>&1 &")
    verdict = score(terminal)
    assert (verdict.score, verdict.passed, verdict.kind) == (0.0, False, VerdictKind.FAIL)
    assert "changed while they ran: wanted" in verdict.reason


def test_tests_may_write_beside_themselves(opened):
    assert score(opened("cd /tests && touch log && mkdir cache && echo x > cache/x")).passed


@pytest.mark.parametrize(
    ("written", "value", "passed"),
    [
        ("echo 1 > $V/reward.txt", 1.0, True),
        ("echo 0 > $V/reward.txt", 0.0, False),
        ("echo 0.5 > $V/reward.txt", 0.5, False),
        ("echo 1 > $V/reward.txt; exit 1", 1.0, True),
        ("echo '{\"reward\": 1}' > $V/reward.json", 1.0, True),
        ("echo '{\"tests\": 0.25}' > $V/reward.json", 0.25, False),
        ("echo nan > $V/reward.txt", 0.0, False),
        ("echo NaN > $V/reward.txt", 0.0, False),
        ("echo Infinity > $V/reward.txt", 0.0, False),
        ("echo 1e999 > $V/reward.txt", 0.0, False),
        ("echo true > $V/reward.txt", 0.0, False),
        ("mkdir $V/reward.txt", 0.0, False),
        ("mkfifo $V/reward.txt", 0.0, False),
        ("ln -s /app/one $V/reward.txt", 0.0, False),
        ("yes 1 | head -c 100000 > $V/reward.txt", 0.0, False),
        ("printf '[%.0s' $(seq 4000) > $V/reward.txt", 0.0, False),
        (": reward.txt", 0.0, False),  # promised and not written: old files don't count
    ],
)
def test_written_rewards(opened, written, value, passed):
    terminal = opened(f"V=/logs/verifier\n{written}\n")
    run(terminal, "echo 1 > one; mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")
    verdict = score(terminal)
    assert (verdict.score, verdict.passed, verdict.counts) == (value, passed, True)


def test_a_reward_file_counts_only_where_the_tests_write_one(opened):
    terminal = opened("sleep 0.2; false\n")
    run(terminal, "(while :; do echo 1 > /logs/verifier/reward.txt; done) > /dev/null 2>&1 &")
    assert not score(terminal).passed


def test_a_verifier_timeout_aborts_CA_R3(opened):
    terminal = opened("sleep 60\n", verifier_timeout_seconds=0.2)
    with pytest.raises(InfrastructureError, match="verifier"):
        score(terminal)


def test_a_dead_sandbox_is_a_typed_error_and_cleanup_is_idempotent(opened):
    terminal = opened()
    terminal.cleanup()
    terminal.cleanup()
    with pytest.raises(InfrastructureError):
        run(terminal, "true")
    with pytest.raises(InfrastructureError):
        score(terminal)


class DropsAnswers:
    """A real session behind a connection that is reset once a command has been sent."""

    def __init__(self, session):
        self._session, self.dropping = session, True
        self.root, self.upload, self.read, self.close = session.root, session.upload, session.read, session.close

    def run(self, command, timeout_seconds, output_bytes=1 << 20):
        done = self._session.run(command, timeout_seconds, output_bytes)
        if self.dropping:
            raise OutcomeUnknown("connection reset")
        return done


class DroppingSessions(LocalSessions):
    def open(self, tree):
        return DropsAnswers(super().open(tree))


def test_an_unknown_outcome_is_an_observation_after_one_dispatch_GYM_23():
    require_isolation()
    with TerminalGym(SETTINGS, DroppingSessions()) as dropping:
        terminal = dropping.open(terminal_problem("Do it.", {}, {"test.sh": "true"}, "test"))
        result = run(terminal, "echo x >> dispatched")
        assert (result.failed, "connection reset" in result.content) == (True, True)
        with pytest.raises(InfrastructureError, match="reset"):  # of the tests, it is no verdict: CA-R3
            score(terminal)
        terminal._session.dropping = False
        assert run(terminal, "cat dispatched").content == "x\nexit 0"
        assert score(terminal).passed
        terminal.cleanup()


def test_unsafe_paths_are_refused_before_boot(gym):
    problem = terminal_problem("Do it.", {"a": ""}, {"test.sh": "true"}, "test")
    for wrong in ({"files": {"../a": ""}}, {"tests": {"../test.sh": ""}}, {"workdir": "/usr/lib"}):
        with pytest.raises(HarborError):
            gym.open(problem.model_copy(update={"ground_truth": {**problem.ground_truth, **wrong}}))


@of_this_machine
def test_demonstrations_get_the_observations_they_tell(gym):
    rng = random.Random(0)
    for problem in terminal_problems.problems(0, 30, {}):
        for wrong in (False, True):
            messages = terminal_problems.demonstrate(problem, rng, wrong)
            terminal = gym.open(problem)
            for message, answer in pairwise(messages):
                for call in message.tool_calls:
                    assert terminal.call(call).content == answer.content
            verdict = terminal.score(Episode(problem, messages, Termination.TASK_COMPLETE))
            terminal.cleanup()
            assert verdict.passed is not wrong, (problem.prompt[0].content, messages)


def test_problems_are_short_distinct_and_deterministic():
    problems = list(terminal_problems.problems(1, 4000, {}))
    assert len({problem.prompt[0].content for problem in problems}) == 4000
    assert max(len(problem.prompt[0].content.split()) for problem in problems) <= 14
    assert [problem.id for problem in terminal_problems.problems(1, 20, {})] == [p.id for p in problems[:20]]
