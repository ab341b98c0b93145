"""Sandboxes that persist over the commands of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, Self

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
