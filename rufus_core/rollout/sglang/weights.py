"""New weights for running servers: read from a folder that all see, or sent through a process group."""

from __future__ import annotations

import itertools
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import Backend, GroupName, PrefixStore, ProcessGroup, _new_process_group_helper

from rufus_core.errors import InfrastructureError
from rufus_core.rollout.sglang.client import SGLangServer
from rufus_core.rollout.sglang.names import published

_UPDATE_SECONDS = 1800.0
_BUCKET_BYTES = 512 << 20  # sent in one request


def from_disk(servers: Sequence[SGLangServer], folder: Path, version: str) -> None:
    """All servers read the folder at once. Raises InfrastructureError where one doesn't serve the new version."""
    body = {"model_path": str(folder), "weight_version": version}
    everywhere(servers, lambda server: server.control("/update_weights_from_disk", body, _UPDATE_SECONDS))
    require_version(servers, version)


def require_version(servers: Sequence[SGLangServer], version: str) -> None:
    for server in servers:
        if (found := server.weight_version()) != version:
            raise InfrastructureError(f"it serves version {found} of the weights, not {version}", where=server.url)


def everywhere(servers: Sequence[SGLangServer], act: Callable[[SGLangServer], object]) -> None:
    """Side by side. Raises what the first server in the order of `servers` raises, after all have ended."""
    with ThreadPoolExecutor(len(servers)) as pool:
        for future in [pool.submit(act, server) for server in servers]:
            future.result()


class BroadcastGroup:
    """A process group of this process (rank 0) and every server's GPUs, over which weights are sent.

    Args:
        host: this machine, as the servers reach it.
        ranks_each: GPUs of one server.
        backend: nccl, or gloo on CPUs.

    Raises:
        InfrastructureError: the group didn't come together.
    """

    def __init__(self, servers: Sequence[SGLangServer], host: str, ranks_each: int, backend: str) -> None:
        self._servers, self._name = servers, f"rufus-{secrets.token_hex(4)}"
        self._device = torch.device("cuda" if backend == "nccl" else "cpu")
        size = 1 + ranks_each * len(servers)
        port = _free_port(host)
        with ThreadPoolExecutor(len(servers)) as pool:
            joining = [
                pool.submit(
                    server.control,
                    "/init_weights_update_group",
                    {
                        "master_address": host,
                        "master_port": port,
                        "rank_offset": 1 + ranks_each * index,
                        "world_size": size,
                        "group_name": self._name,
                        "backend": backend,
                    },
                    _UPDATE_SECONDS,
                )
                for index, server in enumerate(servers)
            ]
            self._group = _join(host, port, size, self._name, backend)
            for future in joining:
                future.result()

    def send(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Send all weights, in bunches of bounded size. Raises InfrastructureError where a server doesn't take them."""
        everywhere(self._servers, lambda server: server.control("/begin_weight_update", {}))
        tensors = itertools.chain.from_iterable(published(name, tensor) for name, tensor in weights)
        bunches = _bunches(tensors)
        bunch = next(bunches)
        while bunch:
            following = next(bunches, [])
            self._send(bunch, None if following else version)
            bunch = following
        everywhere(self._servers, lambda server: server.control("/end_weight_update", {}, _UPDATE_SECONDS))
        require_version(self._servers, version)

    def _send(self, bunch: list[tuple[str, Tensor]], version: str | None) -> None:
        """The last bunch says the version, and empties the caches."""
        body = {
            "names": [name for name, _ in bunch],
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for _, tensor in bunch],
            "shapes": [list(tensor.shape) for _, tensor in bunch],
            "group_name": self._name,
            "flush_cache": version is not None,
            **({"weight_version": version} if version is not None else {}),
        }
        with ThreadPoolExecutor(len(self._servers)) as pool:
            told = [
                pool.submit(server.control, "/update_weights_from_distributed", body, _UPDATE_SECONDS)
                for server in self._servers
            ]
            options = dist.BroadcastOptions()
            options.rootRank = 0
            try:
                for _, tensor in bunch:
                    whole = tensor.detach().to(self._device).contiguous()
                    self._group.broadcast([whole], options).wait()
            except RuntimeError as error:
                raise InfrastructureError(f"the broadcast of weights broke: {error}") from error
            finally:
                for future in told:
                    future.result()

    def close(self) -> None:
        for server in self._servers:
            if server.answers():
                server.control("/destroy_weights_update_group", {"group_name": self._name})


def _bunches(weights: Iterator[tuple[str, Tensor]]) -> Iterator[list[tuple[str, Tensor]]]:
    bunch: list[tuple[str, Tensor]] = []
    size = 0
    for name, tensor in weights:
        if bunch and size + tensor.nbytes > _BUCKET_BYTES:
            yield bunch
            bunch, size = [], 0
        bunch.append((name, tensor))
        size += tensor.nbytes
    yield bunch


def _join(host: str, port: int, size: int, name: str, backend: str) -> ProcessGroup:
    """Rank 0 of a group beside this process's own, in the way in which SGLang's side joins it."""
    patience = timedelta(seconds=_UPDATE_SECONDS)
    try:
        store = TCPStore(host, port, size, is_master=True, timeout=patience, wait_for_workers=False)
        group, _ = _new_process_group_helper(
            size, 0, [], Backend(backend), PrefixStore(name, store), group_name=GroupName(name), timeout=patience
        )
    except (RuntimeError, ValueError) as error:
        raise InfrastructureError(f"the group for new weights didn't come together: {error}") from error
    joined: ProcessGroup = group
    return joined


def _free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])
