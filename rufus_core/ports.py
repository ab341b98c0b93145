"""The protocols that rooms above and the outside implement."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, Self, TypeVar

from rufus_core.types import Episode, Json, Message, Problem, ToolCall, ToolResult, ToolSchema, Verdict

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """SGLang's sampling parameters (the subset the recipe uses)."""

    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    sampling_seed: int = 0


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """What to continue, and what to report beside the sampled ids and their log-probs.

    `input_logprobs_from` is the first prompt position whose log-prob is reported (SGLang's `logprob_start_len`; None:
    none); `top_logprobs` how many of the most likely tokens are reported at each sampled position.
    """

    rid: str
    input_ids: Sequence[int]
    sampling_params: SamplingParams
    return_routed_experts: bool = False
    input_logprobs_from: int | None = None
    top_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """`output_ids` includes the stop token where one was sampled; `output_logprobs` has one entry for each id.

    `routed_experts` is [prompt + output - 1, layers, experts per token], int32, zeros in dense layers: the last token
    is never put through the model. `input_logprobs` starts at the position asked for and is None at position 0, which
    nothing predicts. `cached_tokens` of the prompt weren't computed again.
    """

    rid: str
    output_ids: list[int]
    output_logprobs: list[float]
    finish_reason: Literal["stop", "length", "abort"]
    weight_version: str
    cached_tokens: int = 0
    routed_experts: NDArray[np.int32] | None = None
    input_logprobs: list[float | None] | None = None
    top_logprobs: list[list[tuple[float, int]]] | None = None


class Engine(Protocol):
    """Token ids in; token ids and log-probs out (SGLang's native `/generate`)."""

    @property
    def context_length(self) -> int: ...

    def generate(self, requests: Sequence[GenerateRequest]) -> list[GenerateResult]:
        """Results in the order of the requests. Raises EngineError for input that can't be served."""
        ...


class Environment(Protocol):
    """One episode's world (GYM-04). Opened for one rollout and never shared."""

    @property
    def tools(self) -> Sequence[ToolSchema]: ...

    def call(self, call: ToolCall) -> ToolResult:
        """Run a well-formed call. A tool's own failure is `ToolResult(failed=True)`; raises InfrastructureError."""
        ...

    def score(self, episode: Episode) -> Verdict:
        """Score once, after the interaction ended (GYM-05)."""
        ...

    def cleanup(self) -> None:
        """Runs on every outcome; calling it twice does no harm."""
        ...


class Gym(Protocol):
    """Opens environments of one kind, and holds what they share (worker pools, servers, corpora).

    `open` may be called from several threads at once; each environment is used from one thread at a time.
    """

    def open(self, problem: Problem) -> Environment: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class ChatModel(Protocol):
    """Continues a conversation: a teacher, an assistant or a user that a model plays."""

    @property
    def identity(self) -> str: ...

    def complete(self, messages: Sequence[Message], *, seed: int | None = None) -> str:
        """The next message's text, without reasoning. Raises InfrastructureError when none can be had."""
        ...


ProgramStatus = Literal["ok", "error", "timeout", "memory", "output_limit", "process_limit"]
Isolation = Literal["test", "program"]  # a fresh process for each test; one process for all tests of a program
Proof = Literal["compared", "referee", "helpers"]


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """What a program did. `ok` is an exit code of 0; output is at most the limit and decoded with replacement.

    `seconds` are its own, without waiting for a sandbox.
    """

    status: ProgramStatus
    stdout: str
    stderr: str
    exit_code: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ChecksResult:
    """How many checks passed, in order, until the first failure. `reason` is empty iff all did.

    `proof` is the weakest that a check rests on. "compared": values were compared outside the sandbox. "referee":
    statements were run inside, by a process that the program can't reach. "helpers": helper code of the record had to
    share the program's process, which could have replaced it.
    """

    num_passed: int
    num_checks: int
    reason: str = ""
    proof: Proof = "compared"

    @property
    def passed(self) -> bool:
        return not self.reason and self.num_passed == self.num_checks


class CodeSandbox(Protocol):
    """Runs untrusted Python programs. Safe to use from several threads at once.

    Each program or test has `timeout_seconds`; nothing of it survives. Every method raises InfrastructureError if no
    sandbox can be had.
    """

    def run(self, program: str, stdin: str = "", timeout_seconds: float = 10.0) -> ProgramResult:
        """Run a program as `__main__` to its end."""
        ...

    def run_cases(
        self,
        program: str,
        inputs: Sequence[str],
        timeout_seconds: float = 10.0,
        *,
        isolation: Isolation = "test",
        accept: Callable[[int, ProgramResult], bool] | None = None,
    ) -> list[ProgramResult]:
        """Run a program on each input, and return the results in order.

        Args:
            accept: says of an input's index and result whether to go on. The first that it refuses is the last
                returned. None: all are run.
        """
        ...

    def run_checks(
        self,
        program: str,
        checks: Sequence[str],
        timeout_seconds: float = 10.0,
        *,
        setup: str = "",
        test_setup: str = "",
        isolation: Isolation = "program",
    ) -> ChecksResult:
        """Run a program, then each test statement against its names, until the first one that fails.

        Args:
            setup: runs before the program, in its process (helper classes, imports).
            test_setup: runs after the program, in its process (objects that the tests use).

        Raises:
            SyntaxError, ValueError: a check or a setup is no Python.
        """
        ...

    def close(self) -> None:
        """End all sandboxes. Calling it again does no harm."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


CommandStatus = Literal["exited", "timeout", "memory", "output_limit", "process_limit"]


@dataclass(frozen=True, slots=True)
class PreparedTree:
    """Where a session begins: `files` (text by relative path) lie below `workdir`, in which its commands start.

    `template` names the image of a hosted sandbox that was prepared ahead (GYM-21); empty: the backend's default.
    """

    workdir: str
    files: Mapping[str, str]
    template: str = ""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a shell command did. Output is cut in its middle to the limit, and decoded with replacement."""

    status: CommandStatus
    exit_code: int
    stdout: str
    stderr: str
    seconds: float


class SandboxSession(Protocol):
    """One sandbox for one episode: files, packages and processes persist over its commands (GYM-18).

    Used from one thread at a time. Every method raises InfrastructureError when the sandbox is dead.
    """

    @property
    def root(self) -> str:
        """What paths begin with for commands, in place of `/`: empty, but where nothing isolates them."""
        ...

    def run(self, command: str, timeout_seconds: float, output_bytes: int = 1 << 20) -> CommandResult:
        """Run a shell command once, in the tree's working directory, with an empty standard input.

        A backend may send it again only after a failure that proves it never started (GYM-23).

        Raises:
            OutcomeUnknown: it may have started, the answer is lost, and the sandbox lives.
        """
        ...

    def upload(self, folder: str, files: Mapping[str, str]) -> str:
        """Replace a folder's content. Returns why the sandbox's state does not allow it, or an empty text.

        A path that ends in `/` is a folder. A text that begins with `#!` may be executed.
        """
        ...

    def read(self, path: str, limit: int) -> bytes | None:
        """The first bytes of a regular file; None where there is none. Links are not followed."""
        ...

    def close(self) -> None:
        """Destroy the sandbox and everything in it. Calling it again does no harm."""
        ...


class SandboxSessions(Protocol):
    """Opens sessions over prepared trees, of which each sees a copy of its own. Safe to use from several threads."""

    def open(self, tree: PreparedTree) -> SandboxSession:
        """Raises InfrastructureError if no sandbox can be had."""
        ...

    def close(self) -> None:
        """End all sessions. Calling it again does no harm."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...


class Judge(Protocol):
    """Answers one question about one text. `identity` is part of every number's protocol."""

    @property
    def identity(self) -> str: ...

    def score(self, criterion: Mapping[str, Json], text: str) -> float:
        """A score in [0, 1]. Raises InfrastructureError when no verdict can be had: unscored, never 0."""
        ...

    def holds(self, rubric: Mapping[str, Json], conversation: Sequence[Message], response: str) -> bool:
        """Whether the final response, without its reasoning, meets the rubric. Raises as `score` does."""
        ...

    def close(self) -> None:
        """Calling it twice does no harm."""
        ...


class RewardScorer(Protocol):
    """A reward model: scores final responses, on a scale of its own (RM-D3)."""

    @property
    def identity(self) -> str: ...

    def scores(self, responses: Sequence[tuple[Sequence[Message], str]]) -> list[float]:
        """One for each prompt and final response, of which only the text after its reasoning is seen.

        A score that is no finite number says nothing. Raises InfrastructureError when none can be had.
        """
        ...


class MetricSink(Protocol):
    """Where a job reports its progress. The core writes lines to a file; adapters pass them on."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True)
class StepProgress:
    """One line of a job's progress. `step` counts from 1 to `total`; both are None where nothing is counted."""

    step: int | None = None
    total: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """How a step of the recipe ended. `digest` and `record_id` are its artifact's, when it was reused or completed.

    `joined`: an earlier run had started its job. `note` is for a step that was made anew although intact, or whose
    job was told to stop and kept its state.
    """

    status: Literal["reused", "completed", "failed", "cancelled"]
    digest: str | None = None
    record_id: str | None = None
    error: str = ""
    log: Path | None = None
    joined: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Outcomes by step name; a step that was never reached is absent."""

    steps: Mapping[str, StepOutcome]
    interrupted: bool = False


class RunObserver(Protocol):
    """Hears what a run does. Called from several threads at once when steps run side by side."""

    def step_started(self, step: str) -> None:
        """A job runs for this step (a reused step never starts)."""
        ...

    def step_progressed(self, step: str, progress: StepProgress) -> None: ...

    def step_finished(self, step: str, outcome: StepOutcome) -> None: ...

    def warned(self, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `rufus doctor`: what is there, what it is for, and how to get it."""

    name: str
    ok: bool
    detail: str
    required: bool = True
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that isn't what a record says: where, what, and the command to type next."""

    where: str
    what: str
    next: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.next})"


@dataclass(frozen=True, slots=True)
class PagesCheck:
    """How a home's pages compare with its records; `not_checked` names what wasn't there to be compared, and why."""

    differences: tuple[Difference, ...]
    not_checked: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Deployed:
    """What became of one thing on the server that runs are started from."""

    kind: Literal["work pool", "limit", "deployment", "automation"]
    name: str
    action: Literal["created", "updated", "unchanged", "removed", "checked"]


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What MLflow was written anew with: how many records, where, and where the old database lies now."""

    num_records: int
    place: str
    kept: Path | None


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One of `size` processes that train together, and where they meet: rank 0 has the socket that listens there."""

    rank: int
    size: int
    host: str
    port: int
    listener: socket.socket | None = None


ResultT = TypeVar("ResultT")


class RankLauncher(Protocol):
    """Runs the ranks of a data-parallel training. Found through the entry point group `rufus.ranks`."""

    def require(self) -> None:
        """Raises ConfigError where it can't be used."""
        ...

    def run(
        self,
        work: Callable[[RankPlace, threading.Event], ResultT],
        size: int,
        cpus: int,
        address: str | None,
        resources: Mapping[str, float],
        stop: threading.Event,
    ) -> ResultT:
        """Call `work` in `size` processes at once, and return what rank 0 returns. None of them outlives the call.

        Args:
            work: hears of `stop` in rank 0. It and its result are pickled.
            cpus: of each rank.
            address: of the cluster; None: this machine.
            resources: further ones of each rank.

        Raises:
            RankLost: a process died.
            InfrastructureError: the cluster can't be reached, or has no room.
            RufusError: the first that a rank raised.
        """
        ...


RecipeT = TypeVar("RecipeT", contravariant=True)
StepT = TypeVar("StepT", contravariant=True)


class Orchestrator(Protocol[RecipeT, StepT]):
    """Runs a recipe's graph. Found through the entry point group `rufus.orchestrator`, for the core can't import it."""

    def run(self, recipe: RecipeT, graph: Sequence[StepT], home: Path, observer: RunObserver) -> RunOutcome:
        """Run the steps in order, reusing what is intact. Ctrl-C ends the running jobs and is told in the outcome."""
        ...

    def serve_pages(self, home: Path, prefect_port: int, mlflow_port: int) -> AbstractContextManager[Mapping[str, str]]:
        """Serve the run's pages: address by name. Raises PortInUse."""
        ...

    def verify_pages(self, home: Path, only: Collection[str] | None, prefect: bool) -> PagesCheck:
        """Compare what Prefect and MLflow show with the records of a home's store; of `only` these ids where given.

        Asking Prefect starts its server where none is named by PREFECT_API_URL.
        """
        ...

    def deploy(self, file: Path, names: Collection[str], check: bool) -> list[Deployed]:
        """Check the files of deployments; without `check`, also deploy them, or only `names`, and read them back.

        Raises ConfigError, with the line of each fault, and where there is no server to deploy to.
        """
        ...

    def rebuild_mlflow(self, home: Path, experiment: str, warn: Callable[[str], None]) -> Rebuilt:
        """Write MLflow anew from a home's records: its database, or the empty server that MLFLOW_TRACKING_URI names.

        `warn` hears of each record that can't be read. Raises RufusError while a run writes there.
        """
        ...

    def checks(self) -> list[Check]: ...
