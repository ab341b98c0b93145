"""Where a policy's code runs: on this machine or in microVMs, as `execution` of the recipe says."""

from __future__ import annotations

from rufus_core.ports.programs import CodeSandbox
from rufus_core.ports.sessions import SandboxSessions
from rufus_core.sandbox.interpreter import InterpreterPool
from rufus_core.sandbox.isolation import require
from rufus_core.sandbox.microvm_client import MicroVmClient
from rufus_core.sandbox.microvm_programs import MicroVmPrograms
from rufus_core.sandbox.microvms import MicroVmSessions
from rufus_core.sandbox.sessions import LocalSessions
from rufus_core.settings import ExecutionSettings


def open_code_sandbox(
    execution: ExecutionSettings,
    workers: int = 2,
    *,
    memory_bytes: int = 1 << 30,
    output_bytes: int = 1 << 20,
    label: str = "",
) -> CodeSandbox:
    """A sandbox for short programs. `label` names the step that it is for.

    Raises:
        SandboxUnavailable: nothing can be isolated on this machine, where it is to run.
        ConfigError: microVMs are wanted, and the client or the key is missing.
    """
    if execution.sandbox == "e2b":
        client = microvm_client(execution, label)
        template = execution.sandbox_template or ""
        return MicroVmPrograms(client, template, workers, memory_bytes=memory_bytes, output_bytes=output_bytes)
    return InterpreterPool(
        workers,
        memory_bytes=memory_bytes,
        output_bytes=output_bytes,
        allow_unisolated=execution.allow_unisolated_code,
    )


def open_sessions(execution: ExecutionSettings, label: str = "") -> SandboxSessions:
    """Sessions for episodes. Raises as `open_code_sandbox` does."""
    if execution.sandbox == "e2b":
        return MicroVmSessions(microvm_client(execution, label), execution.sandbox_template or "")
    return LocalSessions(allow_unisolated=execution.allow_unisolated_code)


def require_sandbox(execution: ExecutionSettings) -> str:
    """Check that there is one, and say what it is.

    Raises:
        SandboxUnavailable: this machine can't isolate code.
        ConfigError: no client, no key, or a key or a template that the service doesn't know.
        InfrastructureError: the service doesn't answer.
    """
    if execution.sandbox == "local":
        report = require(execution.allow_unisolated_code)
        return "this machine" if report.isolated else "this machine, without isolation"
    client = microvm_client(execution, "check")
    client.require_template(execution.sandbox_template or "")
    return f"E2B at {client.place}, template {execution.sandbox_template!r}"


def microvm_client(execution: ExecutionSettings, label: str) -> MicroVmClient:
    """Raises ConfigError."""
    return MicroVmClient(domain=execution.sandbox_domain, url=execution.sandbox_url, label=label)
