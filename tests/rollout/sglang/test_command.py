"""The flags that SGLang is started with, and what SGLang itself makes of the layers that stay in BF16."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from rufus_core.errors import ConfigError
from rufus_core.recipe.load import load_recipe
from rufus_core.rollout.sglang.command import SPARE_TOKENS, server_command, server_environment
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.settings import PrecisionSettings, RLStage, SGLangSettings
from tests.rollout.sglang.installed import PYTHON, SUPPORT, needs_sglang

AIR = PolicyFacts(context_length=131072, vocab_size=151552, num_layers=46, experts_per_token=8)
BF16 = PrecisionSettings()


def command(settings: SGLangSettings, precision: PrecisionSettings = BF16, index: int = 0) -> list[str]:
    return server_command(settings, Path("/policy"), 31000, index, AIR, precision, 65536)


def value(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


def test_a_server_listens_on_loopback_on_gpus_of_its_own_and_tells_its_routing() -> None:
    words = command(SGLangSettings(python="/sglang/python", tensor_parallel=2, memory_fraction=0.7), index=3)
    program = words.index("/sglang/python")
    assert words[program + 1 : program + 3] == ["-m", "sglang.launch_server"]
    assert (value(words, "--model-path"), value(words, "--host"), value(words, "--port")) == (
        "/policy",
        "127.0.0.1",
        "31000",
    )
    assert (value(words, "--tp-size"), value(words, "--base-gpu-id")) == ("2", "6")
    assert value(words, "--mem-fraction-static") == "0.7"
    assert value(words, "--context-length") == str(65536 + SPARE_TOKENS)
    assert "--enable-return-routed-experts" in words
    assert "--trust-remote-code" not in words
    assert not {"--enable-memory-saver", "--enable-deterministic-inference"} & set(words)
    more = command(SGLangSettings(colocated=True, deterministic=True, extra_args=("--log-level", "info")))
    assert {"--enable-memory-saver", "--enable-deterministic-inference"} <= set(more)
    assert more[-2:] == ["--log-level", "info"]


@pytest.mark.parametrize("stage", ["reasoning_rl", "coding_rl"])
def test_the_published_stages_roll_out_in_fp8_but_for_three_layers(stage: str) -> None:
    """SLM-07."""
    settings = load_recipe("rufus_air", "h200").stages[stage]
    assert isinstance(settings, RLStage)
    words = command(SGLangSettings(), settings.precision)
    assert value(words, "--quantization") == "fp8"
    assert value(words, "--dtype") == "bfloat16"  # what comes from the trainer stays what it is
    assert "SGLANG_FP8_IGNORED_LAYERS=model.layers.0,model.layers.1,model.layers.2" in words


def test_other_precisions_quantize_nothing() -> None:
    for rollout, dtype in (("bf16", "bfloat16"), ("fp32", "float32")):
        words = command(SGLangSettings(), PrecisionSettings(rollout=rollout))  # type: ignore[arg-type]
        assert value(words, "--dtype") == dtype
        assert "--quantization" not in words
        assert not any("FP8" in word for word in words)
    with pytest.raises(ConfigError, match="a CPU can't roll out in FP8"):
        command(SGLangSettings(device="cpu"), PrecisionSettings(rollout="fp8"))


_ASK_SGLANG = """
import json, sys
from sglang.srt.layers.quantization.fp8 import Fp8Config
from sglang.srt.layers.quantization.utils import is_layer_skipped
config = Fp8Config()
print(json.dumps([is_layer_skipped(name, config.ignored_layers) for name in json.loads(sys.argv[1])]))
"""


@needs_sglang
@pytest.mark.slow
def test_sglang_reads_those_layers_as_they_are_meant() -> None:
    """SLM-07, by SGLang's own code: every matrix of layers 0 to 2, and none of the others, 10 and 20 among them."""
    parts = (
        "self_attn.qkv_proj",
        "self_attn.o_proj",
        "mlp.gate_up_proj",
        "mlp.experts",
        "mlp.shared_experts.down_proj",
    )
    names = [f"model.layers.{layer}.{part}" for layer in (0, 1, 2, 3, 10, 20, 45) for part in parts]
    precision = PrecisionSettings(rollout="fp8", rollout_bf16_first_layers=3)
    variables = server_environment(SGLangSettings(), precision) | {"PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        [str(PYTHON), "-c", _ASK_SGLANG, json.dumps(names)],
        env={**os.environ, **variables, "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    skipped = json.loads(done.stdout.splitlines()[-1])
    assert skipped == [int(name.split(".")[2]) < 3 for name in names]


def test_flags_of_servers_that_run_already_are_refused() -> None:
    with pytest.raises(ValueError, match="memory_fraction would change nothing"):
        SGLangSettings(urls=("http://10.0.0.1:30000",), memory_fraction=0.5)
    with pytest.raises(ValueError, match="String should match pattern"):
        SGLangSettings(urls=("10.0.0.1:30000",))
