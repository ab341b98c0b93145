"""Container images: the stack of Table 15, pinned in one place, and locks that agree with what the tests run on."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rufus_core.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "infra/images"
CONTAINERFILES = sorted(IMAGES.glob("*.Containerfile"))
LOCKS = sorted(IMAGES.glob("*.lock"))
# Where an image's environment has another version than requirements.lock, and may: Strands Agents' pin of Table 15.
OTHERWISE = {"agents.lock": {"strands-agents", "mcp"}}

containerfiles = pytest.mark.parametrize("file", CONTAINERFILES, ids=lambda file: file.name)
locks = pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.name)


def pins() -> dict[str, str]:
    lines = (IMAGES / "pins.env").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def locked(file: Path) -> dict[str, str]:
    lines = [line for line in file.read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.+!-]+", line) for line in lines), file
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def instructions(file: Path) -> list[tuple[str, str]]:
    """Each instruction of a Containerfile with its arguments, continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in text.splitlines() if line.strip()]


def test_the_pins_are_the_recipes_INF_01() -> None:
    pinned = pins()
    cuda, pytorch = pinned.pop("CUDA"), pinned.pop("PYTORCH")
    as_printed = {name.lower(): version for name, version in pinned.items()} | {"pytorch": f"{pytorch} ({cuda})"}
    assert as_printed == load_recipe(profile="h200").pins


def test_the_gpu_image_takes_every_version_from_the_pins() -> None:
    text = (IMAGES / "gpu.Containerfile").read_text()
    arguments = {
        name for key, names in instructions(IMAGES / "gpu.Containerfile") if key == "ARG" for name in names.split()
    }
    assert arguments == {*pins(), "TORCH_INDEX"}
    assert all(f"${name}" in text for name in arguments)
    written = set(re.findall(r"(?<![\w.])[\w.]+(?![\w.])", text))
    assert not written & set(pins().values())


def test_the_gpu_image_is_built_on_the_cuda_of_its_torch_INF_01() -> None:
    bases = [arguments for key, arguments in instructions(IMAGES / "gpu.Containerfile") if key == "FROM"]
    cuda = {re.search(r"cuda:(\d+)\.(\d+)", base).groups() for base in bases}  # type: ignore[union-attr]
    assert {f"cu{major}{minor}" for major, minor in cuda} == {pins()["CUDA"]}


def test_transformer_engine_is_locked_at_its_pin_INF_01() -> None:
    versions = locked(IMAGES / "gpu.lock")
    parts = {name for name in versions if name.startswith("transformer-engine")}
    assert {versions[name] for name in parts} == {pins()["TRANSFORMER_ENGINE"]}
    assert len(parts) == 3


def test_strands_agents_is_locked_at_its_pin_INF_01() -> None:
    assert locked(IMAGES / "agents.lock")["strands-agents"] == pins()["STRANDS_AGENTS"]


@locks
def test_an_image_runs_the_versions_that_the_tests_run_on(file: Path) -> None:
    tested = locked(ROOT / "requirements.lock")
    here = locked(file)
    different = {name for name in tested.keys() & here.keys() if tested[name] != here[name]}
    assert different == OTHERWISE.get(file.name, set())


def test_the_gpu_image_has_all_that_the_project_requires() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in ("s3", "e2b", "ray") for line in project["optional-dependencies"][extra]),
    ]
    versions = locked(IMAGES / "gpu.lock")
    for requirement in map(Requirement, wanted):
        if requirement.name != "torch":  # its own line: the build differs between CUDA versions
            assert requirement.specifier.contains(versions[canonicalize_name(requirement.name)]), requirement


def test_no_lock_holds_torch_or_the_cuda_it_brings() -> None:
    for file in LOCKS:
        assert not [name for name in locked(file) if name in {"torch", "triton"} or name.startswith("nvidia-")]


@containerfiles
def test_an_image_is_built_on_a_stated_version_and_runs_as_nobody_special(file: Path) -> None:
    steps = instructions(file)
    bases = [arguments.split()[0] for key, arguments in steps if key == "FROM"]
    assert all(re.search(r":\d[\w.-]*$", base) for base in bases)
    last_stage = steps[max(i for i, (key, _) in enumerate(steps) if key == "FROM") :]
    users = [arguments for key, arguments in last_stage if key == "USER"]
    assert users
    assert int(users[-1].split(":")[0]) >= 10000


@containerfiles
def test_an_image_copies_what_exists(file: Path) -> None:
    for key, arguments in instructions(file):
        if key == "COPY" and "--from=" not in arguments:
            sources = [word for word in arguments.split() if not word.startswith("--")][:-1]
            assert all((ROOT / source).exists() for source in sources), arguments


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A repository of two commits; the pinned one is the first."""
    folder = tmp_path / "upstream"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for text in ("one\n", "two\n"):
        (folder / "a.txt").write_text(text)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "--message", text)
    return folder


def fetch(folder: Path, upstream: Path, commit: str) -> subprocess.CompletedProcess[str]:
    command = [str(IMAGES / "source.sh"), "tool", upstream.as_uri(), commit]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_a_source_is_its_commit_with_the_patches_on_top(tmp_path: Path, upstream: Path) -> None:
    first = git(upstream, "rev-parse", "HEAD~1")
    patches = tmp_path / "build/patches/tool"
    patches.mkdir(parents=True)
    (patches / "0001-say-three.patch").write_text("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+three\n")
    done = fetch(tmp_path / "build", upstream, first[:7])
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build/tool/a.txt").read_text() == "three\n"
    told = (tmp_path / "build/commits").read_text().splitlines()
    assert told[0] == f"tool {first}"
    assert re.fullmatch(r"tool [0-9a-f]{64} 0001-say-three\.patch", told[1])


def test_a_patch_that_does_not_fit_ends_the_build(tmp_path: Path, upstream: Path) -> None:
    patches = tmp_path / "patches/tool"
    patches.mkdir(parents=True)
    (patches / "0001-stale.patch").write_text("--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-zero\n+three\n")
    assert fetch(tmp_path, upstream, git(upstream, "rev-parse", "HEAD")).returncode != 0


def test_a_commit_that_is_not_there_ends_the_build(tmp_path: Path, upstream: Path) -> None:
    assert fetch(tmp_path, upstream, "0" * 40).returncode != 0
