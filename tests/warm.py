"""Processes of a test's own that start in milliseconds: forked from one that has imported torch and run none of it."""

from __future__ import annotations

import multiprocessing

WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(["rufus_core.jobs.training", "rufus_core.training.base_policy", "pytest"])
