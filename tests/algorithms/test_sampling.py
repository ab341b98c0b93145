import math

import numpy as np
import pytest

from rufus_core.algorithms.sampling import in_window
from rufus_core.settings import DynamicSamplingSettings

REASONING = DynamicSamplingSettings(low_exclusive=0.0, high_inclusive=0.8)
DAPO = DynamicSamplingSettings(low_exclusive=0.0, high_exclusive=1.0)


def test_one_to_twelve_successes_of_sixteen_are_kept_RRL_T6():
    kept = [k for k in range(17) if in_window(np.mean([1.0] * k + [0.0] * (16 - k)), REASONING)]
    assert kept == list(range(1, 13))


def test_all_pass_and_all_fail_are_dropped_GA_T1():
    kept = [k for k in range(65) if in_window(np.mean([1.0] * k + [0.0] * (64 - k)), DAPO)]
    assert kept == list(range(1, 64))


@pytest.mark.parametrize("mean", [0.8, np.mean([0.8] * 7), np.mean([1.0, 1.0, 1.0, 1.0, 0.0]), 0.1 + 0.7])
def test_the_upper_bound_itself_is_inside_whatever_the_rounding(mean):
    assert in_window(mean, REASONING)


@pytest.mark.parametrize("mean", [1.0, np.mean([0.1] * 10) * 10, 0.0, 1e-17])
def test_the_exclusive_bounds_are_outside_whatever_the_rounding(mean):
    assert not in_window(mean, DAPO)


def test_a_group_without_a_scored_member_is_never_kept():
    assert not in_window(math.nan, DynamicSamplingSettings(low_exclusive=-1.0))
