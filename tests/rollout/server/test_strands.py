"""An agent of `strands-agents` over unchanged `strands-sglang`: tokens in, tokens out, over several turns."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.types.exceptions import ContextWindowOverflowException
from strands_sglang import SGLangClient, SGLangModel, get_tool_parser

from rufus_core.ports.engine import GenerateRequest, SamplingParams
from rufus_core.rollout.engine import EmbeddedEngine
from rufus_core.rollout.policy import Policy
from tests.rollout.server.process import ServerProcess
from tests.rollout.server.small import ANSWER, CONTEXT, LOOK, QUESTION, SEEN, user

GREEDY = {"temperature": 0.0, "max_new_tokens": 100}


@tool
def look(place: str) -> str:
    """Look at a place."""
    return SEEN


def test_an_agent_plays_several_turns_and_keeps_its_tokens(server: ServerProcess, policy: Policy) -> None:
    async def play() -> tuple[str, SGLangModel]:
        async with SGLangClient(server.url, max_retries=0) as client:
            model = SGLangModel(
                client=client,
                tokenizer=policy.chat.tokenizer,
                tool_parser=get_tool_parser("glm"),
                sampling_params=GREEDY,
                return_logprob=True,
                return_routed_experts=True,
            )
            agent = Agent(model=model, tools=[look], system_prompt=None, callback_handler=None)
            answer = await agent.invoke_async(QUESTION)
            await agent.invoke_async("hello")
            return str(answer), model

    answer, model = asyncio.run(play())
    rollout = model.rollout
    assert ANSWER in answer
    assert rollout.token_ids[: rollout.initial_prompt_length] == policy.chat.prompt_ids([user(QUESTION)], [LOOK])
    turns = [length for sampled, length in rollout.segment_info if sampled]
    assert len(turns) == 3

    # The engine in this process, given each turn's prompt as the agent had it, says the same.
    engine, start = EmbeddedEngine(policy.model), 0
    routed = rollout.decode_routed_experts(num_layers=2, top_k=2)
    assert len(routed) == len(rollout) - 1
    for sampled, length in rollout.segment_info:
        if sampled:
            params = SamplingParams(max_new_tokens=100, temperature=0.0, stop_token_ids=policy.chat.stop_token_ids)
            request = GenerateRequest("r", rollout.token_ids[:start], params, True, 0)
            [expected] = engine.generate([request])
            assert rollout.token_ids[start : start + length] == expected.output_ids
            assert rollout.logprobs[start : start + length] == pytest.approx(expected.output_logprobs, abs=1e-5)
            assert expected.input_logprobs is not None
            assert rollout.logprobs[1:start] == pytest.approx(expected.input_logprobs[1:], abs=1e-5)
            np.testing.assert_array_equal(routed[: start + length - 1], expected.routed_experts)
        start += length
    assert rollout.logprobs[0] is None
    server.assert_quiet()


def test_a_prompt_that_is_too_long_is_no_reason_to_try_again(server: ServerProcess, policy: Policy) -> None:
    async def play() -> None:
        async with SGLangClient(server.url) as client:  # it would try sixty times
            model = SGLangModel(client=client, tokenizer=policy.chat.tokenizer, sampling_params=GREEDY)
            agent = Agent(model=model, callback_handler=None, conversation_manager=NullConversationManager())
            await agent.invoke_async("x" * CONTEXT)

    with pytest.raises(ContextWindowOverflowException, match="exceeds the context length"):
        asyncio.run(asyncio.wait_for(play(), 60))
