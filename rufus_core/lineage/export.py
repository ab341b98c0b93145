"""Export: all that is needed to make a checkpoint anew, as a folder. It is a home with records and no bytes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rufus_core.errors import LineageError
from rufus_core.lineage.collected import Collected, dump_collected
from rufus_core.lineage.digest import COLLECTED_FILE, RECORD_FILE, hash_file
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.home import store_root
from rufus_core.lineage.provenance import diff_file, lock_text
from rufus_core.lineage.record import Provenance, Record
from rufus_core.lineage.sharing import fetch
from rufus_core.lineage.store import Store
from rufus_core.lineage.trace import generator_sources
from rufus_core.ports.orchestration import Difference

SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
_INDEXES = ("store/by-name/", "store/by-digest/")  # made by whoever looks something up


def export(store: Store, chain: Sequence[Record], to: Path, weights: bool = False) -> None:
    """Write a bundle. Equal checkpoints give equal bytes.

    Args:
        chain: the checkpoint and all it was made from, each after its inputs.
        to: an empty or new folder.
        weights: copy the checkpoint's files too.

    Raises:
        LineageError: the folder is not empty, or the disk refuses.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise LineageError("this is no empty folder", where=str(to), hint="name a new one with --to")
    if weights:
        fetch(store, chain[-1])
    if weights and store.changes(chain[-1]):
        raise LineageError("its files differ from its record", where=chain[-1].id, hint=f"rufus verify {chain[-1].id}")
    with told_plainly("write this bundle", to):
        to.mkdir(parents=True, exist_ok=True)
        for record in chain:
            _copy(store, record, to, weights and record is chain[-1])
        _write_json(to / "configuration.json", [_configuration(record) for record in chain])
        _write_json(to / "data.json", [row for record in chain for row in _data(record)])
        codes = _codes(chain)
        _write_json(to / "code.json", [code.model_dump(mode="json", exclude={"host", "platform"}) for code in codes])
        for code in codes:
            _copy_code(store, code, to)
        (to / "README.md").write_text(_readme(chain, codes, to, weights), encoding="utf-8")
        rows = [f"{hash_file(path).sha256}  {path.relative_to(to).as_posix()}\n" for path in _files(to)]
        (to / SUMS).write_text("".join(rows), encoding="utf-8")


def verify_bundle(folder: Path) -> list[Difference]:
    """Files of a bundle that aren't what its list of sums says. Raises LineageError where there is no such list."""
    again = "rufus export"
    with told_plainly("read this bundle", folder / SUMS):
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
        sums = {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines)}
        found = {path.relative_to(folder).as_posix(): hash_file(path).sha256 for path in _files(folder)}
    found = {name: sha256 for name, sha256 in found.items() if name != SUMS and not name.startswith(_INDEXES)}
    words = {
        name: "missing" if name not in found else "added" if name not in sums else "changed"
        for name in sorted(sums.keys() | found.keys())
        if sums.get(name) != found.get(name)
    }
    return [Difference(name, f"{word} in this bundle", again) for name, word in words.items()]


def _copy(store: Store, record: Record, to: Path, weights: bool) -> None:
    """The record at its place in the bundle's own store, and its files or a note that they are left out."""
    source, target = store.path(record), Store(store_root(to)).path(record)
    target.mkdir(parents=True)
    shutil.copyfile(source / RECORD_FILE, target / RECORD_FILE)
    if not weights:
        note = Collected(files=tuple(sorted(record.files)), when=record.published)
        (target / COLLECTED_FILE).write_text(dump_collected(note), encoding="utf-8")
        return
    for name in record.files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _configuration(record: Record) -> dict[str, object]:
    return record.model_dump(mode="json", include={"name", "kind", "version", "seed", "config", "placement"}) | {
        "id": record.id,
        "digest": record.digest,
        "inputs": {role: source.record_id for role, source in record.inputs.items()},
    }


def _data(record: Record) -> Iterator[dict[str, object]]:
    """The data that enters the chain at a record: files of the user's, generators, and what was made of them."""
    for role, file in record.external.items():
        yield {"id": record.id, "role": role, **file.model_dump(mode="json")}
    if record.kind == "problems":
        for name, source in generator_sources(record.config):
            yield {"id": record.id, "role": name, "source": source}
        for path, entry in sorted(record.files.items()):
            yield {"id": record.id, "file": path, "sha256": entry.sha256, "size": entry.size}


def _codes(chain: Sequence[Record]) -> list[Provenance]:
    """The different codes that made a chain, in its order."""
    codes: dict[str, Provenance] = {}
    for record in chain:
        code = record.provenance
        codes.setdefault(code.model_dump_json(exclude={"host", "platform"}), code)
    return list(codes.values())


def _copy_code(store: Store, code: Provenance, to: Path) -> None:
    sha256 = code.dirty_diff_sha256
    if sha256 and diff_file(store.root, sha256).exists():
        place = diff_file(store_root(to), sha256)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(diff_file(store.root, sha256), place)
    lock = lock_text(code)
    if lock is not None:
        name, content = lock
        (to / "locks" / str(code.lock_sha256)).mkdir(parents=True, exist_ok=True)
        (to / "locks" / str(code.lock_sha256) / name).write_bytes(content)


def _readme(chain: Sequence[Record], codes: Sequence[Provenance], to: Path, weights: bool) -> str:
    root = chain[-1]
    lines = [
        f"# {root.name}",
        "",
        f"Record `{root.id}`, digest `{root.digest}`. This folder is a home of Rufus-Air with the records of the",
        f"checkpoint and of all it was made from ({len(chain)} artifacts)"
        + (", and the checkpoint's files." if weights else ", without their bytes."),
        "",
        "| file | holds |",
        "|---|---|",
        "| `store/` | the records, and the uncommitted changes of the code that made them |",
        "| `configuration.json` | the resolved configuration, seed and placement of every step, in order |",
        "| `data.json` | data files and problem sets by hash, generators by their settings |",
        "| `code.json`, `locks/` | commits, packages, lock files |",
        f"| `{SUMS}` | the hash of every file here |",
        "",
    ]
    for number, code in enumerate(codes, start=1):
        lines += _code_lines(code, to, f" ({number} of {len(codes)})" if len(codes) > 1 else "")
    missing = [file for record in chain for file in record.external.values()]
    if missing:
        lines += ["It was made from these files too, which must lie where they lay:", ""]
        lines += [f"- `{file.resolved}`, sha256 `{file.sha256}`" for file in missing] + [""]
    lines += [
        "Then make it anew and compare every byte; the folder of this README is `BUNDLE`:",
        "",
        f"    rufus reproduce {root.id} --home BUNDLE",
        "",
        "Other commands: `rufus verify --bundle BUNDLE`, `rufus trace " + f"{root.id} --home BUNDLE`.",
        "",
    ]
    return "\n".join(lines)


def _code_lines(code: Provenance, to: Path, which: str) -> list[str]:
    """The commands to type in a clone of the repository."""
    lines = [f"The code{which}, in a clone of its repository:", ""]
    if code.commit is None:
        return [
            *lines[:-1],
            "its commit is not known, for it ran outside a checkout; `code.json` has its packages.",
            "",
        ]
    lines.append(f"    git checkout {code.commit}")
    if code.dirty_diff_sha256:
        place = diff_file(store_root(to), code.dirty_diff_sha256)
        known = f"    git apply BUNDLE/{place.relative_to(to).as_posix()}"
        lines.append(known if place.exists() else f"    # its uncommitted changes were not kept: {place.stem}")
    return [*lines, "    make install", ""]


def _write_json(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
