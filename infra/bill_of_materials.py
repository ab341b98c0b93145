"""The bill of materials: what `requirements.lock` brings, under which licences, as CycloneDX.

    python -m infra.bill_of_materials FILE.json

Licences and what needs what are read from the installed packages, so it wants the environment that the lock describes.
There are no hashes of files, as there are none in the lock: torch's differ between a CPU and a GPU.
"""

from __future__ import annotations

import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path

import yaml
from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseAcknowledgement
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.spdx import is_expression, is_supported_id
from license_expression import LicenseExpression, get_spdx_licensing
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rufus_core.errors import DataError, RufusError

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements.lock"
PROJECT = "rufus-air"
_TERMS = yaml.safe_load((ROOT / "infra/licences.yaml").read_text(encoding="utf-8"))
_SPDX = get_spdx_licensing()


def locked(lock: Path = LOCK) -> dict[str, str]:
    """Version by name, names as indexes write them."""
    lines = (line.strip() for line in lock.read_text(encoding="utf-8").splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def licence_of(about: metadata.PackageMetadata) -> str | None:
    """The licence as an SPDX expression: as stated by us, else by the package's expression, words or classifiers."""
    if stated := _TERMS["stated"].get(canonicalize_name(about["Name"])):
        return str(stated)
    classifiers = [
        line.rsplit(" :: ", 1)[-1] for line in about.get_all("Classifier") or [] if line.startswith("License ::")
    ]
    said = [about.get("License-Expression"), about.get("License"), *classifiers]
    for words in filter(None, said):
        found = _TERMS["words"].get(words, words)
        if found in permitted() or is_supported_id(found) or is_expression(found):
            return str(found)
    return None


def permitted() -> set[str]:
    return {licence for group in _TERMS["permitted"].values() for licence in group}


def is_permitted(licence: str) -> bool:
    """Whether all that an expression demands together, or one of what it offers, is permitted."""
    return _holds(_SPDX.parse(licence))


def _holds(part: LicenseExpression) -> bool:
    if not part.args:
        return str(part) in permitted()
    held = [_holds(arg) for arg in part.args]
    return any(held) if part.operator.strip() == "OR" else all(held)


def needs(name: str, extras: Iterable[str] = ()) -> dict[str, set[str]]:
    """What an installed package requires on this machine, with some of its extras: names, and the extras of each."""
    found: dict[str, set[str]] = {}
    for requirement in map(Requirement, metadata.requires(name) or []):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            found.setdefault(canonicalize_name(requirement.name), set()).update(requirement.extras)
    return found


def default_install(versions: Mapping[str, str]) -> set[str]:
    """The locked packages that the project needs without its extras."""
    found: dict[str, set[str]] = {}
    ahead = needs(PROJECT)
    while ahead:
        name, extras = ahead.popitem()
        if name not in versions or (name in found and extras <= found[name]):
            continue
        found[name] = extras | found.get(name, set())
        for other, wanted in needs(name, found[name]).items():
            ahead.setdefault(other, set()).update(wanted)
    return set(found)


def bill(lock: Path = LOCK) -> Bom:
    """Every locked package as a component, required or optional, with what it needs of the others.

    Raises:
        DataError: a package isn't installed in the locked version, or says no licence that we can read.
    """
    versions = locked(lock)
    required = default_install(versions)
    factory = LicenseFactory()
    components = {}
    for name, version in versions.items():
        about = metadata.metadata(name)
        if about["Version"].partition("+")[0] != version:
            told = f"{name} is installed as {about['Version']}, the lock says {version}"
            raise DataError(told, where=lock.name, hint="make install")
        if (licence := licence_of(about)) is None:
            told = f"{name} says no licence that we can read"
            raise DataError(told, where=lock.name, hint="read it in the package, and state it in infra/licences.yaml")
        link = PackageURL("pypi", name=name, version=version)
        components[name] = Component(
            type=ComponentType.LIBRARY,
            name=about["Name"],
            version=version,
            bom_ref=str(link),
            purl=link,
            scope=ComponentScope.REQUIRED if name in required else ComponentScope.OPTIONAL,
            licenses=[factory.make_from_string(licence, license_acknowledgement=LicenseAcknowledgement.DECLARED)],
        )
    # The same lock has the same number; when a bill was written is its timestamp.
    bom = Bom(
        components=components.values(), serial_number=uuid.uuid5(uuid.NAMESPACE_URL, lock.read_text(encoding="utf-8"))
    )
    for name, component in components.items():
        bom.register_dependency(
            component, [components[other] for other in sorted(needs(name).keys() & versions.keys())]
        )
    bom.metadata.component = Component(type=ComponentType.APPLICATION, name=PROJECT, version=metadata.version(PROJECT))
    bom.register_dependency(
        bom.metadata.component, [components[name] for name in sorted(needs(PROJECT).keys() & versions.keys())]
    )
    return bom


def licences(lock: Path = LOCK) -> tuple[Counter[str], Counter[str]]:
    """How many packages of the default install have which licence, and of the rest of the lock."""
    versions = locked(lock)
    required = default_install(versions)
    found = {name: licence_of(metadata.metadata(name)) or "none" for name in versions}
    default = Counter(licence for name, licence in found.items() if name in required)
    return default, Counter(found.values()) - default


def main() -> None:
    place = Path(sys.argv[1])
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(JsonV1Dot6(bill()).output_as_string(indent=2) + "\n", encoding="utf-8")
    for title, counted in zip(("default install", "extras and development"), licences(), strict=True):
        print(f"{title}: {counted.total()} packages")
        print("".join(f"  {count:4}  {licence}\n" for licence, count in counted.most_common()), end="")


if __name__ == "__main__":
    try:
        main()
    except RufusError as error:
        sys.exit(f"error: {error}")
