"""How long a verdict took."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import ParamSpec

from rufus_core.types import Verdict

ParamsT = ParamSpec("ParamsT")


def timed(verify: Callable[ParamsT, Verdict]) -> Callable[ParamsT, Verdict]:
    """The same verifier, whose verdicts carry their wall-clock seconds."""

    @functools.wraps(verify)
    def verify_timed(*args: ParamsT.args, **kwargs: ParamsT.kwargs) -> Verdict:
        started = time.perf_counter()
        verdict = verify(*args, **kwargs)
        return replace(verdict, seconds=time.perf_counter() - started)

    return verify_timed
