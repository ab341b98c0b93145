"""The bill of materials: complete, valid CycloneDX, and every licence is one that is permitted."""

from __future__ import annotations

import json
import re
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.utils import canonicalize_name

from infra.bill_of_materials import LOCK, bill, default_install, is_permitted, licence_of, licences, locked
from rufus_core.errors import DataError

VALIDATOR = JsonStrictValidator(SchemaVersion.V1_6)


@pytest.fixture(scope="module")
def text() -> str:
    return JsonV1Dot6(bill()).output_as_string()


@pytest.fixture(scope="module")
def document(text: str) -> dict[str, Any]:
    return json.loads(text)


def test_the_published_schema_accepts_it(text: str) -> None:
    assert VALIDATOR.validate_str(text) is None


def test_the_published_schema_refuses_another_form(document: dict[str, Any]) -> None:
    broken = {**document, "components": [{**document["components"][0], "scope": "perhaps"}]}
    assert VALIDATOR.validate_str(json.dumps(broken)) is not None


def test_every_locked_package_is_in_it_with_a_licence(document: dict[str, Any]) -> None:
    listed = {canonicalize_name(part["name"]): part["version"] for part in document["components"]}
    assert listed == locked()
    assert all(part["licenses"] for part in document["components"])


def test_what_needs_what_is_in_it(document: dict[str, Any]) -> None:
    versions = locked()
    edges = {edge["ref"]: set(edge.get("dependsOn", [])) for edge in document["dependencies"]}
    names = {part["bom-ref"] for part in document["components"]}
    assert all(others <= names for others in edges.values())
    assert f"pkg:pypi/httpcore@{versions['httpcore']}" in edges[f"pkg:pypi/httpx@{versions['httpx']}"]


def test_the_same_lock_has_the_same_number(document: dict[str, Any]) -> None:
    assert document["serialNumber"] == bill().serial_number.urn


def test_the_default_install_is_what_the_project_needs_and_what_that_needs() -> None:
    default = default_install(locked())
    assert {"torch", "prefect", "mlflow", "starlette", "httpcore", "sqlalchemy"} <= default
    assert not {"pytest", "hypothesis", "moto", "ray", "trl", "import-linter"} & default


def licence(name: str) -> str:
    return licence_of(metadata.metadata(name)) or ""


def test_the_docs_name_what_is_not_wholly_permissive() -> None:
    section = (LOCK.parent / "docs/production.md").read_text().partition("## Licences")[2]
    named = set(re.findall(r"`([\w-]+)`", section.partition("default install MPL")[2]))
    strict = {name for name in default_install(locked()) if re.search("GPL|MPL", licence(name))}
    assert named == strict


def test_every_licence_is_permitted() -> None:
    default, rest = licences()
    assert not [licence for licence in (*default, *rest) if not is_permitted(licence)]


@pytest.mark.parametrize(
    ("licence", "permitted"),
    [
        ("MIT", True),
        ("GPL-3.0-or-later", False),
        ("AGPL-3.0-only", False),
        ("SSPL-1.0", False),
        ("BUSL-1.1", False),
        ("CC-BY-NC-4.0", False),
        ("none", False),
        ("MIT AND GPL-2.0-only", False),
        ("MIT OR GPL-2.0-only", True),
        ("MPL-2.0 AND (Apache-2.0 OR GPL-3.0-only)", True),
        ("MPL-2.0 AND (AGPL-3.0-only OR GPL-3.0-only)", False),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("GPL-2.0-only WITH Classpath-exception-2.0", False),
    ],
)
def test_what_is_listed_nowhere_is_refused(licence: str, permitted: bool) -> None:
    assert is_permitted(licence) is permitted


def package(name: str, *said: tuple[str, str]) -> Message:
    about = Message()
    about["Name"] = name
    for key, value in said:
        about[key] = value
    return about


@pytest.mark.parametrize(
    ("about", "licence"),
    [
        (package("a", ("License-Expression", "MIT OR Apache-2.0")), "MIT OR Apache-2.0"),
        (package("a", ("License", "Apache License 2.0")), "Apache-2.0"),
        (package("a", ("License", "Copyright (c) 2015\nAll rights reserved.")), None),
        (package("a", ("License", "Copyright"), ("Classifier", "License :: OSI Approved :: MIT License")), "MIT"),
        (package("a", ("Classifier", "License :: Other/Proprietary License")), None),
        (package("Text_Unidecode", ("License", "Artistic License")), "Artistic-1.0-Perl OR GPL-2.0-or-later"),
        (package("a"), None),
    ],
)
def test_a_licence_is_read_from_what_a_package_says(about: Message, licence: str | None) -> None:
    assert licence_of(about) == licence


def test_a_package_that_is_not_installed_as_locked_is_told(tmp_path: Path) -> None:
    other = tmp_path / "requirements.lock"
    other.write_text(LOCK.read_text().replace(f"httpx=={locked()['httpx']}", "httpx==0.0.1"))
    with pytest.raises(DataError, match=r"httpx is installed as .*, the lock says 0\.0\.1 \(make install\)"):
        bill(other)
