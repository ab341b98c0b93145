"""What a recipe may say and this release doesn't do, refused before anything runs."""

from __future__ import annotations

from rufus_core.errors import ConfigError
from rufus_core.recipe.filters import refuse_filters
from rufus_core.recipe.placement import refuse_placement
from rufus_core.settings import Recipe, SFTStage


def refuse_unsupported(recipe: Recipe) -> None:
    """Raises ConfigError for what would otherwise be left out in silence."""
    refuse_placement(recipe)
    if recipe.decontamination is not None:
        raise ConfigError(
            "this release doesn't screen data against benchmarks",
            where="decontamination",
            hint="--set decontamination=null",
        )
    for name, stage in recipe.stages.items():
        field = "data" if isinstance(stage, SFTStage) else "problems"
        data = stage.data if isinstance(stage, SFTStage) else stage.problems
        refuse_filters(data.filters, f"stages.{name}.{field}.filters", stage)
        if stage.precision.router_replay and (isinstance(stage, SFTStage) or _is_dense(recipe)):
            raise ConfigError(
                "there are no rollouts whose routing could be replayed"
                if isinstance(stage, SFTStage)
                else "the base policy has no router to replay: all of its layers are dense",
                where=f"stages.{name}.precision.router_replay",
                hint=f"--set stages.{name}.precision.router_replay=false",
            )
        if stage.run.select.metric is not None:
            raise ConfigError(
                f"this release selects by pass@1 on validation problems, and not by {stage.run.select.metric}",
                where=f"stages.{name}.run.select.metric",
                hint=f"--set stages.{name}.run.select.metric=null",
            )
        if isinstance(stage, SFTStage) and stage.batch.long_sample_tokens is not None:
            raise ConfigError(
                "this release makes no smaller batches for long samples",
                where=f"stages.{name}.batch.long_sample_tokens",
                hint=f"--set stages.{name}.batch.long_sample_tokens=null",
            )


def _is_dense(recipe: Recipe) -> bool:
    """Whether it is known here that no layer has experts; of a policy that is given as files, its job tells."""
    shape = recipe.base.shape
    return shape is not None and shape.first_dense_layers >= shape.num_layers
