"""Search Agent environment: search, scrape and Python over a search backend (sections 9 and 14)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, Self
from urllib.parse import unquote, urlsplit

from pydantic import ValidationError

from rufus_core.data.generators.search_corpus import NUM_RESULTS, TOOLS, UNREACHABLE, build_corpus
from rufus_core.data.pages import SearchHit, format_hits
from rufus_core.errors import DataError
from rufus_core.ports.judging import Judge
from rufus_core.rewards.search import search_verdict
from rufus_core.types import Episode, Frozen, Problem, ToolCall, ToolResult, ToolSchema, Verdict

_HTTP = re.compile(r"^(https?:)?/*", re.IGNORECASE)


class SearchBackend(Protocol):
    """Where results and pages come from: the packaged corpus in training (SA-E3), a live harness elsewhere."""

    def search(self, query: str, limit: int) -> list[SearchHit]:
        """Hits, best first. Raises InfrastructureError."""
        ...

    def fetch(self, url: str) -> str | None:
        """A page's main content; None where it can't be reached (SEV-07)."""
        ...


class Condenser(Protocol):
    """Shortens a page that doesn't fit (SA-E2)."""

    def condense(self, text: str, max_words: int) -> str: ...


class ProgramResult(Protocol):
    @property
    def status(self) -> str: ...
    @property
    def stdout(self) -> str: ...
    @property
    def stderr(self) -> str: ...


class Interpreter(Protocol):
    """Runs a program where it can do no harm (`rufus_core.sandbox`)."""

    def run(self, program: str, stdin: str, timeout_seconds: float) -> ProgramResult: ...


class Truncation:
    """Keeps the beginning and says so."""

    def condense(self, text: str, max_words: int) -> str:
        words = text.split()
        return f"{' '.join(words[:max_words])} [truncated: {max_words} of {len(words)} words]"


class _Reference(Frozen, extra="ignore"):
    """What an episode needs of a problem's ground truth."""

    answer: str
    corpus: int = 0


class SearchGym:
    """Opens search episodes.

    Args:
        interpreter: runs the `python` tool's programs; its owner closes it.
        judge: grades committed answers (SA-R1).
        reward: scores a finished episode with the judge.
        backend: used for every problem; by default the packaged corpus that the problem names.
        blocked_domains: dropped from results and refused by `scrape`, with their subdomains (SEV-06).
        max_page_words: longer pages go through `condenser` (SEV-03).
    """

    def __init__(
        self,
        interpreter: Interpreter,
        judge: Judge,
        *,
        reward: Callable[[Episode, Judge], Verdict] = search_verdict,
        backend: SearchBackend | None = None,
        blocked_domains: Collection[str] = (),
        num_results: int = NUM_RESULTS,
        max_page_words: int = 50_000,
        condenser: Condenser | None = None,
        python_timeout_seconds: float = 10.0,
    ) -> None:
        self.interpreter = interpreter
        self.judge = judge
        self.reward = reward
        self.num_results = num_results
        self.max_page_words = max_page_words
        self.condenser = condenser or Truncation()
        self.python_timeout_seconds = python_timeout_seconds
        self._backend = backend
        self._blocked = tuple(domain_of(domain) for domain in blocked_domains)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def open(self, problem: Problem) -> SearchEnvironment:
        """Raises DataError for a problem without a reference answer."""
        try:
            reference = _Reference.model_validate(problem.ground_truth)
        except ValidationError as error:
            raise DataError("a search problem needs an `answer`", where=f"problem {problem.id}") from error
        return SearchEnvironment(self, self._backend or build_corpus(reference.corpus).index)

    def blocks(self, url: str) -> bool:
        host = domain_of(url)
        return any(host == domain or host.endswith(f".{domain}") for domain in self._blocked)


class SearchEnvironment:
    """One episode. It holds no state of its own: what the policy learned is in the transcript."""

    tools: Sequence[ToolSchema] = TOOLS

    def __init__(self, gym: SearchGym, backend: SearchBackend) -> None:
        self._gym, self._backend = gym, backend
        self._run = {"search": self._search, "scrape": self._scrape, "python": self._python}

    def call(self, call: ToolCall) -> ToolResult:
        """Raises InfrastructureError when the backend or the interpreter is at fault."""
        run = self._run.get(call.name)
        argument = next(iter(call.arguments.values()), None)
        if run is None or len(call.arguments) != 1 or not isinstance(argument, str):
            return ToolResult("error: unknown tool or arguments", failed=True)
        return run(argument)

    def score(self, episode: Episode) -> Verdict:
        return self._gym.reward(episode, self._gym.judge)

    def cleanup(self) -> None:
        return None

    def _search(self, query: str) -> ToolResult:
        hits = self._backend.search(query, self._gym.num_results)
        return ToolResult(format_hits([hit for hit in hits if not self._gym.blocks(hit.url)]))

    def _scrape(self, url: str) -> ToolResult:
        if self._gym.blocks(url):
            return ToolResult("error: domain blocked", failed=True)
        text = self._backend.fetch(url) if domain_of(url) else None
        if text is None:
            return ToolResult(UNREACHABLE, failed=True)
        if len(text.split()) > self._gym.max_page_words:
            text = self._gym.condenser.condense(text, self._gym.max_page_words)
        return ToolResult(text)

    def _python(self, code: str) -> ToolResult:
        result = self._gym.interpreter.run(code, "", self._gym.python_timeout_seconds)
        if result.status != "ok":
            last_line = result.stderr.strip().rpartition("\n")[2]
            return ToolResult(f"error: {last_line or result.status}", failed=True)
        return ToolResult(result.stdout.strip() or "no output")


def domain_of(url: str) -> str:
    """The host of an address with or without a scheme, as a resolver would read it; "" where it has none."""
    address = _HTTP.sub("", url.strip().replace("\\", "/"))
    try:
        host = unquote(urlsplit(f"//{address}").hostname or "")
    except ValueError:
        return ""
    visible = "".join(sign for sign in host if unicodedata.category(sign) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().replace("\u3002", ".").strip(".")
