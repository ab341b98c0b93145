r"""What counts as the answer: after the last `</think>`, in the last balanced `\boxed{}`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.boxed import last_boxed
from rufus_core.rewards.extract import answer_text, short_answer

texts = st.text(alphabet="ab{}\\ 1", max_size=30)
balanced = st.recursive(
    st.text(alphabet="ab1 +", max_size=6),
    lambda inner: st.tuples(inner, inner, inner).map(lambda t: f"{t[0]}{{{t[1]}}}{t[2]}"),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("8", "8"),
        ("<think>3 + 5</think>8", "8"),
        ("3 + 5</think>\n8\n", "8"),  # the template opened the block in the prompt
        ("<think>a</think>7<think>b</think>8", "8"),
        ("<think>3 + 5", None),
        ("<think>a</think>7<think>b", None),
        ("<think>a</think>", ""),
    ],
)
def test_only_text_after_the_last_closed_think_block_counts(text, answer):
    assert answer_text(text) == answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{8}", "8"),
        (r"\boxed {8}", "8"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{1} then \boxed{2", None),  # no falling back
        (r"\boxed{\frac{1}{2}", None),
        (r"\boxed{2\}", None),
        (r"\boxed{2\\", None),
        (r"\boxed 8", None),
        ("8", None),
        (r"\boxed{}", ""),
    ],
)
def test_last_balanced_box_is_the_answer(text, content):
    assert last_boxed(text) == content


@given(texts, balanced, st.text(alphabet="ab1 ", max_size=10))
def test_a_closed_box_is_found_behind_any_text(before, content, after):
    assert last_boxed(rf"{before} \boxed{{{content}}}{after}") == content.strip()


@given(texts, balanced)
def test_an_unterminated_last_box_is_never_an_answer(before, content):
    assert last_boxed(rf"\boxed{{1}} {before} \boxed{{{content}") is None


@given(texts, texts)
def test_thinking_never_changes_the_answer(thought, rest):
    assert answer_text(f"<think>{thought}</think>{rest}") == answer_text(rest)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("iron", "iron"),
        (r"it is \boxed{iron}", "iron"),
        (r"it is \boxed{iron", None),
        (r"<think>\boxed{oak}</think>iron", "iron"),
        ("<think>iron", None),
        ("", None),
    ],
)
def test_short_answer_prefers_the_box_and_never_reads_an_open_one(text, answer):
    assert short_answer(text) == answer
