"""`rufus rollouts show`, as a user meets it, on rollouts as a training writes them."""

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from rufus_core.cli.rollouts import rollouts
from rufus_core.data.tokenizer import build_tokenizer
from rufus_core.errors import LineageError, RufusError
from rufus_core.lineage import Draft, Store, fingerprint, store_root
from rufus_core.rollout.stored import step_file, write_rollouts
from rufus_core.types import Fate, Message, Termination, ToolCall, VerdictKind
from tests.lineage.miniature import make
from tests.rollout.test_stored import rollout

app = typer.Typer()
app.add_typer(rollouts)
TOKENIZER = build_tokenizer(["seven", "eight"], 64)
PROBLEMS = ("aaaa000011112222", "bbbb000011112222")


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def turns():
    """A policy that thinks, calls a tool, and is cut off in its next turn."""
    call = ToolCall(name="find", arguments={"thing": "é"})
    messages = (
        Message(role="system", content="Be brief."),
        Message(role="user", content="What is it?"),
        Message(role="assistant", reasoning="perhaps", content="I look.", tool_calls=(call,)),
        Message(role="tool", content="nothing\x1b[31m red"),
    )
    sampled = (ids("seven"), ids("eight seven"))
    given = (ids("What"), ids("nothing"))
    token_ids = [id_ for pair in zip(given, sampled, strict=True) for part in pair for id_ in part]
    mask = [bit for g, s in zip(given, sampled, strict=True) for bit in [0] * len(g) + [1] * len(s)]
    return {
        "messages": messages,
        "token_ids": token_ids,
        "loss_mask": mask,
        "logprobs": [-0.5 * bit for bit in mask],
        "num_response_tokens": sum(mask),
        "num_final_tokens": sum(mask),
        "num_calls": 1,
        "termination": Termination.MAX_GENERATION_LENGTH,
        "reward_parts": {"format": 1.0, "tests": 0.25},
        "verdict": VerdictKind.FAIL,
        "extracted": None,
    }


def stored(step):
    """Two groups of two: of the second, one was cut off and the other was aborted."""
    first = rollout(step=step, problem_id=PROBLEMS[0], weight_version=str(step - 1))
    second = replace(first, group=1, round=2, problem_id=PROBLEMS[1], score=0.0, reward=0.0)
    lost = {"fate": Fate.ABORTED, "why": "aborted", "verdict": VerdictKind.ABORTED, "advantage": None}
    return [
        first,
        replace(first, sample_index=1, reward=0.25 * step, extracted="[b]8\x1b[0m", advantage=0.25),
        replace(second, fate=Fate.FILTERED, why="outside the window", advantage=None, **turns()),
        replace(second, sample_index=1, termination=Termination.ABORTED_CONNECTION, extracted=None, **lost),
    ]


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def training(home):
    """An RL stage on SFT, whose training has rollouts of steps 1, 2 and 4."""
    store = Store(store_root(home))
    sft = make(store, "stages/sft/train", "training", {"metrics.jsonl": "{}"})
    parent = make(store, "stages/sft/checkpoint", "checkpoint", {"model.bin": "x"}, {"training": sft})
    attempt = store.attempt("stages/if_rl/train", fingerprint("training", "2", {}, {"parent": parent.digest}))
    for step in (1, 2, 4):
        write_rollouts(step_file(attempt.folder, step), stored(step))
    TOKENIZER.save_pretrained(attempt.folder / "checkpoints" / "step-4")
    draft = Draft(kind="training", version="2", stage="if_rl", inputs={"parent": parent.as_input()})
    record = store.publish(attempt, draft)
    make(store, "stages/if_rl/checkpoint", "checkpoint", {"model.bin": "y"}, {"training": record})
    return record


def show(home, *arguments, **options):
    result = CliRunner().invoke(
        app, ["rollouts", "show", *arguments, "--home", str(home)], catch_exceptions=False, **options
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert "\x1b" not in result.stdout
    return [line.rstrip() for line in result.stdout.splitlines()]


def shown(home, *arguments):
    """Ids of the rollouts in the table."""
    return [line.split()[0] for line in show(home, "if_rl", *arguments)[1:-2]]


def test_a_checkpoint_leads_to_all_rollouts_of_its_training(home, training):
    lines = show(home, "if_rl", env={"COLUMNS": "80"})
    assert max(map(len, lines[:-2])) <= 80
    assert lines[0].split() == ["rollout", "problem", "family", "fate", "reward", "adv.", "tokens", "calls", "ended"]
    assert lines[1].split()[:9] == ["1/0/0", "aaaa0000", "arithmetic", "trained", "0.5", "-0.25", "2", "0", "pass"]
    assert lines[4].split()[:6] == ["1/1/1", "bbbb0000", "arithmetic", "aborted", "0", "-"]
    there = f"--home {home}"
    assert lines[-2:] == [f"12 of 12 rollouts of {training.id}", f"next:  rufus rollouts show if_rl 1/0/0 {there}"]
    assert show(home, "if_rl", "--stage", "if_rl")[-1] == f"next:  rufus rollouts show {training.id} 1/0/0 {there}"
    assert show(home, training.id)[:-1] == show(home, "if_rl")[:-1]


@pytest.mark.parametrize(
    ("arguments", "ids"),
    [
        (["--step", "2"], ["2/0/0", "2/0/1", "2/1/0", "2/1/1"]),
        (["--problem", "BBBB", "--step", "1"], ["1/1/0", "1/1/1"]),
        (["--sample", "1", "--step", "4"], ["4/0/1", "4/1/1"]),
        (["--reward", "1"], ["4/0/1"]),
        (["--reward", ">0.4", "--limit", "2"], ["1/0/0", "2/0/0"]),
        (["--reward", "<= 0", "--step", "1"], ["1/1/0", "1/1/1"]),
        (["--passed", "--step", "1"], ["1/0/0", "1/0/1"]),
        (["--failed", "--step", "1"], ["1/1/0", "1/1/1"]),
        (["--termination", "max_generation_length"], ["1/1/0", "2/1/0", "4/1/0"]),
        (["--fate", "aborted"], ["1/1/1", "2/1/1", "4/1/1"]),
        (["--sort", "reward", "--descending", "--limit", "3"], ["4/0/1", "1/0/0", "2/0/0"]),
        (["--sort", "tokens", "--descending", "--limit", "1"], ["1/1/0"]),
        (
            ["--stage", "if_rl", "--limit", "0", "--sort", "step"],
            [f"{s}/{g}/{i}" for s in (1, 2, 4) for g in (0, 1) for i in (0, 1)],
        ),
    ],
)
def test_the_table_shows_what_matches(home, training, arguments, ids):
    assert shown(home, *arguments) == ids


def test_one_is_shown_turn_by_turn(home, training):
    lines = show(home, "if_rl", "2/1/0")
    assert lines == show(home, "if_rl", "--step", "2", "--problem", "bbbb", "--sample", "0")
    assert lines[:5] == [
        f"rollout 2/1/0 of {training.id}",
        "problem bbbb000011112222, arithmetic of sums; group 1, sample 0, round 2",
        "filtered (outside the window): reward 0, score 0",
        "verdict: fail",
        "reward parts: format 1, tests 0.25",
    ]
    said = [line for line in lines[5:] if line]
    assert said == [
        "system",
        "  Be brief.",
        "user",
        "  What is it?",
        "assistant",
        "  perhaps",
        "  I look.",
        '  -> find({"thing": "é"})',
        "tool",
        r"  nothing\x1b[31m red",
        "assistant cut off",
        "  eight seven",
        "ended: max_generation_length; 4 of 15 tokens sampled by weights 1, 1 calls (0 malformed)",
    ]


def test_tokens_are_shown_with_mask_log_prob_and_weights(home, training):
    lines = show(home, "if_rl", "2/1/0", "--tokens")
    table = [line.split() for line in lines[lines.index("") :] if line.strip()[:1].isdigit()]
    assert len(table) == 15
    (seven,) = ids("seven")
    assert table[4] == ["4", str(seven), "'seven'", "1", "-0.5000", "1"]
    assert table[0] == ["0", str(ids("W")[0]), "'W'", "0"]


def test_thinking_is_dim_and_log_probs_are_coloured_on_a_terminal(home, training, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    result = CliRunner().invoke(app, ["rollouts", "show", "if_rl", "2/1/0", "--tokens", "--home", str(home)])
    assert "\x1b[2;3mperhaps" in result.stdout
    assert "\x1b[33m'seven'" in result.stdout


def test_json_of_the_table_has_the_facts_and_of_one_all(home, training):
    rows = json.loads("\n".join(show(home, "if_rl", "--step", "4", "--json")))
    assert [row["id"] for row in rows] == ["4/0/0", "4/0/1", "4/1/0", "4/1/1"]
    assert rows[1]["extracted"] == "[b]8\x1b[0m"
    assert rows[2]["reward_parts"] == {"format": 1.0, "tests": 0.25}
    assert "token_ids" not in rows[0]
    one = json.loads("\n".join(show(home, "if_rl", "4/1/0", "--json")))
    assert one["messages"][2]["reasoning"] == "perhaps"
    assert len(one["token_ids"]) == len(one["loss_mask"]) == len(one["logprobs"]) == 15
    assert one["routed_experts"] is None


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["if_rl", "--step", "3"], r"there is no step 3 \(there are steps 1 to 2, 4\)"),
        (["if_rl", "--reward", ">9"], r"none of the 12 rollouts matches \(2 problems, rewards from 0 to 1, ended by"),
        (["if_rl", "9/0/0"], "there is no step 9"),
        (["if_rl", "1/7/0"], "none of the 4 rollouts matches"),
        (["if_rl", "1/0/0", "--step", "2"], r"a rollout's name says its step and sample \(leave out --step"),
        (["if_rl", "first"], r"'first' names no rollout \(step/group/sample, as the table shows"),
        (["if_rl", "--reward", "high"], "--reward: 'high' is no bound of a reward"),
        (["if_rl", "--stage", "rlhf"], r"goes back to no training of rlhf \(there are: if_rl, sft\)"),
        (["if_rl", "--stage", "sft"], r"stages/sft/train/\w+: this training has no rollouts \(supervised fine-tuning"),
        (["rlfh"], "no checkpoint 'rlfh'"),
    ],
)
def test_a_user_s_mistake_is_told(home, training, arguments, told):
    with pytest.raises(RufusError, match=told):
        show(home, *arguments)


def test_an_older_training_says_what_it_kept(home, training):
    store = Store(store_root(home))
    old = make(store, "stages/rlhf/train", "training", {"rollouts.jsonl": "{}\n"})
    with pytest.raises(LineageError, match=r"only the first rollouts of each step.*rollouts\.jsonl, or train anew"):
        show(home, old.id)


def test_a_problem_that_was_sampled_twice_in_a_step_needs_the_id(home):
    store = Store(store_root(home))
    attempt = store.attempt("stages/if_rl/train", fingerprint("training", "2", {}, {}))
    write_rollouts(step_file(attempt.folder, 1), [rollout(step=1), rollout(step=1, group=5)])
    store.publish(attempt, Draft(kind="training", version="2", stage="if_rl"))
    with pytest.raises(LineageError, match=r"2 rollouts match \(name one of them: 1/0/0, 1/5/0\)"):
        show(home, "stages/if_rl/train", "--step", "1", "--problem", "0123", "--sample", "0")
    lines = show(home, "stages/if_rl/train", "1/5/0", "--tokens")
    assert "7" in lines[-1]  # without a tokenizer ids stand for tokens
