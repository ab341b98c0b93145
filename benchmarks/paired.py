"""Two sides of a comparison, measured in turns so that what else the machine does meets both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

REPETITIONS = 5


@dataclass(frozen=True, slots=True)
class Pairs:
    ours: list[float]
    peer: list[float]

    def ratio(self, higher_is_better: bool) -> float:
        """How many times better the median of ours is."""
        ours, peer = median(self.ours), median(self.peer)
        return round(ours / peer if higher_is_better else peer / ours, 2)

    def tell(self, name: str, higher_is_better: bool, digits: int, unit: str, peer_name: str, **facts: object) -> None:
        """Print the medians, and how many times better ours is, as the last line: JSON."""
        ours, peer = median(self.ours), median(self.peer)
        result = {
            "name": name,
            "ours": round(ours, digits),
            "peer": round(peer, digits),
            "ratio": self.ratio(higher_is_better),
            "unit": unit,
            "peer_name": peer_name,
            **facts,
            "repetitions": len(self.ours),
        }
        print(json.dumps(result))


def in_turns(ours: Callable[[], float], peer: Callable[[], float], unit: str, repetitions: int = REPETITIONS) -> Pairs:
    pairs = Pairs([], [])
    for repetition in range(1, repetitions + 1):
        pairs.ours.append(ours())
        pairs.peer.append(peer())
        print(f"{repetition}/{repetitions}  ours {pairs.ours[-1]:,.2f}  peer {pairs.peer[-1]:,.2f} {unit}", flush=True)
    return pairs
