"""The reward model of RLHF, trained here on preference pairs as an artifact of its own."""

from __future__ import annotations

from rufus_core.data.generators.chat import preference_pairs
from rufus_core.data.holdout import split_of
from rufus_core.data.preference_sets import Candidate
from rufus_core.jobs.job import Job, Outcome
from rufus_core.jobs.resume import training_state
from rufus_core.rewards.preference import is_valid
from rufus_core.rewards.preference_analysis import analyse
from rufus_core.rollout.policy import load_policy
from rufus_core.settings import RewardModelSettings
from rufus_core.training.reward_model import RewardModel, train_reward_model


def build_reward_model(job: Job) -> Outcome:
    """Train, or go on from the state that a dead job left.

    Pairs of held-out prompts never enter: the split of a prompt's problem decides.

    Raises:
        Preempted: SIGTERM arrived during training; the step in progress was ended and the state saved.
    """
    job.use_threads()
    settings = RewardModelSettings.model_validate(job.document.config["settings"])
    split_seed = int(job.document.config["split_seed"])
    made = list(preference_pairs(job.document.seed, settings.num_pairs))
    pairs = [pair for pair in made if is_valid(pair)]  # RM-D1
    train = [pair for pair in pairs if split_of(pair.problem_id, split_seed) == "train"]
    heldout = [pair for pair in pairs if split_of(pair.problem_id, split_seed) == "heldout"]
    model = RewardModel(load_policy(job.input("policy")), job.document.seed)
    with job.report(settings.steps) as report, job.stoppable() as stop:
        state = training_state(job, settings.steps, stop)
        metrics = train_reward_model(model, train, heldout, settings, job.document.seed, report, state)
    metrics |= {"train_pairs": float(len(train)), "invalid_pairs": float(len(made) - len(pairs))}
    model.save(job.output)
    candidates = [Candidate(prompt=pair.prompt, chosen=pair.chosen, rejected=pair.rejected) for pair in heldout]
    analysis = analyse(
        "heldout",
        candidates,
        model,
        lambda text: len(model.chat.tokenizer(text, add_special_tokens=False)["input_ids"]),
    )
    (job.output / "preference_analysis.json").write_text(analysis.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return Outcome(metrics, step=settings.steps)
