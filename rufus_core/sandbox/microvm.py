"""One microVM: scripts of ours that run in it as root, each exactly once, and files that only root sees.

The policy's own text is never a script of ours. It runs as another user, which can't become root, and what a script
tells lies between marks that are drawn for it, so that the noise of a login shell is no part of it (GYM-24).
"""

from __future__ import annotations

import io
import secrets
import tarfile
import time
from collections.abc import Mapping

from rufus_core.errors import ConfigError, InfrastructureError, OutcomeUnknown
from rufus_core.sandbox.microvm_client import LIFETIME_SECONDS, MicroVmClient, failures, never_began

FOLDER = "/var/lib/rufus"  # root's alone
ARGUMENT_BYTES = 96 << 10  # of a script: the kernel takes 128 KiB in one argument
_HEADROOM_SECONDS = 300  # beyond what is asked next, until a microVM ends by itself
_GRACE_SECONDS = 15.0  # beyond a script's own deadline, which it keeps
_HEALTH_SECONDS = 5.0
_ANSWER_BYTES = 128 << 20
_BOOT_SECONDS = 60.0
_PREPARE = """umask 077; mkdir -p {folder} && chmod 700 {folder}
for tool in {tools}; do command -v "$tool" >/dev/null || echo "no $tool"; done; umask 022"""


class MicroVm:
    """Alive until `close`. Used from one thread at a time.

    Args:
        tools: programs that its template must have.
        setup: what root does first; what it prints is a fault.

    Raises:
        ConfigError: see `MicroVmClient.create`; or the template lacks something.
        InfrastructureError: none can be had.
    """

    def __init__(self, client: MicroVmClient, template: str, tools: tuple[str, ...], setup: str = "") -> None:
        self._client = client
        self._sandbox = client.create(template)
        self._ends = time.monotonic() + LIFETIME_SECONDS
        self._alive = True
        faults = self.script(f"{_PREPARE.format(folder=FOLDER, tools=' '.join(tools))}\n{setup}", _BOOT_SECONDS)
        if faults:
            self.close()
            hint = "build it with what docs/sandbox.md asks for"
            raise ConfigError(f"the template {template!r} can't be used: {'; '.join(faults)}", hint=hint)

    def script(self, script: str, timeout_seconds: float) -> list[str]:
        """Run a shell script as root, once, and return the lines that it printed.

        It is sent again only after a failure that proves that it never began (GYM-23).

        Raises:
            OutcomeUnknown: it may have begun, the answer is lost, and the microVM lives.
            InfrastructureError: the microVM is gone.
        """
        self._require_alive()
        mark = secrets.token_hex(16)
        command = f"echo; echo {mark}; {{ {script}\n}}; echo {mark}"
        told: list[str] = []
        size = 0
        self._keep(timeout_seconds + _GRACE_SECONDS)
        try:
            commands = self._sandbox.commands
            handle = self._client.patient(
                lambda: commands.run(
                    command,
                    background=True,
                    user="root",
                    cwd="/",
                    timeout=timeout_seconds + _GRACE_SECONDS,
                    retain_output=False,
                ),
                never_began,
            )
            for out, _, _ in handle:
                told.append(out or "")
                size += len(told[-1])
                if size > _ANSWER_BYTES:
                    break
        except failures() as error:
            what = str(error) or type(error).__name__
            if never_began(error) or not self._answers():
                raise self._lost(what) from error
            raise OutcomeUnknown(f"the microVM's answer is lost: {what}") from error
        parts = "".join(told).split(f"{mark}\n")
        if len(parts) != 3:
            raise self._lost("its answer is not whole")
        return parts[1].splitlines()

    def write(self, name: str, data: bytes) -> None:
        """Write a file of root's folder. Raises InfrastructureError."""
        self._require_alive()
        path = f"{FOLDER}/{name}"
        files = self._sandbox.files
        try:
            self._client.patient(lambda: files.write(path, data, user="root", use_octet_stream=True), never_began)
        except failures() as error:
            raise self._lost(str(error) or type(error).__name__) from error

    def read(self, name: str, limit: int) -> bytes:
        """A file of root's folder. Raises InfrastructureError, also where it is longer."""
        self._require_alive()
        data = bytearray()
        files = self._sandbox.files
        try:
            stream = self._client.patient(
                lambda: files.read(f"{FOLDER}/{name}", format="stream", user="root"), never_began
            )
            with stream:
                for chunk in stream:
                    data += chunk
                    if len(data) > limit:
                        break
        except failures() as error:
            raise self._lost(str(error) or type(error).__name__) from error
        if len(data) > limit:
            raise self._lost("it told more than it may")
        return bytes(data)

    def alive(self) -> bool:
        return self._alive

    def close(self) -> None:
        """End it, with everything in it. Calling it again does no harm."""
        if self._alive:
            self._alive = False
            self._client.kill(self._sandbox.sandbox_id)

    def _answers(self) -> bool:
        try:
            return self._sandbox.is_running(request_timeout=_HEALTH_SECONDS)
        except failures():
            return False

    def _lost(self, why: str) -> InfrastructureError:
        """It may be doing anything, or nothing: it is ended and never asked again."""
        self.close()
        return InfrastructureError(f"the microVM was lost: {why}")

    def _require_alive(self) -> None:
        if not self._alive:
            raise InfrastructureError("the microVM is gone")

    def _keep(self, seconds: float) -> None:
        """Give it more time where what comes next might outlive it."""
        if time.monotonic() + seconds + _HEADROOM_SECONDS > self._ends:
            lifetime = int(max(LIFETIME_SECONDS, seconds + 2 * _HEADROOM_SECONDS))
            try:
                self._client.prolong(self._sandbox, lifetime)
            except InfrastructureError as error:
                raise self._lost(error.what) from error
            self._ends = time.monotonic() + lifetime


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar archive. A path that ends in `/` is a folder; a file that begins with `#!` may be executed."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path.removesuffix("/"))
            if path.endswith("/"):
                entry.type, entry.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(entry)
                continue
            entry.size, entry.mode = len(content), 0o755 if content.startswith(b"#!") else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return data.getvalue()
