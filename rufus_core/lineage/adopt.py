"""Adopt: take a checkpoint that was made elsewhere into the store, with a record that says so."""

from __future__ import annotations

import getpass
import os
import platform
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.lineage.canonical import fingerprint
from rufus_core.lineage.digest import digest_files, digest_tree, hash_file
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.record import Draft, Provenance, Record
from rufus_core.lineage.resolve import checkpoint_name
from rufus_core.lineage.sharing import share
from rufus_core.lineage.store import Store
from rufus_core.types import Json

ADOPTED = "adopted"  # in the configuration of what was made elsewhere: it can't be made anew here
_VERSION = "1"


def adopt(
    store: Store,
    stage: str,
    source: Path,
    files: Mapping[str, Path],
    check: Callable[[Path], None],
    parent: Record | None = None,
    note: str = "",
) -> Record:
    """Copy files into the store as a checkpoint of a stage. The same files from the same place are adopted once.

    Args:
        source: where they come from; the record names it.
        files: by their name in the artifact.
        check: is given the folder of the copies, and raises if that is no policy.
        parent: what the checkpoint was made from, as far as the user knows.

    Raises:
        LineageError: a file can't be read or changed while it was copied; the stage's name is no name.
    """
    with told_plainly("read this policy", source):
        digest = digest_files({name: hash_file(path) for name, path in files.items()})
    origin: dict[str, Json] = {"from": str(source), "host": platform.node(), "by": _user(), "digest": digest}
    config: dict[str, Json] = {ADOPTED: {**origin, **({"note": note} if note else {})}}
    inputs = {"parent": parent.as_input()} if parent else {}
    digests = {role: given.digest for role, given in inputs.items()}
    name = checkpoint_name(stage)
    attempt = store.attempt(name, fingerprint("checkpoint", _VERSION, config, digests))
    try:
        with told_plainly("copy this policy", source):
            for file, path in files.items():
                shutil.copyfile(path, attempt.folder / file)
        check(attempt.folder)
        if digest_tree(attempt.folder).sha256 != digest:
            raise LineageError("this policy changed while it was copied", where=str(source), hint="adopt it again")
        provenance = Provenance(host=platform.node(), platform=platform.platform())  # our code didn't make it
        draft = Draft(
            kind="checkpoint", version=_VERSION, stage=stage, config=config, inputs=inputs, provenance=provenance
        )
        return share(store, store.publish(attempt, draft))
    finally:
        attempt.discard()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
