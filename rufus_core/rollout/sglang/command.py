"""How a server is started: SGLang's flags and environment variables, as its release 0.5.23 knows them."""

from __future__ import annotations

import sys
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.settings import PrecisionSettings, SGLangSettings

# A server ends requests a few tokens before its context is full (sglang.srt.managers.tp_worker, schedule_batch).
SPARE_TOKENS = 8


def server_command(
    settings: SGLangSettings,
    folder: Path,
    port: int | str,
    index: int,
    facts: PolicyFacts,
    precision: PrecisionSettings | None,
    context_length: int,
    host: str = "127.0.0.1",
) -> list[str]:
    """Program and arguments of the server of this index on its machine, each on GPUs of its own.

    `env` comes first, so that its variables are nobody else's.

    Raises:
        ConfigError: the precision needs a GPU.
    """
    python = settings.python or sys.executable
    variables = server_environment(settings, precision)
    flags = [
        "--model-path", str(folder),
        "--host", host,
        "--port", str(port),
        "--device", settings.device,
        "--tp-size", str(settings.tensor_parallel),
        "--context-length", str(context_length + SPARE_TOKENS),
        "--weight-version", "0",
        "--log-level", "warning",
        *precision_flags(settings, precision, facts),
    ]  # fmt: skip
    if facts.experts_per_token:
        flags.append("--enable-return-routed-experts")
    if settings.device == "cpu":
        flags += ["--attention-backend", "torch_native", "--skip-server-warmup"]
    else:
        flags += ["--base-gpu-id", str(index * settings.tensor_parallel)]
    if settings.memory_fraction is not None:
        flags += ["--mem-fraction-static", str(settings.memory_fraction)]
    if settings.max_total_tokens is not None:
        flags += ["--max-total-tokens", str(settings.max_total_tokens)]
    if settings.max_running_requests is not None:
        flags += ["--max-running-requests", str(settings.max_running_requests)]
    if settings.deterministic:
        flags.append("--enable-deterministic-inference")
    if settings.colocated:
        flags.append("--enable-memory-saver")
    assigned = [f"{name}={value}" for name, value in variables.items()]
    return ["/usr/bin/env", *assigned, python, "-m", "sglang.launch_server", *flags, *settings.extra_args]


def server_environment(settings: SGLangSettings, precision: PrecisionSettings | None) -> dict[str, str]:
    """What SGLang reads from its environment and has no flag for."""
    variables = {
        # A context with the spare tokens is longer than the model's; no request comes near them.
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "HF_HUB_OFFLINE": "1",
    }
    if settings.device == "cpu":
        variables["SGLANG_USE_CPU_ENGINE"] = "1"
    if precision and precision.rollout == "fp8" and precision.rollout_bf16_first_layers:
        layers = range(precision.rollout_bf16_first_layers)
        variables["SGLANG_FP8_IGNORED_LAYERS"] = ",".join(f"model.layers.{layer}" for layer in layers)
    return variables | settings.environment


def precision_flags(settings: SGLangSettings, precision: PrecisionSettings | None, facts: PolicyFacts) -> list[str]:
    """FP8 is made by the server from BF16 weights as they come, at every update anew (SLM-07). None: as the weights."""
    if precision is None:
        return ["--dtype", facts.dtype]
    if precision.rollout == "fp32":
        return ["--dtype", "float32"]
    if precision.rollout == "bf16":
        return ["--dtype", "bfloat16"]
    if settings.device == "cpu":
        raise ConfigError(
            "a CPU can't roll out in FP8", where="precision.rollout", hint="set it to bf16, or execution.sglang.device"
        )
    return ["--dtype", "bfloat16", "--quantization", "fp8"]
