r"""What counts as the answer: after the last `</think>`, in the last balanced `\boxed{}`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rufus_core.data.boxed import last_boxed
from rufus_core.rewards.extract import Extraction, extract

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
        ("<think>a</think>", None),
        (None, None),
    ],
)
def test_only_text_after_the_last_closed_think_block_counts(text, answer):
    assert extract(text, Extraction.TEXT) == answer


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


@given(texts, texts, st.sampled_from(Extraction))
def test_thinking_never_changes_the_answer(thought, rest, policy):
    assert extract(f"<think>{thought}</think>{rest}", policy) == extract(rest, policy)


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
def test_a_box_goes_before_the_text_and_an_open_one_is_never_read(text, answer):
    assert extract(text, Extraction.BOX_OR_TEXT) == answer


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```", "a"),
        ("```python\na\n```\nthen\n```python\nb\nc\n```\nend", "b\nc"),
        ("```python\na\n```\n```text\nout\n```", "a"),
        ("```Python3 \na\n```", "a"),
        ("~~~py\na\n~~~", "a"),
        ("````python\n```\na\n````", "```\na"),
        ("```python\n```", None),
        (
            "```python\na\n```\n```python\nb",
            None,
        ),  # an unterminated block is no answer, and the earlier one isn't taken
        ("```python\na", None),
        ("```\na\n```", None),
        ("```python\nx = 'a\u2028b'\n```", "x = 'a\u2028b'"),
        ("```python\r\na\r\nb\r\n```\r\n", "a\nb"),
        ("```text\n```python\n```", None),
        ("<think>```python\na\n```</think>b", None),
        ("<think>x</think>```python\na\n```", "a"),
        ("<think>```python\na\n```", None),
        ("a", None),
        ("", None),
    ],
)
def test_the_last_fenced_python_block_counts_CRL_R1(text, code):
    assert extract(text, Extraction.PYTHON_BLOCK) == code


@pytest.mark.parametrize("policy", Extraction)
@given(response=st.none() | st.text(alphabet="<think>/` \\boxed{}python\n1", max_size=80))
def test_an_answer_is_never_empty_nor_thought(policy, response):
    answer = extract(response, policy)
    assert answer != ""
    assert answer is None or answer in (response or "").rpartition("</think>")[2]
