"""`rufus chat`: talk to a checkpoint in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from rufus_core.cli.parts import Home, Shared
from rufus_core.cli.serve import Checkpoint, Context, Threads


def chat(
    checkpoint: Checkpoint,
    system: Annotated[str, typer.Option(help="A system prompt.")] = "",
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most likely token.")] = 0.7,
    top_p: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Sample from the most likely tokens that have this mass.")
    ] = 1.0,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of an answer; by default what the context holds.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="The same answers again.")] = None,
    context: Context = None,
    threads: Threads = None,
    home: Home = None,
    shared: Shared = None,
) -> None:
    """Talk to a checkpoint; /help shows the commands. Of piped input, each line is a message."""
    import asyncio

    import torch

    from rufus_core.cli.checkpoint import find_checkpoint
    from rufus_core.cli.output import console
    from rufus_core.cli.talk import talk
    from rufus_core.rollout.policy import load_policy
    from rufus_core.rollout.server.body import validated
    from rufus_core.rollout.server.conversation import ChatSettings, Conversation
    from rufus_core.rollout.server.run import make_service
    from rufus_core.rollout.server.served import Served

    chosen = {"temperature": temperature, "top_p": top_p, "max_tokens": max_tokens, "seed": seed}
    settings = validated(ChatSettings, chosen)
    name, folder = find_checkpoint(checkpoint, home, shared)
    if threads:
        torch.set_num_threads(threads)
    policy = load_policy(folder)
    with asyncio.Runner() as runner:
        served = Served(make_service(policy, max_batch=1, most_in_flight=1, context=context), policy, name, str(folder))
        runner.run(served.service.start())
        try:
            fine = talk(runner, Conversation(served, settings, system), console())
        finally:
            runner.run(served.service.stop())
    raise typer.Exit(0 if fine else 1)
