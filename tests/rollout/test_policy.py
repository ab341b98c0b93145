"""A policy on disk: the same bytes, the same behaviour, and nothing loaded that isn't weights."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rufus_core.data.chat import load_chat
from rufus_core.errors import LineageError, TemplateError
from rufus_core.rollout.policy import Policy, load_policy
from rufus_core.types import Message


@pytest.fixture(scope="module")
def saved(tiny_policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy")
    tiny_policy.save(folder)
    return folder


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    return shutil.copytree(saved, tmp_path / "copy")


def test_the_same_policy_is_the_same_bytes(saved: Path, tmp_path: Path) -> None:
    load_policy(saved).save(tmp_path)
    names = sorted(path.name for path in saved.iterdir())
    assert names == sorted(path.name for path in tmp_path.iterdir())
    assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= set(names)
    for name in names:
        assert (saved / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_a_loaded_policy_behaves_as_the_saved_one(saved: Path, tiny_policy: Policy) -> None:
    loaded = load_policy(saved)
    ids = loaded.chat.prompt_ids([Message(role="user", content="hello world 12")])
    assert ids == tiny_policy.chat.prompt_ids([Message(role="user", content="hello world 12")])
    assert ids == load_chat(saved).prompt_ids([Message(role="user", content="hello world 12")])
    with torch.no_grad():
        batch = torch.tensor([ids])
        assert torch.equal(loaded.model(batch).logits, tiny_policy.model(batch).logits)
    assert not loaded.model.training
    assert loaded.context_length == tiny_policy.context_length == 128
    assert loaded.chat.stop_token_ids == tiny_policy.chat.stop_token_ids


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(LineageError, match="can't load a policy"):
        load_policy(tmp_path / "nowhere")


def test_damaged_weights(copied: Path) -> None:
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(LineageError, match="can't load a policy"):
        load_policy(copied)


def test_absent_weights_are_not_made_up(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, copied / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LineageError, match=r"1 weights are missing, first model\.norm\.weight"):
        load_policy(copied)


def test_weights_of_another_shape(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(LineageError, match="can't load a policy"):
        load_policy(copied)


@pytest.mark.parametrize("text", ["{", '{"model_type": "no_such_model"}'])
def test_a_damaged_configuration(copied: Path, text: str) -> None:
    (copied / "config.json").write_text(text)
    with pytest.raises(LineageError, match="can't load a policy"):
        load_policy(copied)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("config.json", {"hidden_size": "x"}),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", {"dtype": "zzz"}),
        ("config.json", {"quantization_config": 3}),
        ("config.json", None),
        ("tokenizer.json", []),
        ("tokenizer_config.json", []),
        ("generation_config.json", []),
    ],
)
def test_a_file_that_says_something_else(copied: Path, name: str, change: Any) -> None:
    path = copied / name
    path.write_text(json.dumps(json.loads(path.read_text()) | change if isinstance(change, dict) else change))
    with pytest.raises(LineageError, match="can't load a policy"):
        load_policy(copied)


def test_pickled_weights_are_refused(copied: Path) -> None:
    torch.save(load_file(copied / "model.safetensors"), copied / "pytorch_model.bin")
    (copied / "model.safetensors").unlink()
    with pytest.raises(LineageError, match="can't load a policy"):
        load_policy(copied)


@pytest.mark.parametrize("model_type", ["glm4_moe", "of_its_own"])
def test_code_beside_the_weights_is_never_run(copied: Path, model_type: str, tmp_path: Path) -> None:
    proof = tmp_path / "ran"
    (copied / "modeling_x.py").write_text(f"from pathlib import Path\nPath({str(proof)!r}).touch()\nclass X: pass\n")
    config = json.loads((copied / "config.json").read_text())
    names = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    config |= {"model_type": model_type, "auto_map": dict.fromkeys(names, "modeling_x.X")}
    (copied / "config.json").write_text(json.dumps(config))
    if model_type == "glm4_moe":
        load_policy(copied)
    else:
        with pytest.raises(LineageError, match="can't load a policy"):
            load_policy(copied)
    assert not proof.exists()


def test_a_tokenizer_without_a_template(copied: Path) -> None:
    (copied / "chat_template.jinja").unlink()
    with pytest.raises(TemplateError, match="no chat template"):
        load_policy(copied)
