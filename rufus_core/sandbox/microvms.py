"""Sessions in E2B's microVMs: one for each episode, over a template that was prepared ahead (GYM-18 to 22, CA-E2)."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping
from typing import Self

from rufus_core.errors import InfrastructureError
from rufus_core.ports.sessions import CommandResult, CommandStatus, PreparedTree
from rufus_core.sandbox.microvm import ARGUMENT_BYTES, FOLDER, MicroVm, archive
from rufus_core.sandbox.microvm_client import MicroVmClient

TOOLS = ("bash", "setpriv", "timeout", "tar", "find", "install", "stat", "base64", "head", "tail")
USER = "user"  # the ordinary user of every template of E2B
_FILE_KIB = 256 << 10  # the largest file that a command writes, its output too, as in a local sandbox
_UPLOAD_SECONDS = 60.0
_READ_SECONDS = 20.0
_KILLED, _TOO_LARGE = 137, 153  # exit codes of the signals KILL and XFSZ
# The user's environment is that of the template; no way leads from it to another user.
_AS_USER = (
    f"export HOME=~{USER} USER={USER} LOGNAME={USER}; exec setpriv --reuid {USER} --regid {USER} "
    "--init-groups --inh-caps=-all --bounding-set=-all --no-new-privs --"
)

# As in a local sandbox; tests and their logs are placed there.
_OWN_FOLDERS = f"install -d -o {USER} -g {USER} /tests /logs 2>&1"

# Output goes to files of root's: a process that stays in the background holds no stream open, and a flood stays here.
_RUN = """LC_ALL=C; cd {workdir} 2>/dev/null || cd /; out={folder}/out.$$ err={folder}/err.$$
begin=$EPOCHREALTIME
( ulimit -f {file_kib}; {as_user} timeout -s KILL {seconds} bash -c {command} ) >$out 2>$err </dev/null
echo $? $begin $EPOCHREALTIME
for file in $out $err; do
  stat -c %s $file
  if [ $(stat -c %s $file) -le {limit} ]; then base64 -w0 $file; echo; echo
  else head -c {head} $file | base64 -w0; echo; tail -c {tail} $file | base64 -w0; echo; fi
done; rm -f $out $err"""
_UPLOAD = """exec 2>&1; if [ -L {to} ]; then echo {to} is a link
else mkdir -p {to} && find {to} -mindepth 1 -delete && chown {user}: {to} &&
( {as_user} tar -xm -C {to} -f - ) <{folder}/upload.tar || echo "it can't be replaced"; fi; rm -f {folder}/upload.tar"""
_READ = """( {as_user} timeout -s KILL 10 bash -c \
'[ -f "$0" ] && [ ! -L "$0" ] && echo found && head -c {limit} -- "$0" | base64 -w0' {path} ) 2>/dev/null; echo"""


class MicroVmSessions:
    """Opens sessions (`SandboxSessions`), each a microVM of its own. They end with the client, if not before.

    Args:
        template: of trees that name none.
    """

    def __init__(self, client: MicroVmClient, template: str) -> None:
        self._client, self._template = client, template

    def open(self, tree: PreparedTree) -> MicroVmSession:
        """Raises ConfigError for a refused key or an unknown template, InfrastructureError if none can be had."""
        session = MicroVmSession(self._client, tree.template or self._template, tree.workdir)
        try:
            if reason := session.upload(tree.workdir, tree.files):
                raise InfrastructureError(f"the tree can't be placed in the microVM: {reason}")
        except BaseException:
            session.close()
            raise
        return session

    def close(self) -> None:
        """End all sessions. Calling it again does no harm."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MicroVmSession:
    """One microVM for one episode (`SandboxSession`)."""

    def __init__(self, client: MicroVmClient, template: str, workdir: str) -> None:
        self._vm = MicroVm(client, template, TOOLS, setup=_OWN_FOLDERS)
        self._workdir = workdir

    @property
    def root(self) -> str:
        return ""

    def run(self, command: str, timeout_seconds: float, output_bytes: int = 1 << 20) -> CommandResult:
        """Run a shell command once: it is never sent again after it may have started (GYM-23)."""
        text = command.replace("\0", "").encode("utf-8", "replace").decode()
        head = output_bytes // 2
        script = _RUN.format(
            workdir=shlex.quote(self._workdir),
            folder=FOLDER,
            file_kib=_FILE_KIB,
            as_user=_AS_USER,
            seconds=f"{timeout_seconds:.3f}",
            command=shlex.quote(text),
            limit=output_bytes,
            head=head,
            tail=output_bytes - head,
        )
        if len(script.encode()) > ARGUMENT_BYTES:
            return CommandResult("exited", 126, "", "Argument list too long", 0.0)
        lines = self._vm.script(script, timeout_seconds)
        try:
            code, begin, end = lines[0].split()
            out, err = (_output(*lines[place : place + 3]) for place in (1, 4))
            exit_code, seconds = int(code), float(end) - float(begin)
        except (ValueError, IndexError, TypeError) as error:
            self.close()
            raise InfrastructureError("the microVM's answer can't be read") from error
        status: CommandStatus = "exited"
        if exit_code == _KILLED and seconds >= timeout_seconds:
            status = "timeout"
        elif exit_code == _TOO_LARGE and max(int(lines[1]), int(lines[4])) >= _FILE_KIB << 10:
            status = "output_limit"
        return CommandResult(status, -9 if status == "timeout" else exit_code, out, err, seconds)

    def upload(self, folder: str, files: Mapping[str, str]) -> str:
        """Replace a folder's content; returns why the sandbox's state does not allow it, or an empty text."""
        self._vm.write("upload.tar", archive(_encoded(files)))
        script = _UPLOAD.format(to=shlex.quote(folder), folder=FOLDER, user=USER, as_user=_AS_USER)
        return "\n".join(self._vm.script(script, _UPLOAD_SECONDS))

    def read(self, path: str, limit: int) -> bytes | None:
        """The first bytes of a regular file; None where there is none. Links are not followed."""
        script = _READ.format(as_user=_AS_USER, path=shlex.quote(path), limit=limit)
        lines = self._vm.script(script, _READ_SECONDS)
        return base64.b64decode(lines[1]) if lines[0] == "found" else None

    def close(self) -> None:
        """End the microVM. Calling it again does no harm."""
        self._vm.close()


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    """As in a local session, where half of a surrogate pair is written, too."""
    return {path: text.encode("utf-8", "surrogatepass") for path, text in files.items()}


def _output(size: str, head: str, tail: str) -> str:
    """A stream of which the middle may be missing."""
    first, last = base64.b64decode(head), base64.b64decode(tail)
    omitted = int(size) - len(first) - len(last)
    middle = b"\n[%d bytes omitted]\n" % omitted if omitted > 0 else b""
    return (first + middle + last).decode(errors="replace")
