"""The manifests of `infra/kubernetes` as dictionaries, and who reaches whom by their network policies."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

FOLDER = Path(__file__).parents[2] / "infra/kubernetes"
POD_ADDRESS = "10.1.2.3"  # clusters give pods private addresses
FILES = sorted([*FOLDER.glob("base/*.yaml"), *FOLDER.glob("components/*/*.yaml")])


def documents(text: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all(text) if document]


def written() -> list[Manifest]:
    """Every manifest as it is written, of the base and of all components."""
    found = [document for file in FILES for document in documents(file.read_text())]
    return [document for document in found if "kustomize" not in document["apiVersion"]]


def name_of(manifest: Manifest) -> str:
    place = manifest["metadata"].get("namespace", "")
    return f"{manifest['kind']}/{place}/{manifest['metadata']['name']}"


def pod_templates(manifest: Manifest) -> Iterator[Manifest]:
    """The pod templates inside a workload."""
    spec = manifest.get("spec", {})
    if manifest["kind"] in {"Deployment", "StatefulSet", "Job"}:
        yield spec["template"]
    elif manifest["kind"] == "RayCluster":
        yield spec["headGroupSpec"]["template"]
        yield from (group["template"] for group in spec["workerGroupSpecs"])


def selects(selector: Manifest, labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in expressions), "the tests know no other operator"
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        labels.get(expression["key"]) in expression["values"] for expression in expressions
    )


def reaches(
    policies: list[Manifest], source: Manifest, target: Manifest | str, port: int, protocol: str = "TCP"
) -> bool:
    """Whether a pod may open a connection.

    Args:
        policies: every NetworkPolicy there is.
        source: `{namespace, labels}` of the pod that asks.
        target: the same of the one that is asked, or the address of something that is no pod.
    """
    out = [policy for policy in policies if _is_about(policy, source, "Egress")]
    if out and not any(
        _allows(rule, "to", policy, target, port, protocol)
        for policy in out
        for rule in policy["spec"].get("egress", [])
    ):
        return False
    if isinstance(target, str):
        return True
    into = [policy for policy in policies if _is_about(policy, target, "Ingress")]
    return not into or any(
        _allows(rule, "from", policy, source, port, protocol)
        for policy in into
        for rule in policy["spec"].get("ingress", [])
    )


def _is_about(policy: Manifest, pod: Manifest, direction: str) -> bool:
    spec = policy["spec"]
    here = policy["metadata"]["namespace"] == pod["namespace"]
    return here and direction in spec["policyTypes"] and selects(spec["podSelector"], pod["labels"])


def _allows(rule: Manifest, key: str, policy: Manifest, peer: Manifest | str, port: int, protocol: str) -> bool:
    ports = rule.get("ports")
    if ports is not None and not any(entry["port"] == port and entry["protocol"] == protocol for entry in ports):
        return False
    peers = rule.get(key)
    return peers is None or any(_is_peer(entry, policy["metadata"]["namespace"], peer) for entry in peers)


def _is_peer(entry: Manifest, home: str, peer: Manifest | str) -> bool:
    if isinstance(peer, str):
        block, address = entry.get("ipBlock"), ipaddress.ip_address(peer)
        return block is not None and _holds(block, address)
    if "ipBlock" in entry:  # a pod's address may lie in a block: count it as reached, where nothing takes it out
        return _holds(entry["ipBlock"], ipaddress.ip_address(POD_ADDRESS))
    spaces = entry.get("namespaceSelector")
    there = (
        home == peer["namespace"]
        if spaces is None
        else selects(spaces, {"kubernetes.io/metadata.name": peer["namespace"]})
    )
    return there and selects(entry.get("podSelector", {}), peer["labels"])


def _holds(block: Manifest, address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    inside = address in ipaddress.ip_network(block["cidr"])
    return inside and not any(address in ipaddress.ip_network(taken) for taken in block.get("except", []))
