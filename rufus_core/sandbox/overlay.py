"""A prepared tree as the lower layer of a folder: bubblewrap's arguments for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Overlay:
    """A prepared tree, and an empty folder `scratch`, on which the upper layer's memory is mounted for one launch.

    `user` owns the tree's files; launched by root, the sandbox becomes that user.
    """

    tree: Path
    scratch: Path
    user: int


def upper_memory(overlay: Overlay, bubblewrap: str, user_namespace: bool, size: int) -> list[str]:
    """A first bubblewrap, for the upper layer's memory: `--tmp-overlay` of the second has no size that can be set."""
    command = [bubblewrap, "--die-with-parent", *(("--unshare-user",) if user_namespace else ())]
    command += ["--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(overlay.scratch)]
    return [*command, "--perms", "1777", "--dir", f"{overlay.scratch}/upper", "--dir", f"{overlay.scratch}/work"]


def layers(overlay: Overlay, folder: str) -> list[str]:
    """The tree below `folder` of a second bubblewrap, which is started inside of the first."""
    arguments = []
    for parent in reversed(PurePosixPath(folder).parents[:-1]):
        arguments += ["--perms", "0755", "--dir", str(parent)]  # else they are the launcher's alone
    arguments += ["--overlay-src", str(overlay.tree)]
    return [*arguments, "--overlay", f"{overlay.scratch}/upper", f"{overlay.scratch}/work", folder]
