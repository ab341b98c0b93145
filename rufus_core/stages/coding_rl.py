"""Coding RL: small programs, graded by running the tests in a sandbox (spec section 5)."""

from rufus_core.data.code_records import OUTPUT_BYTES
from rufus_core.gym.combined import HoldingGym
from rufus_core.gym.single_turn import SingleTurnGym
from rufus_core.ports.gym import Gym
from rufus_core.rewards.code import MAX_TESTS, TIMEOUT_SECONDS, tests_pass
from rufus_core.stages.stage import GymContext, Stage
from rufus_core.types import Episode, Verdict


def open_gym(context: GymContext) -> Gym:
    reward = context.reward
    memory_bytes = (reward.memory_mib or 1024) << 20
    pool = context.code_sandbox(context.workers, memory_bytes=memory_bytes, output_bytes=OUTPUT_BYTES)

    def verify(episode: Episode) -> Verdict:
        return tests_pass(
            episode.problem,
            episode.final_text,
            pool,
            max_tests=reward.max_tests_per_problem or MAX_TESTS,
            seconds_per_test=reward.seconds_per_test or TIMEOUT_SECONDS,
        )

    return HoldingGym(SingleTurnGym(verify), pool)


STAGE = Stage("coding_rl", families=("python_function", "python_program"), open_gym=open_gym)
