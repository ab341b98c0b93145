"""Opens the engine that a recipe's `execution.engine` names, for a training or for a policy that is only played."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self

from rufus_core.ports.engine import Engine, RolloutEngine
from rufus_core.ports.ranks import EngineServer
from rufus_core.rollout.sglang.command import server_command
from rufus_core.rollout.sglang.engine import Alone, Company, SGLangEngine, pool_of
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.process import require_sglang, running_servers
from rufus_core.settings import ExecutionSettings, PrecisionSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from rufus_core.data.chat import ChatFormat
    from rufus_core.rollout.policy import Policy


@dataclass(frozen=True, slots=True)
class PlayedPolicy:
    """A policy that answers."""

    engine: Engine
    chat: ChatFormat
    context_length: int

    @classmethod
    def embedded(cls, policy: Policy) -> Self:
        from rufus_core.rollout.engine import EmbeddedEngine

        return cls(EmbeddedEngine(policy.model), policy.chat, policy.context_length)


@contextmanager
def open_policy(
    execution: ExecutionSettings, folder: Path, tell: Callable[[str], None] = lambda _: None
) -> Iterator[PlayedPolicy]:
    """The policy in `folder` by `execution.engine`, in the precision of its weights.

    Only the embedded engine loads the weights into this process.

    Raises:
        LineageError: the folder holds no policy.
        TemplateError: its tokenizer has no chat template.
        ConfigError, InfrastructureError: as `open_engine`.
    """
    from rufus_core.rollout.policy import load_chat, load_policy

    if execution.engine == "embedded":
        yield PlayedPolicy.embedded(load_policy(folder))
        return
    chat = load_chat(folder)
    with open_engine(execution, folder, lambda: load_policy(folder).model, tell=tell) as engine:
        yield PlayedPolicy(engine, chat, engine.context_length)


def placed_engines(
    execution: ExecutionSettings, folder: Path, context_tokens: int, precision: PrecisionSettings
) -> list[EngineServer]:
    """Servers for the policy in `folder` that are started beside the ranks of a training, each where it has room.

    One that is colocated takes turns with the next ranks on their GPUs, as many as it is cut over (SLM-10).
    None where servers run already.
    """
    settings = execution.sglang
    if settings.urls:
        return []
    facts = PolicyFacts.of(folder)
    command = server_command(settings, folder, "{port}", 0, facts, precision, context_tokens, host="{host}")
    size = settings.tensor_parallel
    resources = {"CPU": 1.0} if settings.device == "cpu" else {} if settings.colocated else {"GPU": float(size)}
    server = EngineServer(tuple(command), resources, "/health_generate", float(settings.start_seconds))
    if not settings.colocated:
        return [server] * settings.num_engines
    return [
        dataclasses.replace(server, beside=tuple(range(start, start + size)))
        for start in range(0, settings.num_engines * size, size)
    ]


@contextmanager
def open_engine(
    execution: ExecutionSettings,
    folder: Path,
    model: Callable[[], PreTrainedModel],
    *,
    context_tokens: int | None = None,
    precision: PrecisionSettings | None = None,
    scratch: Path | None = None,
    company: Company | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[RolloutEngine]:
    """An engine for the policy in `folder`; servers that were started for it are dead on leaving.

    Args:
        model: the policy as a Hugging Face model, for the embedded engine alone.
        context_tokens: of the longest trajectory; None: the model's context.
        precision: of the rollout; None: that of the weights.
        scratch: for the servers' logs and weights on their way, on storage that the servers see; None: of this
            machine, and gone on leaving.
        company: the ranks that share the servers; all of them open it at once.
        tell: progress, in a sentence.

    Raises:
        ConfigError: SGLang isn't installed, or what `execution.sglang.urls` names isn't an engine.
        InfrastructureError: a server didn't start or can't be reached.
    """
    if execution.engine == "embedded":
        from rufus_core.rollout.following import FollowingEngine

        yield FollowingEngine(model(), context_tokens=context_tokens)
        return
    facts = PolicyFacts.of(folder)
    context_length = min(context_tokens or facts.context_length, facts.context_length)
    settings, company = execution.sglang, company or Alone()
    with ExitStack() as stack:
        scratch = scratch or Path(stack.enter_context(TemporaryDirectory(prefix="rufus-")))
        urls = list(settings.urls)
        if not urls:
            if company.rank == 0:
                require_sglang(settings.python)
                servers = stack.enter_context(
                    running_servers(
                        lambda port, index: server_command(
                            settings, folder, port, index, facts, precision, context_length
                        ),
                        settings.num_engines,
                        scratch / "sglang",
                        settings.start_seconds,
                        tell,
                    )
                )
                urls = [server.url for server in servers]
            urls = company.concat(urls)
        engine = SGLangEngine(pool_of(urls, facts, context_length, settings), settings, scratch / "weights", company)
        stack.callback(engine.close)
        yield engine
