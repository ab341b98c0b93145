"""Machines of the test server: a root folder in memory, a root user, an ordinary user, processes of their own.

They stand in for microVMs: what runs inside can do what it could do there, as root too, and nothing outside. Launching
one needs root, as envd on a real machine has it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from rufus_core.sandbox.isolation import find_bubblewrap, probe

PASSWD = "root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n"
GROUP = "root:x:0:\nuser:x:1000:\n"
# What a login shell runs, and a line of noise that is no command's output (GYM-24).
PYTHON = Path(sys.base_prefix).resolve()
PATHS = {"python": f"{PYTHON}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "bare": "/usr/sbin"}  # by template
PROFILE = "export PATH={path}\necho 'Welcome to this machine.'\n"
_BOOT = "chown 1000:1000 /home/user; chmod 1777 /tmp; echo up; exec tail -f /dev/null"


def require_machines() -> None:
    if not (report := probe()).isolated or report.launch != "root":
        pytest.skip("machines of the test server need root and bubblewrap")
    for tool in ("nsenter", "unshare", "setpriv"):
        if shutil.which(tool) is None:
            pytest.skip(f"machines of the test server need {tool}")


class Machine:
    """One machine, up until `kill`."""

    def __init__(self, folder: Path, template: str) -> None:
        for name, text in (("passwd", PASSWD), ("group", GROUP), ("profile", PROFILE.format(path=PATHS[template]))):
            (folder / name).write_text(text)
        info, told = os.pipe()
        command = [str(find_bubblewrap()), "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"]
        command += ["--die-with-parent", "--hostname", "machine", "--clearenv", "--info-fd", str(told)]
        command += ["--cap-add", "ALL", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib32", "lib64"):
            link = Path("/", name)
            if link.is_symlink():
                command += ["--symlink", str(link.readlink()), str(link)]
        command += ["--dir", "/etc"]
        for name in ("passwd", "group", "profile"):
            command += ["--ro-bind", str(folder / name), f"/etc/{name}"]
        command += ["--dir", "/root", "--ro-bind", str(PYTHON), str(PYTHON)]
        command += ["--proc", "/proc", "--dev", "/dev", "--mqueue", "/dev/mqueue", "--tmpfs", "/dev/shm"]
        command += ["--dir", "/home/user", "--tmpfs", "/tmp", "/bin/sh", "-c", _BOOT]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(told,))
        os.close(told)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"up\n"
        with os.fdopen(info) as file:
            self._pid = json.load(file)["child-pid"]

    async def start(self, user: str, command: Sequence[str], cwd: str = "") -> asyncio.subprocess.Process:
        """Start a command inside, as envd does: with a user's home and nothing of this process's environment."""
        home = "/root" if user == "root" else f"/home/{user}"
        inside = ["setpriv", "--reuid", user, "--regid", user, "--init-groups", *command]
        return await asyncio.create_subprocess_exec(
            *("nsenter", "--target", str(self._pid), "--mount", "--pid", "--ipc", "--uts", "--net"),
            *("--", "sh", "-c", 'cd "$0" && exec "$@"', cwd or home, *inside),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"HOME": home, "USER": user, "LOGNAME": user, "PATH": os.defpath},
            start_new_session=True,
            limit=1 << 20,
        )

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """End it with all that runs inside."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
