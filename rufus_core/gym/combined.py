"""Gyms made of gyms."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from rufus_core.errors import DataError
from rufus_core.ports.gym import Environment, Gym
from rufus_core.types import Problem


class HoldingGym:
    """A gym that owns what it uses: `held` are entered before it and closed after it."""

    def __init__(self, gym: Gym, *held: AbstractContextManager[object]) -> None:
        self._gym, self._held, self._stack = gym, held, ExitStack()

    def open(self, problem: Problem) -> Environment:
        return self._gym.open(problem)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for resource in (*self._held, self._gym):
                stack.enter_context(resource)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()


class MixedGym:
    """Sends each problem to the gym of its family; used where one set mixes several stages' problems."""

    def __init__(self, by_family: Mapping[str, Gym]) -> None:
        self._by_family, self._stack = by_family, ExitStack()

    def open(self, problem: Problem) -> Environment:
        """Raises DataError for a family that no gym is for."""
        if problem.family not in self._by_family:
            raise DataError(f"no environment for problems of family {problem.family!r}", where=f"problem {problem.id}")
        return self._by_family[problem.family].open(problem)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for gym in dict.fromkeys(self._by_family.values()):
                stack.enter_context(gym)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
