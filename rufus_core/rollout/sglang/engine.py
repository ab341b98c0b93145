"""SGLang behind the rollout engine's protocol: what every rank holds, and what one does for all."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rufus_core.errors import EngineError, RufusError
from rufus_core.ports.engine import GenerateRequest, GenerateResult, PolicyWeights
from rufus_core.rollout.checks import check_request
from rufus_core.rollout.sglang.client import SGLangServer
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.pool import ServerPool
from rufus_core.rollout.sglang.weights import BroadcastGroup, everywhere, from_disk
from rufus_core.settings import SGLangSettings

_FLUSH_SECONDS = 60


class Company(Protocol):
    """The ranks that use the same servers, as `rufus_core.training.ranks` has them."""

    @property
    def rank(self) -> int: ...

    def concat(self, items: list[Any]) -> list[Any]:
        """The items of all ranks; every rank calls it at once."""
        ...


class Alone:
    """One process."""

    rank = 0

    def concat(self, items: list[Any]) -> list[Any]:
        return items


@dataclass(slots=True)
class SGLangEngine:
    """Generates on all servers of a pool. Rank 0 alone changes what they are; the others wait until it has.

    `exchange` is a folder that the servers see, for weights on their way.
    """

    pool: ServerPool
    settings: SGLangSettings
    exchange: Path
    company: Company = field(default_factory=Alone)
    _released: bool = False
    _group: BroadcastGroup | None = None
    _group_of: list[SGLangServer] = field(default_factory=list)

    @property
    def context_length(self) -> int:
        return self.pool.context_length

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """As `Engine.generate`. Raises InfrastructureError where no server is left."""
        if self._released:
            raise EngineError("the engine has left its memory to the trainer", hint="call resume_memory first")
        facts = self.pool.facts
        for request in requests:
            check_request(request, self.context_length, facts.vocab_size, has_experts=facts.experts_per_token > 0)
        return self.pool.generate(requests)

    def abort(self, rid: str) -> None:
        """End the requests of this name, which another thread waits for; they give what they have."""
        self.pool.abort(rid)

    def update_weights(self, policy: PolicyWeights, version: str) -> None:
        """Every rank at once. Servers that die meanwhile get no more requests.

        Raises:
            EngineError: the weights are of another make than those that are served.
            InfrastructureError: no server is left, or one that lives doesn't take the weights.
        """
        if self.settings.weights == "broadcast":
            self._broadcast(policy, version)
        else:
            self._through_folder(policy, version)
        self.pool.forget_homes()

    def release_memory(self) -> None:
        """Of servers that share their GPUs with the trainer; others keep it (SLM-10)."""
        if self.settings.colocated and not self._released:
            self._lead(lambda: everywhere(self._living(), _release))
            self._released = True

    def resume_memory(self) -> None:
        if self._released:
            self._lead(lambda: everywhere(self._living(), _resume))
            self._released = False

    def close(self) -> None:
        """Leave the servers as they are."""
        if self._group is not None:
            self._group.close()

    def _through_folder(self, policy: PolicyWeights, version: str) -> None:
        with self._shared_folder() as folder:
            policy.save_policy(folder)
            self._lead(lambda: self._read(folder, version))

    def _read(self, folder: Path, version: str) -> None:
        """SGLang dies of weights of other shapes, for it goes back to the folder that it has just failed to read."""
        if replace(PolicyFacts.of(folder), dtype=self.pool.facts.dtype) != self.pool.facts:
            raise EngineError("these weights are of another make than those that are served", where=str(folder))
        from_disk(self._living(), folder, version)

    @contextmanager
    def _shared_folder(self) -> Iterator[Path]:
        """One folder for all ranks, gone afterwards."""
        own = []
        if self.company.rank == 0:
            self.exchange.mkdir(parents=True, exist_ok=True)
            own = [tempfile.mkdtemp(prefix="weights-", dir=self.exchange)]
        [folder] = self.company.concat(own)
        try:
            yield Path(folder)
        finally:
            if own:
                shutil.rmtree(folder)

    def _broadcast(self, policy: PolicyWeights, version: str) -> None:
        """The other ranks only take part in making whole tensors."""
        if self.company.rank == 0:
            self._lead(lambda: self._joined().send(policy.weights(), version))
            return
        for _ in policy.weights():
            pass
        self._lead(lambda: None)

    def _joined(self) -> BroadcastGroup:
        """The group of the servers that live: a new one where they aren't those of last time."""
        living = self._living()
        if self._group is None or self._group_of != living:
            if self._group is not None:
                self._group.close()
            backend = "nccl" if self.settings.device == "cuda" else "gloo"
            host, each = self.settings.broadcast_host, self.settings.tensor_parallel
            self._group, self._group_of = BroadcastGroup(living, host, each, backend), living
        return self._group

    def _living(self) -> list[SGLangServer]:
        """Raises InfrastructureError where no server answers."""
        for server in self.pool.living:
            if not server.answers():
                self.pool.lose(server, "it doesn't answer")
        return self.pool.living

    def _lead(self, action: Callable[[], None]) -> None:
        """Do it in rank 0, and raise in every rank what it raises there."""
        faults: list[RufusError] = []
        if self.company.rank == 0:
            try:
                action()
            except RufusError as error:
                faults.append(error)
        for fault in self.company.concat(faults):
            raise fault


def _release(server: SGLangServer) -> None:
    """A server that isn't idle would break: what it still runs nobody waits for."""
    server.abort_all()
    server.control(f"/flush_cache?timeout={_FLUSH_SECONDS}", {}, 2.0 * _FLUSH_SECONDS)
    server.control("/release_memory_occupation", {}, 600.0)


def _resume(server: SGLangServer) -> None:
    server.control("/resume_memory_occupation", {}, 600.0)


def pool_of(urls: Sequence[str], facts: PolicyFacts, context_length: int, settings: SGLangSettings) -> ServerPool:
    """Raises ConfigError where one of these isn't an engine, InfrastructureError where one can't be reached."""
    servers = [SGLangServer(url) for url in urls]
    for server in servers:
        server.info()
    return ServerPool(servers, facts, context_length, settings.request_seconds, settings.requests_at_once)
