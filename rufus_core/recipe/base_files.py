"""The files of a base policy that the user gives as a directory."""

from __future__ import annotations

from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.lineage.digest import RECORD_FILE

_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")


def base_files(path: str) -> dict[str, Path]:
    """Files by name that a Hugging Face causal LM directory is loaded from. Code and pickles are left out.

    Raises:
        ConfigError: it is no directory, or has no configuration or no safetensors weights.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ConfigError("there is no such directory", where=f"base.path={path}", hint="give a Hugging Face directory")
    files = {f.name: f for f in sorted(folder.glob("*")) if f.suffix in _SUFFIXES and f.is_file()}
    files.pop(RECORD_FILE, None)  # an artifact of an earlier run: what made it is no part of the policy
    for needed in ("config.json", "tokenizer_config.json"):
        if needed not in files:
            raise ConfigError(f"there is no {needed}", where=f"base.path={path}", hint="give a Hugging Face directory")
    if not any(name.endswith(".safetensors") for name in files):
        raise ConfigError("there are no safetensors weights", where=f"base.path={path}", hint="convert them first")
    return files
