"""Artifacts, their records, and the way from a checkpoint back to its data."""

from rufus_core.lineage.attempt import Attempt
from rufus_core.lineage.cache import HashCache
from rufus_core.lineage.canonical import canonical_json, fingerprint
from rufus_core.lineage.digest import Digest, FileChange, FileEntry, digest_tree
from rufus_core.lineage.external import external_file
from rufus_core.lineage.files import told_plainly
from rufus_core.lineage.home import rufus_home, store_root
from rufus_core.lineage.provenance import collect_provenance
from rufus_core.lineage.record import (
    Candidate,
    Decision,
    Draft,
    ExternalFile,
    Input,
    Provenance,
    Record,
    Timings,
)
from rufus_core.lineage.resolve import Ref, checkpoint_name, training_name
from rufus_core.lineage.store import Listing, Store
from rufus_core.lineage.trace import Edge, Node, Trace, trace

__all__ = [
    "Attempt",
    "Candidate",
    "Decision",
    "Digest",
    "Draft",
    "Edge",
    "ExternalFile",
    "FileChange",
    "FileEntry",
    "HashCache",
    "Input",
    "Listing",
    "Node",
    "Provenance",
    "Record",
    "Ref",
    "Store",
    "Timings",
    "Trace",
    "canonical_json",
    "checkpoint_name",
    "collect_provenance",
    "digest_tree",
    "external_file",
    "fingerprint",
    "rufus_home",
    "store_root",
    "told_plainly",
    "trace",
    "training_name",
]
