"""Places on a Ray cluster that belong together: a placement group, and actors that are put there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rufus_core.errors import InfrastructureError

PLACEMENT_SECONDS = 300.0  # until every place is there


@contextmanager
def placed_group(bundles: Sequence[Mapping[str, float]]) -> Iterator[Any]:
    """A place for each bundle, all or none. None lies on two nodes, and as many as fit lie on one.

    They are given back on leaving. Raises InfrastructureError where the cluster has no room.
    """
    import ray

    group = ray.util.placement_group([{name: n for name, n in each.items() if n} for each in bundles], "PACK")
    try:
        if not group.wait(PLACEMENT_SECONDS):
            names = {name for each in bundles for name in each}
            free = {name: ray.available_resources().get(name, 0.0) for name in sorted(names)}
            raise InfrastructureError(
                f"the Ray cluster has no room for {[dict(each) for each in bundles]}; free: {free}",
                hint="wait, or change execution.data_parallel, execution.layout and execution.ray_resources",
            )
        yield group
    finally:
        ray.util.remove_placement_group(group)


def place_in(group: Any, bundle: int) -> Any:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, bundle, placement_group_capture_child_tasks=False)


def actor_class(kind: type, resources: Mapping[str, float], **options: Any) -> Any:
    """`kind` as an actor that takes these resources ("CPU", "GPU", others); the options are Ray's."""
    import ray

    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    taken = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": others}
    return ray.remote(kind).options(**taken, **options)


@contextmanager
def killed(actors: Sequence[Any]) -> Iterator[None]:
    """They are killed on leaving, whatever they do."""
    import ray

    try:
        yield
    finally:
        for actor in actors:
            ray.kill(actor)


@contextmanager
def loss_told(tell: Callable[[str], Exception]) -> Iterator[None]:
    """Turns what Ray says of a process or a node that is gone into what `tell` makes of its first line.

    What the process itself raised passes as it is, and so does Ray's word that an answer isn't there in time.
    """
    import ray

    try:
        yield
    except (ray.exceptions.RayTaskError, ray.exceptions.GetTimeoutError):
        raise
    except ray.exceptions.RayError as error:
        raise tell(first_line(error)) from error


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
