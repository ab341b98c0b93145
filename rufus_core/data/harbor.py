"""Harbor task directories: read, written and filtered by structure (CA-D2, CA-D4).

    instruction.md  environment/Dockerfile  environment/...  tests/test.sh  tests/...  [task.toml]  [solution/solve.sh]

The local backend builds no image: of a Dockerfile it can do FROM (ignored), WORKDIR, and COPY of text files to places
below the working directory. Anything else is a typed reason to drop the task.
"""

from __future__ import annotations

import enum
import json
import posixpath
import shlex
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rufus_core.errors import DataError
from rufus_core.types import Json, Message, Problem, ToolSchema

EXECUTE_COMMAND = ToolSchema(
    name="execute_command",
    description="Run a shell command.",
    parameters={"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
)
FAMILY = "terminal"
WORKDIR = "/app"
MAX_FILE_BYTES = 1 << 20
VERIFIER_TIMEOUT_SECONDS = 300.0
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "compose.yaml", "compose.yml")
_SYSTEM = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "proc", "dev", "sys", "etc", "opt", "tmp", "tests", "logs")


class HarborFault(enum.StrEnum):
    """Why a task can't be run (CA-D2)."""

    MISSING_FILE = "missing_file"
    MULTI_CONTAINER = "multi_container"
    UNSUPPORTED_DOCKERFILE = "unsupported_dockerfile"
    UNSUPPORTED_FILE = "unsupported_file"  # binary or too large
    UNSAFE_PATH = "unsafe_path"
    BAD_TASK_TOML = "bad_task_toml"
    BAD_GROUND_TRUTH = "bad_ground_truth"


class HarborError(DataError):
    """A task directory that is dropped, with its typed reason."""

    def __init__(self, fault: HarborFault, what: str, *, where: str | None = None) -> None:
        super().__init__(what, where=where, hint="the local backend runs single-container tasks of text files")
        self.fault = fault


class TerminalTruth(BaseModel):
    """Ground truth of a Coding Agent problem. `template` is a hosted sandbox's image, where the task has its own."""

    model_config = ConfigDict(frozen=True)

    workdir: str
    files: dict[str, str]
    tests: dict[str, str]
    template: str = ""
    verifier_timeout_seconds: float = Field(VERIFIER_TIMEOUT_SECONDS, gt=0, allow_inf_nan=False)


def read_terminal(truth: Mapping[str, Json]) -> TerminalTruth:
    """Raises HarborError for what is missing, for an unsafe path, and where there is no `test.sh`."""
    try:
        read = TerminalTruth.model_validate(truth)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(("ground_truth", *map(str, first["loc"])))
        raise HarborError(HarborFault.BAD_GROUND_TRUTH, f"{field}: {first['msg']}") from error
    if "test.sh" not in read.tests:
        raise HarborError(HarborFault.MISSING_FILE, "tests/test.sh is missing")
    for path in (*read.files, *read.tests):
        check_path(path)
    check_workdir(read.workdir)
    return read


def terminal_problem(
    instruction: str,
    files: Mapping[str, str],
    tests: Mapping[str, str],
    source: str,
    *,
    workdir: str = WORKDIR,
    family: str = FAMILY,
    **extra: Json,
) -> Problem:
    """A Coding Agent problem. `files` lie below `workdir` from the start, `tests` arrive when the episode is over.

    Raises HarborError for an unsafe path or a missing `test.sh`.
    """
    truth = {"workdir": workdir, "files": dict(files), "tests": dict(tests), **extra}
    read_terminal(truth)
    return Problem.build(family, source, [Message(role="user", content=instruction)], truth, [EXECUTE_COMMAND])


def read_harbor(folder: Path) -> Problem:
    """Read a task directory. Raises HarborError with the reason why it is dropped."""
    environment = folder / "environment"
    for name in _COMPOSE:
        if (folder / name).exists() or (environment / name).exists():
            raise HarborError(HarborFault.MULTI_CONTAINER, f"{name} asks for several containers", where=str(folder))
    instruction = _text(folder, "instruction.md")
    dockerfile = _text(folder, "environment/Dockerfile")
    tests = {path: _text(folder / "tests", path) for path in _walk(folder / "tests")}
    workdir, files = _replay(dockerfile, environment)
    metadata, extra = _task_toml(folder)
    if (folder / "solution" / "solve.sh").exists():
        extra["solution"] = _text(folder, "solution/solve.sh").removesuffix("\n")
    return terminal_problem(
        instruction=instruction.strip(),
        files=files,
        tests=tests,
        source=metadata.get("source", folder.name),
        family=metadata.get("family", FAMILY),
        workdir=workdir,
        **extra,
    )


def write_harbor(problem: Problem, folder: Path) -> None:
    """Write a terminal problem as a task directory that `read_harbor` turns into the same problem."""
    truth = problem.ground_truth
    dockerfile = f"FROM debian:bookworm-slim\nWORKDIR {truth['workdir']}\n" + (
        "COPY files/ ./\n" if truth["files"] else ""
    )
    contents = {
        "instruction.md": problem.prompt[-1].content + "\n",
        "environment/Dockerfile": dockerfile,
        **{f"environment/files/{path}": text for path, text in truth["files"].items()},
        **{f"tests/{path}": text for path, text in truth["tests"].items()},
    }
    if "solution" in truth:
        contents["solution/solve.sh"] = truth["solution"] + "\n"
    lines = ["[metadata]", f"family = {_quote(problem.family)}", f"source = {_quote(problem.source)}"]
    if "slips" in truth:
        lines.append(f"slips = [{', '.join(map(_quote, truth['slips']))}]")
    if "verifier_timeout_seconds" in truth:
        lines += ["", "[verifier]", f"timeout_sec = {float(truth['verifier_timeout_seconds'])}"]
    contents["task.toml"] = "\n".join(lines) + "\n"
    for path, text in contents.items():
        place = folder / check_path(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8", newline="")


def check_path(path: str) -> str:
    """A path that stays below its folder. Raises HarborError for an absolute one, one with `..`, or an odd one."""
    if not path or "\0" in path or path != posixpath.normpath(path) or path.startswith(("/", "..")) or path == ".":
        raise HarborError(HarborFault.UNSAFE_PATH, f"{path!r} does not stay below its folder")
    return path


def check_workdir(path: str) -> str:
    """An absolute working directory outside the system's own folders. Raises HarborError."""
    if not path.startswith("/") or path != posixpath.normpath(path) or path.split("/")[1] in ("", *_SYSTEM):
        raise HarborError(HarborFault.UNSUPPORTED_DOCKERFILE, f"WORKDIR {path!r} is not a folder of the task's own")
    return path


def _replay(dockerfile: str, context: Path) -> tuple[str, dict[str, str]]:
    """The final working directory and the files below it."""
    workdir = "/"
    placed: dict[str, str] = {}
    num_images = 0
    for instruction, arguments in _instructions(dockerfile):
        if instruction == "FROM" and num_images == 0:
            num_images = 1
        elif instruction == "WORKDIR" and len(arguments) == 1:
            workdir = posixpath.normpath(posixpath.join(workdir, arguments[0]))
        elif (
            instruction == "COPY" and len(arguments) > 1 and not any(part.startswith(("-", "<")) for part in arguments)
        ):
            placed |= _copy(arguments[:-1], posixpath.join(workdir, arguments[-1]), context)
        else:
            what = " ".join((instruction, *arguments))[:80]
            raise HarborError(
                HarborFault.UNSUPPORTED_DOCKERFILE, f"{what!r} can't be done", where=f"{context}/Dockerfile"
            )
    top = check_workdir(workdir) + "/"
    for path in placed:
        if not path.startswith(top):
            raise HarborError(HarborFault.UNSUPPORTED_DOCKERFILE, f"COPY to {path!r} outside {top}", where=str(context))
    return workdir, {path.removeprefix(top): text for path, text in placed.items()}


def _instructions(dockerfile: str) -> Iterator[tuple[str, list[str]]]:
    for line in dockerfile.replace("\\\n", " ").splitlines():
        if line.strip() and not line.lstrip().startswith("#"):
            name, _, rest = line.strip().partition(" ")
            try:
                arguments = json.loads(rest) if rest.lstrip().startswith("[") else shlex.split(rest)
            except ValueError:
                arguments = [rest]
            yield name.upper(), [str(argument) for argument in arguments]


def _copy(sources: Sequence[str], target: str, context: Path) -> dict[str, str]:
    into_folder = target.endswith("/") or posixpath.basename(target) == "." or len(sources) > 1
    target = posixpath.normpath(target)
    placed = {}
    for source in sources:
        name = posixpath.normpath(source.lstrip("/"))
        if name == ".":
            paths = {path: path for path in _walk(context) if path != "Dockerfile"}
        elif (context / check_path(name)).is_dir():
            paths = {f"{name}/{path}": path for path in _walk(context / name)}
        else:
            paths = {name: posixpath.basename(name) if into_folder else ""}
        for path, below in paths.items():
            placed[posixpath.join(target, below) if below else target] = _text(context, path)
    return placed


def _walk(folder: Path) -> list[str]:
    """All files below a folder, as sorted relative paths. Raises HarborError for a link."""
    found = []
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_symlink():
            raise HarborError(HarborFault.UNSAFE_PATH, "a link in a task directory", where=str(path))
        if path.is_file():
            found.append(path.relative_to(folder).as_posix())
    return found


def _text(folder: Path, name: str) -> str:
    path = folder / name
    if not path.resolve().is_relative_to(folder.resolve()) or path.is_symlink():
        raise HarborError(HarborFault.UNSAFE_PATH, "a link in a task directory", where=str(path))
    if not path.is_file():
        raise HarborError(HarborFault.MISSING_FILE, f"{name} is missing", where=str(folder))
    if path.stat().st_size > MAX_FILE_BYTES:
        raise HarborError(HarborFault.UNSUPPORTED_FILE, f"larger than {MAX_FILE_BYTES} bytes", where=str(path))
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise HarborError(HarborFault.UNSUPPORTED_FILE, "not a text file", where=str(path)) from error


def _task_toml(folder: Path) -> tuple[dict[str, str], dict[str, Json]]:
    """The metadata that names the problem, and what goes into its ground truth."""
    if not (folder / "task.toml").exists():
        return {}, {}
    try:
        document = tomllib.loads(_text(folder, "task.toml"))
        metadata = document.get("metadata", {})
        extra: dict[str, Json] = {"slips": list(metadata["slips"])} if "slips" in metadata else {}
        if "timeout_sec" in (verifier := document.get("verifier", {})):
            extra["verifier_timeout_seconds"] = float(verifier["timeout_sec"])
    except (tomllib.TOMLDecodeError, TypeError, ValueError, AttributeError) as error:
        raise HarborError(HarborFault.BAD_TASK_TOML, str(error), where=str(folder / "task.toml")) from error
    return {key: str(metadata[key]) for key in ("family", "source") if key in metadata}, extra


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)  # a JSON string is a TOML basic string
