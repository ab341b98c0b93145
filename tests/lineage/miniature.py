"""A recipe of two stages as artifacts of a few bytes."""

from __future__ import annotations

from pathlib import Path

from rufus_core.lineage import (
    Candidate,
    Decision,
    Draft,
    ExternalFile,
    Input,
    Provenance,
    Record,
    Store,
    external_file,
    fingerprint,
)
from rufus_core.types import Json

PROVENANCE = Provenance(commit="ab12cd34" * 5, dirty=True, packages={"torch": "2.13.0", "numpy": "2.4.0"})


def make(
    store: Store,
    name: str,
    kind: str,
    files: dict[str, str],
    inputs: dict[str, Record] | None = None,
    external: dict[str, ExternalFile] | None = None,
    config: dict[str, Json] | None = None,
    step: int | None = None,
    decision: Decision | None = None,
    seed: int = 7,
) -> Record:
    """Publish one artifact, the way a job does."""
    given: dict[str, Input] = {role: record.as_input() for role, record in (inputs or {}).items()}
    digests = {role: source.digest for role, source in given.items()}
    digests |= {role: file.sha256 for role, file in (external or {}).items()}
    attempt = store.attempt(name, fingerprint(kind, "1", {**(config or {}), "seed": seed}, digests))
    for path, text in files.items():
        place = attempt.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    draft = Draft(
        kind=kind,
        version="1",
        stage=name.split("/")[1] if "/" in name else None,
        step=step,
        config=config or {},
        inputs=given,
        external=external or {},
        seed=seed,
        decision=decision,
        provenance=PROVENANCE,
    )
    return store.publish(attempt, draft)


def make_stage(store: Store, stage: str, parent: Record, data: Path, seed: int = 7) -> Record:
    """Problems (screened by the parent), a training run that keeps steps 4, 8 and 12, and its checkpoint of step 8."""
    sources: dict[str, Json] = {"sums": {"generator": "arithmetic", "count": 500, "options": {"stage": stage}}}
    problems = make(
        store,
        f"data/{stage}",
        "problems",
        {"train.jsonl": f"{stage} problems"},
        inputs={"policy": parent},
        external={"chats": external_file(str(data), rows=2)},
        config={"problems": {"sources": sources}},
        seed=seed,
    )
    training = make(
        store,
        f"stages/{stage}/train",
        "training",
        {f"checkpoints/step-{step}/model.bin": f"{stage} {step} {seed}" for step in (4, 8, 12)},
        inputs={"policy": parent, "problems": problems},
        config={"problems": {"sources": sources}, "optimizer": {"lr_peak": 1e-3, "name": "adamw"}},
        seed=seed,
    )
    decision = Decision(
        rule="peak",
        metric="validation/pass@1",
        chosen_step=8,
        candidates=tuple(Candidate(step=step, value=value) for step, value in ((4, 0.25), (8, 0.5), (12, 0.375))),
        reason="the highest of three",
    )
    return make(
        store,
        f"stages/{stage}/checkpoint",
        "checkpoint",
        {"model.bin": f"{stage} 8 {seed}", "config.json": "{}"},
        inputs={"training": training},
        step=8,
        decision=decision,
        seed=seed,
    )


def make_recipe(store: Store, data: Path) -> Record:
    """Base, SFT and Coding RL; the checkpoint of Coding RL."""
    data.write_text('{"a": 1}\n{"a": 2}\n')
    base = make(store, "base", "base", {"model.bin": "base weights", "tokenizer.json": "{}"})
    return make_stage(store, "coding_rl", make_stage(store, "sft", base, data), data)
