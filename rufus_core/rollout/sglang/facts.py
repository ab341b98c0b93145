"""What must be known of a policy to talk to its server; weights aren't read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rufus_core.errors import LineageError


@dataclass(frozen=True, slots=True)
class PolicyFacts:
    """`experts_per_token` is 0 for a dense policy. `context_length` is the model's own."""

    context_length: int
    vocab_size: int
    num_layers: int
    experts_per_token: int
    dtype: str = "bfloat16"  # of its weights

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Of a Hugging Face directory. Raises LineageError where its config.json says too little."""
        file = folder / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            return cls(
                context_length=int(config["max_position_embeddings"]),
                vocab_size=int(config["vocab_size"]),
                num_layers=int(config["num_hidden_layers"]),
                experts_per_token=int(config.get("num_experts_per_tok") or 0),
                dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = f"it says no {error}" if isinstance(error, KeyError) else str(error)
            hint = "give a Hugging Face causal LM directory with safetensors weights"
            raise LineageError(f"can't read this policy's shape: {reason}", where=str(file), hint=hint) from error
