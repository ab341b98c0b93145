"""IFEval's checkers (Zhou et al. 2023, arXiv 2311.07911), as lm-eval carries them, without the network.

For the worker process of `rewards/instructions.py` only: loading takes seconds and changes `nltk` and `langdetect`.
"""

from __future__ import annotations

from importlib.metadata import version

from rufus_core.rewards import english
from rufus_core.rewards.instruction_worker import Benchmark


def load() -> Benchmark:
    splitter = english.prepare()
    import langdetect
    from lm_eval.tasks.ifeval import instructions_registry, instructions_util

    langdetect.DetectorFactory.seed = 0
    sentences = english.sentence_tokenizer()
    instructions_util._get_sentence_tokenizer = lambda: sentences
    return Benchmark(
        checkers=instructions_registry.INSTRUCTION_DICT,
        protocol=f"ifeval by lm-eval {version('lm-eval')}, sentences by {splitter}",
        unavailable={},
    )
