"""Opens the engine that a recipe's `execution.engine` names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rufus_core.ports.engine import RolloutEngine
from rufus_core.rollout.sglang.command import server_command
from rufus_core.rollout.sglang.engine import Alone, Company, SGLangEngine, pool_of
from rufus_core.rollout.sglang.facts import PolicyFacts
from rufus_core.rollout.sglang.process import require_sglang, running_servers
from rufus_core.settings import ExecutionSettings, PrecisionSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
                precise = precision or PrecisionSettings()
                servers = stack.enter_context(
                    running_servers(
                        lambda port, index: server_command(
                            settings, folder, port, index, facts, precise, context_length
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
