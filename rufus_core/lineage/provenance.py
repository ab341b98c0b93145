"""Which code, which packages and which machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

from rufus_core.lineage.digest import hash_file
from rufus_core.lineage.record import Provenance

PACKAGES = (
    "rufus-air",
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "pydantic",
    "math-verify",
    "reasoning-gym",
    "mcp",
    "sglang",
    "megatron-core",
    "prefect",
    "mlflow",
)
_LOCKS = ("uv.lock", "pylock.toml", "requirements.lock")
_CODE = ("rufus_core", "flows", "tasks", "deployments")
_GIT_SECONDS = 30.0


def collect_provenance(project: Path | None = None) -> Provenance:
    """What this process runs on. Works without git, outside a checkout and in an installed package.

    Args:
        project: the folder that holds the `rufus_core` package; by default the one this module was loaded from.
    """
    root = project or Path(__file__).resolve().parents[2]
    commit = _commit(root)
    diff = _dirty_diff(root) if commit else b""
    lock = next((root / name for name in _LOCKS if (root / name).is_file()), None)
    return Provenance(
        commit=commit,
        dirty=bool(diff),
        dirty_diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
        lock_sha256=hash_file(lock).sha256 if lock else None,
        packages=installed_packages(),
        python=platform.python_version(),
        host=platform.node(),
        platform=platform.platform(),
    )


def installed_packages() -> dict[str, str]:
    """Versions of the packages that matter, of those that are installed. Imports none of them."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _commit(root: Path) -> str | None:
    # A package installed inside somebody else's checkout is not at that checkout's commit.
    if _git(root, "ls-files", "--error-unmatch", "rufus_core/__init__.py") is None:
        return None
    head = _git(root, "rev-parse", "--verify", "HEAD")
    return head.decode().strip() if head else None


def _dirty_diff(root: Path) -> bytes:
    """Tracked files as a diff, untracked code by hash; empty when the code is what the commit says."""
    diff = _git(root, "diff", "--no-ext-diff", "--no-textconv", "--binary", "HEAD") or b""
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE) or b""
    for name in sorted(filter(None, listed.split(b"\0"))):
        path = root / os.fsdecode(name)
        if path.is_file():
            diff += name + b" " + hash_file(path).sha256.encode() + b"\n"
    return diff


def _git(root: Path, *arguments: str) -> bytes | None:
    """Standard output of a git command, or None where it failed."""
    # Variables of a calling git hook would point at another repository.
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    command = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(  # noqa: S603  (an argument list, no shell)
            command,
            env={**env, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
