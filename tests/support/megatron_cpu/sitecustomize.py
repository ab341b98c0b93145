"""Lets the ranks of a job compute by Megatron-core on a CPU. Tests put this folder on the PYTHONPATH of a job."""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any


class _BeforeMegatron(importlib.abc.MetaPathFinder):
    """Every interpreter of the job runs this file, and few of them train: it acts when Megatron-core is asked for."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "rufus_core.training.megatron.trainer":
            sys.meta_path.remove(self)
            from tests.support import cpu_megatron

            cpu_megatron.install()


sys.meta_path.insert(0, _BeforeMegatron())
