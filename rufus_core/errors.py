"""One exception family. A user's mistake is told in one line: what happened, where, what to do."""

from __future__ import annotations


class RufusError(Exception):
    """Base of every error this project raises on purpose.

    Args:
        what: what happened, in one sentence.
        where: file, line and field, where known (for example ``my_chats.jsonl:12 messages[0].role``).
        hint: what the user can do about it.
    """

    exit_code = 1

    def __init__(self, what: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(what)
        self.what, self.where, self.hint = what, where, hint

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" ({self.hint})" if self.hint else ""
        return f"{place}{self.what}{advice}"


class ConfigError(RufusError):
    """A recipe, profile or ``--set`` value is wrong."""

    exit_code = 2


class DataError(RufusError):
    """A data source is missing, unreadable or holds a record that can't be used."""


class TemplateError(RufusError):
    """A chat template can't be trained on: no generation marks, or it rewrites history."""


class LineageError(RufusError):
    """An artifact or record is missing, unreadable or differs from what was recorded."""


class LeaseHeld(LineageError):
    """Another job that lives is making this artifact."""


class LeaseLost(LineageError):
    """Another job took over what this one was making: it must stop, and may not publish."""


class EngineError(RufusError):
    """A rollout engine refused a request (for example: input longer than the context)."""


class InfrastructureError(RufusError):
    """Infrastructure failed, not the policy. Its rollout is aborted and leaves its group (CA-R3)."""


class OutcomeUnknown(InfrastructureError):
    """A command may have started, and what came of it can't be known, but its sandbox lives. Never send it again."""


class RankLost(InfrastructureError):
    """A process of a data-parallel training died, or doesn't answer the others."""


class SandboxUnavailable(RufusError):
    """This machine can't isolate untrusted code."""


class Preempted(RufusError):
    """A job was told to stop. It kept its state, so that the next one goes on from there."""

    exit_code = 143  # 128 + SIGTERM, as shells count it


class JobFailed(RufusError):
    """A job ended without publishing its artifact; the message names its log file."""


class JobLost(JobFailed):
    """A job's process or machine went away before it published: another try may succeed."""


class JobNotStarted(JobFailed):
    """A cluster never began with a job: no room, or no image. What was asked for has to change."""


class PortInUse(RufusError):
    """A server can't bind to the port it was given."""
