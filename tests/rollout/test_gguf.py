"""A policy out of a GGUF file: the same bytes each time, and the model that transformers reads from it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from rufus_core.data.chat import ChatFormat
from rufus_core.errors import ConfigError, DataError, TemplateError
from rufus_core.rollout import gguf
from rufus_core.rollout.gguf import load_gguf
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.types import Message
from tests.rollout.smollm2 import MODEL, needs_smollm2

QUESTION = [Message(role="user", content="What is the capital of France?")]


@pytest.fixture(scope="module")
def converted() -> Policy:
    return load_gguf(MODEL)


@pytest.fixture(scope="module")
def saved(converted: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    converted.save(folder)
    return folder


@needs_smollm2
@pytest.mark.slow
def test_the_bytes_and_log_probs_are_those_of_transformers_own_loading(saved: Path, tmp_path: Path) -> None:
    direct = AutoModelForCausalLM.from_pretrained(
        MODEL.parent, gguf_file=MODEL.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer = AutoTokenizer.from_pretrained(MODEL.parent, gguf_file=MODEL.name)
    Policy(direct, ChatFormat(tokenizer)).save(tmp_path)
    names = sorted(path.name for path in saved.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    for name in names:
        assert (saved / name).read_bytes() == (tmp_path / name).read_bytes(), name
    policy = load_policy(saved)
    ids_BT = torch.tensor([policy.chat.prompt_ids(QUESTION)])
    with torch.no_grad():
        ours, theirs = (model(ids_BT).logits.log_softmax(-1) for model in (policy.model, direct))
    assert torch.equal(ours, theirs)


@needs_smollm2
def test_embeddings_stay_tied_and_are_saved_once(saved: Path) -> None:
    model = load_policy(saved).model
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert sum(p.numel() for p in model.parameters()) == 134_515_008


@needs_smollm2
def test_the_chat_template_is_chatml_with_smollm2s_system_prompt(saved: Path) -> None:
    chat = load_policy(saved).chat
    assert chat.decode(chat.prompt_ids(QUESTION)) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    )
    own = [Message(role="system", content="Be brief."), *QUESTION]
    assert chat.decode(chat.prompt_ids(own)).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert "<|im_end|>" in [chat.decode([token]) for token in chat.stop_token_ids]


@needs_smollm2
@pytest.mark.parametrize(
    "text", ["What is 12 + 345?", " two  spaces\n\tand tabs", "naïve 東京 🙂", "def f(x):\n    return x"]
)
def test_text_survives_the_tokenizer(converted: Policy, text: str) -> None:
    assert converted.chat.decode(converted.chat.tokenizer(text)["input_ids"]) == text


@needs_smollm2
def test_digits_are_tokens_of_their_own(converted: Policy) -> None:
    tokens = converted.chat.tokenizer.tokenize("12 + 345")
    assert [token for token in tokens if any(sign.isdigit() for sign in token)] == ["1", "2", "3", "4", "5"]


@needs_smollm2
def test_the_model_says_sensible_things(converted: Policy) -> None:
    ids_BT = torch.tensor([converted.chat.prompt_ids(QUESTION)])
    out_BT = converted.model.generate(ids_BT, max_new_tokens=16, do_sample=False)
    assert "Paris" in converted.chat.decode(out_BT[0, ids_BT.shape[1] :].tolist())


@needs_smollm2
def test_supervision_is_refused_for_want_of_marked_turns(converted: Policy) -> None:
    answered = [*QUESTION, Message(role="assistant", content="Paris.")]
    with pytest.raises(TemplateError, match="marks 0 generated spans for 1 assistant messages") as caught:
        converted.chat.example_ids([(answered, [False, True], ())])
    assert "{% generation %}" in (caught.value.hint or "")


@pytest.mark.skipif(not importlib.util.find_spec("gguf"), reason="the extra `gguf` isn't installed")
@pytest.mark.parametrize("content", [b"GGUF", b"GGUF" + bytes(100), b"GGUF\x03\x00\x00\x00" + b"\xff" * 400])
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "damaged.gguf"
    file.write_bytes(content)
    with pytest.raises(DataError, match="can't read this GGUF file") as caught:
        load_gguf(file)
    assert caught.value.where == str(file)
    assert caught.value.hint


def test_a_missing_extra_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "_NEEDED", ("gguf", "no_such_package"))
    with pytest.raises(ConfigError, match="no_such_package") as caught:
        load_gguf(tmp_path / "any.gguf")
    assert "rufus-air[gguf]" in (caught.value.hint or "")
