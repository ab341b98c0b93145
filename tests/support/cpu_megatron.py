"""What lets Megatron-core 0.16.1 run without CUDA: for tests, in processes of their own, never in the product.

Megatron asks CUDA for devices, streams and generators, and names `cuda` where it makes tensors. Here the one device is
the CPU, a stream is nothing, and a generator is torch's. A few of Megatron's own functions assume what a CPU lacks.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
import torch._dynamo
from torch.overrides import TorchFunctionMode

_CPU = torch.device("cpu")


class _Event:
    """A point in a stream, which is always past."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def record(self, *_: Any) -> None: ...

    def wait(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class _Stream:
    """Work is done when it is asked for."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def wait_stream(self, *_: Any) -> None: ...

    def wait_event(self, *_: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, *_: Any) -> _Event:
        return _Event()


class _OnCpu(TorchFunctionMode):
    """Tensors that are asked for on `cuda` come on the CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        if func is torch.Tensor.to:
            args = tuple(_on_cpu(arg) for arg in args)
        return func(*args, **kwargs)


def _on_cpu(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("cuda"):
        return "cpu"
    return _CPU if isinstance(value, torch.device) and value.type == "cuda" else value


def install() -> None:
    """From here on this process computes on the CPU whatever Megatron-core asks of CUDA. Nothing is undone."""
    torch._dynamo.config.disable = True  # Megatron compiles small functions, which takes longer than any test here
    _stand_in_for_cuda()
    _mend_megatron()
    _OnCpu().__enter__()


def _stand_in_for_cuda() -> None:
    cuda: Any = torch.cuda
    cuda.current_device = lambda: _CPU
    cuda.synchronize = cuda.empty_cache = lambda *_, **__: None
    cuda.get_rng_state = cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    cuda.set_rng_state = cuda.random.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.manual_seed = torch.manual_seed
    cuda.memory_allocated = cuda.max_memory_allocated = cuda.memory_reserved = lambda *_, **__: 0
    cuda.Stream, cuda.Event = _Stream, _Event
    cuda.current_stream = cuda.default_stream = lambda *_, **__: _Stream()
    cuda.stream = lambda _: contextlib.nullcontext()
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign, assignment]
    torch.nn.Module.cuda = lambda module, *_, **__: module  # type: ignore[method-assign, assignment]
    plain_type = torch.Tensor.type

    def cuda_type(tensor: Any, dtype: Any = None, *rest: Any, **options: Any) -> Any:
        """Megatron tells gradients apart by names such as torch.cuda.FloatTensor."""
        if dtype is None:
            name = str(plain_type(tensor))
            return name if ".cuda." in name else name.replace("torch.", "torch.cuda.", 1)
        return plain_type(
            tensor, dtype.replace("torch.cuda.", "torch.") if isinstance(dtype, str) else dtype, *rest, **options
        )

    torch.Tensor.type = cuda_type  # type: ignore[method-assign, assignment]


def _mend_megatron() -> None:
    import megatron.core.tensor_parallel.random as generators
    import megatron.core.transformer.moe.moe_utils as moe
    import megatron.core.transformer.moe.token_dispatcher as dispatcher
    import megatron.core.transformer.torch_norm as norm

    generators._get_cuda_rng_state = torch.cuda.get_rng_state
    generators._set_cuda_rng_state = torch.cuda.set_rng_state
    if not hasattr(moe, "te_general_gemm"):
        moe.te_general_gemm = None  # named without TransformerEngine where the router computes in fp32

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if torch.is_tensor(tensor) and as_numpy else tensor

    dispatcher.maybe_move_tensor_to_cpu = moe.maybe_move_tensor_to_cpu = on_host  # theirs leaves tensors of the CPU
    recompute = generators.CheckpointFunction.backward

    def recompute_on_cpu(ctx: Any, *gradients: Any) -> Any:
        """Autograd calls it outside of any mode, and it passes layers forward once more."""
        with _OnCpu():
            return recompute(ctx, *gradients)

    generators.CheckpointFunction.backward = staticmethod(recompute_on_cpu)
    new_norm = norm.WrappedTorchNorm.__new__

    def sequence_parallel_norm(cls: Any, config: Any, hidden_size: int, *rest: Any, **options: Any) -> Any:
        """Theirs refuses sequence parallel; with this mark its gradients are summed over tensor parallel ranks."""
        cut, config.sequence_parallel = config.sequence_parallel, False
        try:
            module = new_norm(cls, config, hidden_size, *rest, **options)
        finally:
            config.sequence_parallel = cut
        for weight in module.parameters():
            weight.sequence_parallel = cut
        return module

    norm.WrappedTorchNorm.__new__ = sequence_parallel_norm
