"""A checkpoint on disk by the word that a user gives for it."""

from __future__ import annotations

from pathlib import Path

from rufus_core.cli.output import chosen
from rufus_core.cli.parts import open_home
from rufus_core.errors import LineageError
from rufus_core.lineage.sharing import fetch


def find_checkpoint(text: str, home: Path | None, shared: str | None) -> tuple[str, Path]:
    """What to call it, and its folder: a directory that holds a policy, or an artifact of the home's store.

    Raises:
        LineageError: there is neither, or the artifact isn't what its record says.
    """
    folder = Path(text).expanduser()
    if (folder / "config.json").exists():
        return folder.absolute().name, folder.absolute()
    if text.startswith(("/", ".", "~")):  # no name in a store does
        hint = "give a Hugging Face directory, or a checkpoint's name"
        raise LineageError("there is no policy here: no config.json", where=text, hint=hint)
    _, store = open_home(home, shared, cached=True)
    ref = chosen(store, text)
    fetch(store, ref.record)
    if store.changes(ref.record, trust_cache=True):
        what = f"{ref.record.id} is not in the store as its record says"
        raise LineageError(what, where=str(store.root), hint=f"rufus verify {ref.record.id}")
    if not (ref.folder / "config.json").exists():
        what = f"{ref.record.id} is no checkpoint: its kind is {ref.record.kind}"
        raise LineageError(what, hint="name a stage, a stage and step (coding_rl@12), or `base`")
    return text, ref.folder
