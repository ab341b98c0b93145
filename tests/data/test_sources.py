"""Reading users' files: layouts, GSM8K answers, errors that name their place."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from rufus_core.data.layouts import conversation_from_row
from rufus_core.data.sources import final_answer, read_conversations, read_problems
from rufus_core.errors import DataError
from rufus_core.types import Conversation, ToolCall
from tests.data.real import real


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read_one(row: dict[str, object]) -> Conversation:
    return conversation_from_row(row, "mine", "general_chat", "file:1")


def roles_and_texts(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "hello"}]},
        {"conversations": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]},
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"from": "gpt", "value": "hello"},
            ]
        },
        {"prompt": "hi", "response": "hello"},
        {"prompt": "hi", "completion": "hello"},
        {"question": "hi", "answer": "hello"},
        {"instruction": "hi", "output": "hello"},
        {"instruction": "hi", "input": "", "output": "hello"},
    ],
)
def test_layouts_are_recognised_NORM_01(row: dict[str, object]) -> None:
    assert roles_and_texts(read_one(row)) == [("user", "hi"), ("assistant", "hello")]


def test_system_field_input_field_and_reasoning() -> None:
    row = {"system": "Be kind.", "instruction": "Add.", "input": "1 and 2", "output": "3", "reasoning": "1+2"}
    conversation = read_one(row)
    assert roles_and_texts(conversation) == [
        ("system", "Be kind."),
        ("user", "Add.\n\n1 and 2"),
        ("assistant", "3"),
    ]
    assert conversation.messages[-1].reasoning == "1+2"


@pytest.mark.parametrize("arguments", [{"q": "x"}, '{"q": "x"}', json.dumps(json.dumps({"q": "x"}))])
@pytest.mark.parametrize("nested", [True, False])
def test_tool_arguments_are_decoded_once_and_only_once(arguments: object, nested: bool) -> None:
    function = {"name": "search", "arguments": arguments}
    call = {"id": "c1", "type": "function", "function": function} if nested else function
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": [call]}]}
    assert read_one(row).messages[1].tool_calls == (ToolCall(name="search", arguments={"q": "x"}),)


def test_an_argument_that_is_json_text_stays_text() -> None:
    call = {"name": "write", "arguments": {"text": '{"a": 1}'}}
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": [call]}]}
    assert read_one(row).messages[1].tool_calls[0].arguments == {"text": '{"a": 1}'}


def test_reasoning_content_survives_and_an_empty_one_is_none() -> None:
    replies = [
        {"role": "assistant", "content": "a", "reasoning_content": "because"},
        {"role": "assistant", "content": "b", "reasoning_content": ""},
    ]
    conversation = read_one({"messages": [{"role": "user", "content": "?"}, *replies]})
    assert [m.reasoning for m in conversation.messages] == [None, "because", None]


def test_parallel_results_follow_the_order_of_their_calls() -> None:
    calls = [{"id": name, "function": {"name": name, "arguments": {}}} for name in ("one", "two", "three")]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("three", "one", "two")]
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}, *results]}
    assert [m.content for m in read_one(row).messages[2:]] == ["one", "two", "three"]


def test_results_of_unknown_calls_keep_their_order() -> None:
    calls = [{"id": "one", "function": {"name": "f", "arguments": {}}}]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in ("other", "one")]
    row = {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "tool_calls": calls}, *results]}
    assert [m.content for m in read_one(row).messages[2:]] == ["other", "one"]


@pytest.mark.parametrize("as_text", [True, False])
def test_tool_schemas_nested_flat_and_as_text(as_text: bool) -> None:
    parameters = {"type": "object", "properties": {"q": {"type": "string"}}}
    tools: object = [
        {"type": "function", "function": {"name": "a", "description": "A", "parameters": parameters}},
        {"name": "b", "parameters": None},
    ]
    row = {"question": "?", "answer": "!", "tools": json.dumps(tools) if as_text else tools}
    first, second = read_one(row).tools
    assert (first.name, first.description, first.parameters) == ("a", "A", parameters)
    assert (second.name, second.parameters) == ("b", {"type": "object", "properties": {}})


def test_sharegpt_function_call_turn() -> None:
    row = {
        "conversations": [
            {"from": "human", "value": "?"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1}}'},
            {"from": "observation", "value": "42"},
            {"from": "gpt", "value": "It is 42."},
        ]
    }
    messages = read_one(row).messages
    assert [m.role for m in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1].tool_calls == (ToolCall(name="f", arguments={"x": 1}),)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{"}]}]}, "tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"name": "f", "arguments": [1]}]}]}, "arguments"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"arguments": {}}]}]}, "tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": ["f"]}]}, "tool_calls[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": "not json"}]}, "tool_calls"),
        ({"question": "a", "answer": " "}, "answer"),
        ({"question": "a", "answer": "b", "tools": {}}, "tools"),
        ({"question": "a", "answer": "b", "tools": [{"description": "x"}]}, "tools[0].name"),
        ({"text": "a"}, "file.jsonl:2"),
        ({"question": 5, "answer": "b"}, "file.jsonl:2"),
    ],
)
def test_unusable_rows_name_file_line_and_field(tmp_path: Path, row: dict[str, object], place: str) -> None:
    path = write(tmp_path / "file.jsonl", {"question": "ok?", "answer": "ok"}, row)
    with pytest.raises(DataError) as caught:
        list(read_conversations(path, "mine", "general_chat"))
    assert caught.value.where is not None
    assert caught.value.where.startswith(f"{path}:2")
    assert place in caught.value.where


def test_a_format_restricts_the_layouts(tmp_path: Path) -> None:
    path = write(tmp_path / "f.jsonl", {"question": "a", "answer": "b"})
    assert list(read_conversations(path, "mine", "math", "question_answer"))
    with pytest.raises(DataError, match="messages"):
        list(read_conversations(path, "mine", "math", "messages"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b'{"question": "a", "answer": "b"}\n{oops\n', ":2"),
        (b"[1, 2]\n", ":1"),
        (b'{"question": NaN}\n', ":1"),
        (b'{"question": "\\ud800", "answer": "b"}\n', ":1"),
        (b'{"question": "a", "answer": "b"}\n\xff\xfe\n', ":2: the text isn't UTF-8"),
        (b'{"question": "a"\n', "Expecting ',' delimiter at character 17"),
        (b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_bytes(content)
    for reader in (read_conversations(path, "mine", "math"), read_problems(path, "mine")):
        with pytest.raises(DataError, match=what):
            list(reader)


def test_a_path_may_start_at_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine.jsonl", {"question": "a", "answer": "1"})
    assert len(list(read_problems("~/mine.jsonl", "mine"))) == 1


def test_missing_files(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere.jsonl", tmp_path):
        with pytest.raises(DataError, match="no such file"):
            list(read_problems(path, "mine"))


def test_byte_order_mark_blank_lines_and_gzip(tmp_path: Path) -> None:
    text = '\ufeff{"question": "a", "answer": "1"}\n\n{"question": "b", "answer": "2"}'
    plain, zipped = tmp_path / "f.jsonl", tmp_path / "f.jsonl.gz"
    plain.write_text(text, encoding="utf-8")
    zipped.write_bytes(gzip.compress(text.encode()))
    assert list(read_problems(plain, "mine")) == list(read_problems(zipped, "mine"))
    assert len(list(read_problems(plain, "mine"))) == 2


def test_a_truncated_gzip_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"question": "a", "answer": "1"}\n' * 50)[:-9])
    with pytest.raises(DataError, match="can't be read"):
        list(read_problems(path, "mine"))


def test_a_damaged_gzip_is_a_data_error(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl.gz"
    content = bytearray(gzip.compress(b'{"question": "a", "answer": "1"}\n' * 50))
    content[12:20] = b"\xff" * 8
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="can't be read"):
        list(read_problems(path, "mine"))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Sells <<1+1=2>>2.\n#### 18", "18"),
        ("#### 1,234,567", "1234567"),
        ("#### 1 \n#### -2.5 ", "-2.5"),
        ("so \\boxed{1} and \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\{1, 2\\}}", "\\{1, 2\\}"),
        ("\\boxed{[0, \\infty\\}}", "[0, \\infty\\}"),
        ("(1,2)", "(1,2)"),
        ("\\boxed{1", ""),
        (" 42 ", "42"),
    ],
)
def test_final_answer(text: str, answer: str) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize("question", ["question", "problem", "prompt", "query"])
@pytest.mark.parametrize("answer", ["answer", "final_answer", "expected_answer", "solution"])
def test_problem_fields(tmp_path: Path, question: str, answer: str) -> None:
    path = write(tmp_path / "f.jsonl", {question: "1+1?", answer: 2}, {question: "1+1 ?", answer: 2.0})
    first, second = read_problems(path, "mine")
    assert (first.family, first.source, first.prompt[0].content) == ("arithmetic", "mine", "1+1?")
    assert first.ground_truth == second.ground_truth == {"answer": "2"}


def test_duplicate_problems_are_kept_once_and_counted(tmp_path: Path) -> None:
    rows = [{"question": "1+1?", "answer": "2"}] * 3 + [{"question": "1+1?", "answer": "3"}]
    counts: Counter[str] = Counter()
    problems = list(read_problems(write(tmp_path / "f.jsonl", *rows), "mine", counts=counts))
    assert len(problems) == len({p.id for p in problems}) == 2
    assert counts == {"rows": 4, "problems": 2, "duplicates": 2}


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"question": "a"}, ":1"),
        ({"answer": "a"}, ":1"),
        ({"question": ["a"], "answer": "b"}, " question"),
        ({"question": "a", "answer": True}, " answer"),
    ],
)
def test_unusable_problem_rows(tmp_path: Path, row: dict[str, object], place: str) -> None:
    with pytest.raises(DataError) as caught:
        list(read_problems(write(tmp_path / "f.jsonl", row), "mine"))
    assert place in str(caught.value.where)


def test_gsm8k_is_read_whole() -> None:
    counts: Counter[str] = Counter()
    problems = list(read_problems(real("gsm8k/test.jsonl"), "gsm8k", counts=counts))
    assert len(problems) == 1319
    assert problems[0].ground_truth == {"answer": "18"}
    assert all(float(p.ground_truth["answer"]) is not None for p in problems)


@pytest.mark.parametrize(("name", "count"), [("aime24", 30), ("aime25", 30), ("amc23", 40), ("math500", 500)])
def test_math_benchmarks_are_read_whole(name: str, count: int) -> None:
    problems = list(read_problems(real(f"math/{name}.jsonl"), name))
    assert len(problems) == count
    assert all(p.ground_truth["answer"] for p in problems)


def test_glm_trajectory_is_read_with_reasoning_and_calls() -> None:
    row = json.loads(real("tool_use/glm_trajectory_search.json").read_text(encoding="utf-8"))
    messages = conversation_from_row(row, "glm", "general_agent", "trajectory").messages
    steps = [m for m in messages if m.role == "assistant"]
    assert all(m.reasoning for m in steps)
    assert all(isinstance(call.arguments, dict) for m in steps for call in m.tool_calls)
    for index, message in enumerate(messages[:-1]):
        if message.tool_calls:
            following = messages[index + 1 : index + 1 + len(message.tool_calls)]
            assert [m.role for m in following] == ["tool"] * len(message.tool_calls)
