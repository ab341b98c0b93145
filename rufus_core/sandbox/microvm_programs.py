"""Untrusted Python programs in warm microVMs, behind the very supervisor that runs on this machine.

A request is a file, and one command that gives it to a new supervisor and keeps the answer in another file. No stream
has to stay open between requests, through proxies that end idle ones, and every request has a deadline of its own. The
supervisor starts in namespaces of its own inside the microVM, as pid 1 and a user that owns nothing: when it ends,
whatever a program left is gone with them, processes, files and shared memory alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from rufus_core.errors import ConfigError, InfrastructureError, RufusError
from rufus_core.sandbox.interpreter import MEMORY_FACTOR, ProgramPool
from rufus_core.sandbox.isolation import BARE, HASH_SEED, INSIDE, PROCESSES_MARGIN, RUNNER_HOME, RUNNER_START, UID
from rufus_core.sandbox.messages import packed, unpacked
from rufus_core.sandbox.microvm import FOLDER, MicroVm, archive
from rufus_core.sandbox.microvm_client import MicroVmClient
from rufus_core.sandbox.process import MESSAGE_BYTES

TOOLS = ("python3", "unshare", "setpriv", "mount", "timeout", "tar", "env")
OLDEST_PYTHON = (3, 11)
_BOOT_SECONDS = 60.0

# Root's last steps: nothing may be written but to memory, then a user that owns nothing and can't become another one.
_ENTER = """
set -e
mount -o remount,bind,ro /
while read -r _ _ _ _ point _; do mount -o remount,bind,ro "$point" 2>/dev/null || :; done </proc/self/mountinfo
mount -t tmpfs -o mode=1777,nosuid,nodev,size={size} tmpfs /tmp
mount -t tmpfs -o mode=1777,nosuid,nodev,noexec,size=64m tmpfs /dev/shm
mount -t mqueue mqueue /dev/mqueue
cd /tmp
exec setpriv --reuid {uid} --regid {uid} --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs \\
  env -i PATH="$PATH" HOME=/tmp LANG=C.UTF-8 {seed} \\
  python3 {bare} -c {start} "" {processes} {memory} /tmp {most_processes}
"""
_NAMESPACES = "unshare --mount --pid --ipc --net --uts --fork --kill-child --mount-proc"
_REQUEST = """cd {folder}; rm -f answer
cat request | timeout -s KILL {seconds} {namespaces} -- sh -c {enter} >answer 2>errors
echo "${{PIPESTATUS[1]}}"; head -c 500 errors; rm -f request"""
_INSTALL = """mkdir -p /dev/shm /dev/mqueue {home} && tar -x -C {home} -f {folder}/runner.tar --no-same-owner
chmod -R a+rX,go-w {home}; python3 -I -S -c 'import sys; print(*sys.version_info[:2])'"""


class MicroVmPrograms(ProgramPool):
    """A pool of microVMs that run programs (`CodeSandbox`). A microVM that gave no answer is ended, and replaced.

    The network lies between, so a microVM that is lost says nothing of the program: InfrastructureError.

    Raises, when the first program comes:
        ConfigError: the key is refused, or there is no such template, or it lacks something.
    """

    def __init__(
        self,
        client: MicroVmClient,
        template: str,
        workers: int = 2,
        *,
        memory_bytes: int = 1 << 30,
        output_bytes: int = 1 << 20,
        max_processes: int = 64,
    ) -> None:
        self._client = client
        super().__init__(
            lambda: MicroVmSupervisor(client, template, max_processes, MEMORY_FACTOR * memory_bytes),
            workers,
            memory_bytes=memory_bytes,
            output_bytes=output_bytes,
            attempts=1,
            blame_program=False,
        )

    def close(self) -> None:
        super().close()
        self._client.close()


class MicroVmSupervisor:
    """A microVM with the supervisor's modules (`Supervised`)."""

    def __init__(self, client: MicroVmClient, template: str, processes: int, memory_bytes: int) -> None:
        enter = _ENTER.format(
            size=memory_bytes // 2,
            uid=UID,
            seed=" ".join(f"{name}={value}" for name, value in HASH_SEED.items()),
            bare=" ".join(BARE),
            start=shlex.quote(RUNNER_START.format(home=RUNNER_HOME)),
            processes=processes,
            memory=memory_bytes,
            most_processes=PROCESSES_MARGIN * processes,
        )
        self._enter = shlex.quote(enter)
        self._vm = MicroVm(client, template, TOOLS)
        try:
            self._install(template)
        except RufusError:
            self.close()
            raise

    def _install(self, template: str) -> None:
        self._vm.write("runner.tar", _modules())
        told = self._vm.script(_INSTALL.format(home=RUNNER_HOME, folder=FOLDER), _BOOT_SECONDS)
        version = tuple(int(part) for part in told[-1].split()) if told else ()
        if version < OLDEST_PYTHON:
            named = ".".join(map(str, version)) or "none that starts"
            wanted = ".".join(map(str, OLDEST_PYTHON))
            raise ConfigError(f"the template {template!r} needs Python {wanted} or later, and has {named}")
        self.request([b"ping"], _BOOT_SECONDS)

    def request(self, fields: Sequence[bytes], timeout_seconds: float) -> list[bytes]:
        """Send one message and wait for its answer. A microVM that gave none is ended: InfrastructureError."""
        data = packed(fields)
        if len(data) > MESSAGE_BYTES:
            raise InfrastructureError(f"a request of {len(data)} bytes is larger than {MESSAGE_BYTES}")
        script = _REQUEST.format(
            folder=FOLDER, seconds=f"{timeout_seconds:.3f}", namespaces=_NAMESPACES, enter=self._enter
        )
        try:
            self._vm.write("request", data)
            code, *errors = self._vm.script(script, timeout_seconds)
            if code != "0":
                raise InfrastructureError(f"the supervisor in the microVM ended with {code}: {' '.join(errors)}")
            return unpacked(self._vm.read("answer", MESSAGE_BYTES))
        except (InfrastructureError, ValueError) as error:
            self.close()
            if isinstance(error, InfrastructureError):
                raise
            raise InfrastructureError("the microVM's answer can't be read") from error

    def alive(self) -> bool:
        return self._vm.alive()

    def close(self) -> None:
        self._vm.close()


def _modules() -> bytes:
    """The supervisor's modules as an archive: as they are in this package, so that both backends run the same."""
    here = Path(__file__).parent
    return archive({f"rufus_core/sandbox/{name}.py": (here / f"{name}.py").read_bytes() for name in INSIDE})
