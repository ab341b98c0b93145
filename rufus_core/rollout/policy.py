"""A policy on disk: a Hugging Face causal LM directory with tokenizer, chat template and safetensors weights."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from rufus_core.data.chat import ChatFormat
from rufus_core.errors import InfrastructureError, LineageError

transformers_logging.disable_progress_bar()
_HOW_IT_WAS_LOADED = ("is_local", "local_files_only")  # what the tokenizer would write down about its own origin


@dataclass(slots=True)
class Policy:
    model: PreTrainedModel
    chat: ChatFormat

    @property
    def context_length(self) -> int:
        return int(self.model.config.max_position_embeddings)

    def save(self, folder: Path) -> None:
        """Write weights (safetensors), configuration, tokenizer and chat template: equal bytes for equal policies.

        Raises:
            InfrastructureError: the weights couldn't be written.
        """
        for key in _HOW_IT_WAS_LOADED:
            self.chat.tokenizer.init_kwargs.pop(key, None)
        with contextlib.redirect_stderr(io.StringIO()):
            try:
                self.model.save_pretrained(folder)
            except SafetensorError as error:  # so it tells a full disk
                hint = "free some space and run the same command again; what was trained is kept"
                raise InfrastructureError(
                    f"can't write these weights: {error}", where=str(folder), hint=hint
                ) from error
            self.chat.tokenizer.save_pretrained(folder)


def load_policy(path: Path | str, dtype: torch.dtype = torch.float32) -> Policy:
    """Load a policy. Code from the directory is never executed and only safetensors are read.

    Raises:
        LineageError: the directory is missing or can't be loaded.
        TemplateError: its tokenizer has no chat template.
    """
    chat = load_chat(path)
    try:
        model, info = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
        )
    except Exception as error:
        raise _unloadable(path, _first_line(error)) from error
    if missing := sorted(info["missing_keys"]):  # the loader would fill them in at random
        raise _unloadable(path, f"{len(missing)} weights are missing, first {missing[0]}")
    return Policy(model.eval(), chat)


def load_chat(path: Path | str) -> ChatFormat:
    """A policy's tokenizer and chat template alone. Raises as `load_policy`."""
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    except Exception as error:
        raise _unloadable(path, _first_line(error)) from error
    return ChatFormat(tokenizer)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _unloadable(path: Path | str, reason: str) -> LineageError:
    return LineageError(
        f"can't load a policy: {reason}",
        where=str(path),
        hint="give a Hugging Face causal LM directory with safetensors weights",
    )
