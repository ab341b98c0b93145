"""A job that makes a base policy and trains it, whatever starts it."""

from __future__ import annotations

from pathlib import Path

from rufus_core.jobs.document import JobDocument
from tests.jobs.miniature import small_recipe

FINGERPRINT = "a" * 64


def save_base_document(folder: Path, steps: int = 2, threads: int = 1) -> Path:
    """Leave the document in its folder, in which the store will lie too; where it lies."""
    recipe = small_recipe()
    assert recipe.base.shape is not None
    assert recipe.base.pretrain is not None
    pretrain = recipe.base.pretrain.model_dump(mode="json") | {"steps": steps}
    document = JobDocument(
        name="base",
        kind="base",
        title="base policy",
        version="1",
        fingerprint=FINGERPRINT,
        config={"shape": recipe.base.shape.model_dump(mode="json"), "pretrain": pretrain},
        seed=7,
        store=folder / "store",
        placement={"threads": threads},
        progress=folder / "progress.jsonl",
    )
    document.save(folder / "document.json")
    return folder / "document.json"
