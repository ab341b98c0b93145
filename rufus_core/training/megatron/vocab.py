"""Log-probs from logits whose vocabulary is cut over tensor parallel ranks; each ends with the whole result.

Shapes: N positions, v columns of the vocabulary on this rank.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.tensor_parallel import reduce_from_tensor_model_parallel_region as summed
from torch import Tensor


def vocab_logprobs(logits_Nv: Tensor, target_N: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Log-prob [N] of each target and entropy [N] of each distribution, as fp32.

    Columns from `vocab_size` on fill the last rank up and count as nothing. A gradient reaches the rank's own columns:
    what follows is computed alike on every tensor parallel rank.
    """
    group = parallel_state.get_tensor_model_parallel_group()
    width = logits_Nv.shape[-1]
    first = parallel_state.get_tensor_model_parallel_rank() * width
    here_v = torch.arange(first, first + width, device=logits_Nv.device)
    logits_Nv = logits_Nv.float().masked_fill(here_v >= vocab_size, torch.finfo(torch.float32).min)
    largest_N = logits_Nv.detach().amax(-1)
    dist.all_reduce(largest_N, dist.ReduceOp.MAX, group=group)
    shifted_Nv = logits_Nv - largest_N[:, None]
    exp_Nv = shifted_Nv.exp()
    total_N = summed(exp_Nv.sum(-1))
    entropy_N = total_N.log() - summed((exp_Nv * shifted_Nv.clamp(min=-1e4)).sum(-1)) / total_N
    column_N = (target_N - first).clamp(0, width - 1)
    mine_N = (target_N >= first) & (target_N < first + width)
    picked_N = shifted_Nv.gather(-1, column_N[:, None])[:, 0]
    return summed(torch.where(mine_N, picked_N, 0.0)) - total_N.log(), entropy_N
