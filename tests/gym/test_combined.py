"""Gyms made of gyms: what is held, in which order, and who serves which problem."""

from __future__ import annotations

from typing import Self

import pytest

from rufus_core.errors import DataError
from rufus_core.gym.combined import HoldingGym, MixedGym
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports.gym import Environment
from rufus_core.types import Message, Problem, Verdict


class Part(SingleTurnGym):
    """Writes down when it is entered, used and left."""

    def __init__(self, name: str, log: list[str], fails: bool = False) -> None:
        super().__init__(lambda episode: Verdict.binary(True))
        self._name, self._log, self._fails = name, log, fails

    def open(self, problem: Problem) -> Environment:
        self._log.append(f"{self._name} opens {problem.family}")
        return super().open(problem)

    def __enter__(self) -> Self:
        if self._fails:
            raise OSError(self._name)
        self._log.append(f"+{self._name}")
        return self

    def __exit__(self, *exc: object) -> None:
        self._log.append(f"-{self._name}")


def problem(family: str) -> Problem:
    return Problem.build(family, "s", [Message(role="user", content="x")], {})


def test_what_a_gym_holds_is_there_before_it_and_gone_after_it() -> None:
    log: list[str] = []
    with HoldingGym(Part("gym", log), Part("pool", log), Part("judge", log)) as gym:
        gym.open(problem("f"))
    assert log == ["+pool", "+judge", "+gym", "gym opens f", "-gym", "-judge", "-pool"]


@pytest.mark.parametrize("failing", ["pool", "gym"])
def test_what_was_entered_is_left_when_the_next_fails(failing: str) -> None:
    log: list[str] = []
    gym = HoldingGym(Part("gym", log, failing == "gym"), Part("store", log), Part("pool", log, failing == "pool"))
    with pytest.raises(OSError, match=failing):
        gym.__enter__()
    assert log == (["+store", "-store"] if failing == "pool" else ["+store", "+pool", "-pool", "-store"])


def test_everything_is_left_when_the_body_raises() -> None:
    log: list[str] = []
    with pytest.raises(KeyError), HoldingGym(Part("gym", log), Part("pool", log)):
        raise KeyError
    assert log == ["+pool", "+gym", "-gym", "-pool"]


def test_each_problem_goes_to_the_gym_of_its_family() -> None:
    log: list[str] = []
    one, two = Part("one", log), Part("two", log)
    with MixedGym({"a": one, "b": two, "c": one}) as gym:
        for family in "abc":
            gym.open(problem(family))
    assert log == ["+one", "+two", "one opens a", "two opens b", "one opens c", "-two", "-one"]


def test_a_shared_gym_is_entered_once_and_can_be_used_again() -> None:
    log: list[str] = []
    shared = Part("one", log)
    gym = MixedGym({"a": shared, "b": shared})
    for _ in range(2):
        with gym:
            pass
    assert log == ["+one", "-one"] * 2


def test_a_family_without_a_gym() -> None:
    with MixedGym({"a": Part("one", [])}) as gym, pytest.raises(DataError, match="family 'z'"):
        gym.open(problem("z"))
