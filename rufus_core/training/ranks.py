"""Ranks of a data-parallel training: processes that take the same steps, each computing its share of every one.

All ranks hold the same weights and draw the same problems. Rollouts and log-probs are computed by share and exchanged
before anything is decided by them, so that all ranks see a whole step as one process would; gradients are summed, so
that all take the same optimizer step. Sums in another order differ in their last bits: a training is the same bit for
bit as one with as many ranks, and within float tolerance as one with another number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import TCPStore

from rufus_core.errors import RankLost
from rufus_core.ports.ranks import RankPlace

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

_OF_EXCHANGES = re.compile(r"gloo|nccl|connection (closed|reset)|socket|process ?group", re.IGNORECASE)
PATIENCE = timedelta(minutes=30)  # ranks reach an exchange at different times: one may wait for slow tools


def backend() -> str:
    """Gloo carries what lies in the host's memory, such as what ranks tell each other; NCCL what lies in a GPU's."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"


class Ranks:
    """A single process, which computes everything."""

    rank = 0
    size = 1

    def share(self, items: Sequence[ItemT]) -> Sequence[ItemT]:
        """The items that this rank is to work on; together the ranks have each of them once."""
        return items

    def spread(self, items: Sequence[ItemT], work: Callable[[Sequence[ItemT]], list[ResultT]]) -> list[ResultT]:
        """Work on this rank's share, which may be empty. Returns the results of all ranks, in the order of `items`."""
        return work(items)

    def concat(self, items: list[ItemT]) -> list[ItemT]:
        """The items of all ranks, in the order of the ranks."""
        return items

    def sum_gradients(self, model: nn.Module) -> None:
        """Give every rank the sum of the ranks' gradients; a weight that no rank has one of keeps none."""


ALONE = Ranks()


class TorchRanks(Ranks):
    """Ranks that exchange by torch.distributed. A process can be a rank once in its life.

    Every rank must make the same calls in the same order. Each raises RankLost where a rank died or keeps the others
    waiting longer than `patience`.
    """

    def __init__(self, place: RankPlace, patience: timedelta = PATIENCE) -> None:
        self.rank, self.size = place.rank, place.size
        with _lost_ranks_told():
            store = TCPStore(
                place.host,
                place.port,
                is_master=place.rank == 0,
                timeout=patience,
                wait_for_workers=False,
                master_listen_fd=place.listener.detach() if place.listener else None,
            )
            dist.init_process_group(backend(), store=store, rank=place.rank, world_size=place.size, timeout=patience)

    def share(self, items: Sequence[ItemT]) -> Sequence[ItemT]:
        return items[self.rank :: self.size]

    def spread(self, items: Sequence[ItemT], work: Callable[[Sequence[ItemT]], list[ResultT]]) -> list[ResultT]:
        of_ranks = self._gather(work(self.share(items)))
        return [of_ranks[k % self.size][k // self.size] for k in range(len(items))]

    def concat(self, items: list[ItemT]) -> list[ItemT]:
        return [item for each in self._gather(items) for item in each]

    def sum_gradients(self, model: nn.Module) -> None:
        weights = [weight for weight in model.parameters() if weight.requires_grad]
        has_gradient = torch.tensor([weight.grad is not None for weight in weights], dtype=torch.int32)
        with _lost_ranks_told():
            dist.all_reduce(has_gradient, dist.ReduceOp.MAX)
            sums = []
            for weight, wanted in zip(weights, has_gradient.tolist(), strict=True):
                if wanted:
                    weight.grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                    sums.append(dist.all_reduce(weight.grad, async_op=True))
            for each in sums:
                each.wait()

    def _gather(self, items: list[ItemT]) -> list[list[ItemT]]:
        gathered: list[list[ItemT]] = [[] for _ in range(self.size)]
        with _lost_ranks_told():
            dist.all_gather_object(gathered, items)
        return gathered


@contextmanager
def lost_ranks_recognised() -> Iterator[None]:
    """For libraries that exchange by themselves: they tell a lost rank by the words of gloo or NCCL.

    Raises RankLost for those, and lets every other error pass.
    """
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not _OF_EXCHANGES.search(str(error)):
            raise
        raise _lost() from error


@contextmanager
def _lost_ranks_told() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # so gloo and its store tell a closed connection and a timeout
        raise _lost() from error


def _lost() -> RankLost:
    hint = "the next run goes on from the last state; the job's log says more"
    return RankLost("a rank of this training died or doesn't answer", hint=hint)
