"""What benchmarks measure with still fits the miniature, whichever generators there are."""

from benchmarks.generate import LONGEST, NUM_PROMPTS, make_policy_and_prompts


def test_each_prompt_of_the_generation_benchmark_leaves_room_for_its_response():
    policy, prompts = make_policy_and_prompts()
    assert len(prompts) == NUM_PROMPTS
    assert max(map(len, prompts)) + LONGEST <= policy.model.config.max_position_embeddings
