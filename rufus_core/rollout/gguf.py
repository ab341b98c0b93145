"""A policy out of a GGUF file, in full precision: weights, tokenizer and chat template are all inside the one file."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from rufus_core.data.chat import ChatFormat
from rufus_core.errors import ConfigError, DataError
from rufus_core.rollout.policy import Policy

_NEEDED = ("gguf", "accelerate")


def load_gguf(path: Path) -> Policy:
    """The policy in fp32, each quantised weight as the value that it stands for. Nothing in the file is executed.

    Raises:
        ConfigError: the extra `gguf` isn't installed.
        DataError: the file can't be read as a causal LM that transformers knows, or lacks weights.
        TemplateError: it has no chat template, or no token that ends a turn.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        hint = "pip install 'rufus-air[gguf]'"
        raise ConfigError(f"reading a GGUF file needs {' and '.join(missing)}", where=str(path), hint=hint)
    # Alone in a folder, for transformers would also read what lies beside the file.
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        (Path(folder) / path.name).symlink_to(path.absolute())
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=path.name, trust_remote_code=False)
            model, info = AutoModelForCausalLM.from_pretrained(
                folder,
                gguf_file=path.name,
                dtype=torch.float32,
                quantization_config=GgufConfig(dequantize=True),
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:  # the readers trust their file, and raise all sorts of things on a bad one
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            hint = "give a causal LM that transformers reads, with its tokenizer"
            raise DataError(f"can't read this GGUF file: {reason}", where=str(path), hint=hint) from error
    if lacking := sorted(info["missing_keys"]):  # the loader would fill them in at random
        raise DataError(f"{len(lacking)} weights are missing, first {lacking[0]}", where=str(path))
    return Policy(model.eval(), ChatFormat(tokenizer))
