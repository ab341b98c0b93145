"""Process groups of Megatron-core, over the ranks of a training.

`data_parallel * layout.model_parallel` ranks: neighbours share a tensor, then come data parallel copies, then the
stages of the pipeline. Experts are spread over the ranks of a stage.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from rufus_core.errors import ConfigError
from rufus_core.settings import LayoutSettings
from rufus_core.training.ranks import backend

_SEED = 0  # weights are loaded over what is drawn with it, and no GLM policy has dropout


def start_parallel(layout: LayoutSettings) -> torch.device:
    """Build the groups, once in the life of a process. Returns the device that this rank computes on.

    Raises:
        ConfigError: there is no GPU.
    """
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count() if dist.is_initialized() else 0)
    try:
        device = torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        raise ConfigError(
            "Megatron-core trains on GPUs, and none is here", where="execution.trainer", hint="set it to torch"
        ) from error
    if not dist.is_initialized():
        dist.init_process_group(backend(), store=HashStore(), rank=0, world_size=1)
    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=layout.tensor_parallel,
            pipeline_model_parallel_size=layout.pipeline_parallel,
            context_parallel_size=layout.context_parallel,
            expert_model_parallel_size=layout.expert_parallel,
            expert_tensor_parallel_size=1,
        )
    model_parallel_cuda_manual_seed(_SEED)
    return torch.device(device)


def speaks() -> bool:
    """Whether this rank tells the others what came of its share: the last stage has it, each tensor rank the same."""
    return bool(parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0)


def sum_over_model(values: Tensor) -> Tensor:
    """The sum over the ranks that hold one copy of the policy."""
    dist.all_reduce(values, group=parallel_state.get_model_parallel_group())
    return values
