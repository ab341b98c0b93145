"""Which code, which packages, which image and which machine."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rufus_core.lineage.digest import hash_file
from rufus_core.lineage.files import told_plainly
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
IMAGE = "RUFUS_IMAGE"  # the environment variable by which a container knows its own image
# A user's configuration may change how a diff looks; `git apply` and the diff's hash want one form.
_FORM = ("--no-color", "--binary", "--unified=3", "--src-prefix=a/", "--dst-prefix=b/")
_PLAIN_DIFF = ("diff", "--no-ext-diff", "--no-textconv", *_FORM)


@dataclass(frozen=True, slots=True)
class Code:
    """What a process runs: what a record says of it, and the changes since the commit, which it names by their hash."""

    provenance: Provenance
    diff: bytes  # for `git apply`; empty when the code is what the commit says

    def keep_diff(self, store: Path) -> None:
        """Keep the diff in a store, once. Raises LineageError when the disk refuses."""
        sha256 = self.provenance.dirty_diff_sha256
        if sha256 is None or (place := diff_file(store, sha256)).exists():
            return
        with told_plainly("keep the uncommitted changes", place):
            place.parent.mkdir(parents=True, exist_ok=True)
            partial = place.with_suffix(f".{os.getpid()}.partial")
            partial.write_bytes(self.diff)
            partial.replace(place)


def diff_file(store: Path, sha256: str) -> Path:
    """Where a store keeps uncommitted changes, if it does: records of schema version 1 have only their hash."""
    return store / "diffs" / f"{sha256}.patch"


def collect_provenance(project: Path | None = None) -> Provenance:
    """What a record says of this process; see `collect_code`."""
    return collect_code(project).provenance


def collect_code(project: Path | None = None) -> Code:
    """What this process runs on. Works without git, outside a checkout and in an installed package.

    Args:
        project: the folder that holds the `rufus_core` package; by default the one this module was loaded from.
    """
    root = project or Path(__file__).resolve().parents[2]
    commit = _commit(root)
    diff = _dirty_diff(root) if commit else b""
    lock = next((root / name for name in _LOCKS if (root / name).is_file()), None)
    provenance = Provenance(
        commit=commit,
        dirty=bool(diff),
        dirty_diff_sha256=hashlib.sha256(diff).hexdigest() if diff else None,
        lock_sha256=hash_file(lock).sha256 if lock else None,
        packages=installed_packages(),
        python=platform.python_version(),
        host=platform.node(),
        platform=platform.platform(),
        image=os.environ.get(IMAGE) or None,
    )
    return Code(provenance, diff)


def lock_text(provenance: Provenance, project: Path | None = None) -> tuple[str, bytes] | None:
    """Name and content of the lock file that a record names by hash: as it is now, else as its commit has it."""
    root = project or Path(__file__).resolve().parents[2]
    for name in _LOCKS:
        now = (root / name).read_bytes() if (root / name).is_file() else None
        then = _git(root, "show", f"{provenance.commit}:{name}") if provenance.commit else None
        for content in (now, then):
            if content is not None and hashlib.sha256(content).hexdigest() == provenance.lock_sha256:
                return name, content
    return None


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
    """Changes of tracked files, and untracked code as new files; empty when the code is what the commit says."""
    diff = _git(root, *_PLAIN_DIFF, "HEAD") or b""
    listed = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", *_CODE) or b""
    for name in sorted(os.fsdecode(name) for name in listed.split(b"\0") if name):
        if (root / name).is_file():
            diff += _git(root, *_PLAIN_DIFF, "--no-index", "--", "/dev/null", name, good=(0, 1)) or b""
    return diff


def _git(root: Path, *arguments: str, good: Sequence[int] = (0,)) -> bytes | None:
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
    return done.stdout if done.returncode in good else None
