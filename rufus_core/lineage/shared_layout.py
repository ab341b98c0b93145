"""Where things lie in a shared root, and what is taken from there: pure, no input or output.

    files/<sha256[:2]>/<sha256>             bytes, by their own hash
    records/<name>/<fingerprint>.json       a record, exactly as its home wrote it; once it is there, it is published
    leases/<name>.<fp>/<token>.json         who makes an artifact; see `shared_lease`
    create-if-absent.json                   what a root is tried with before something is written to it

A name's slashes are dots; a fingerprint is cut to 16 digits.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from rufus_core.errors import ConfigError, LineageError
from rufus_core.lineage.digest import digest_files
from rufus_core.lineage.names import SHORT, artifact_label, check_fingerprint, slug
from rufus_core.lineage.record import Record, parse_record

RECORDS = "records"
LEASES = "leases"
PROBE = "create-if-absent.json"
_NOT_PLAIN = "@?"  # of a URL: where a user, a password or a signature would stand


def file_key(sha256: str) -> str:
    return f"files/{sha256[:2]}/{sha256}"


def record_key(name: str, fingerprint: str) -> str:
    return f"{RECORDS}/{slug(name)}/{check_fingerprint(fingerprint)[:SHORT]}.json"


def lease_folder(name: str, fingerprint: str) -> str:
    return f"{LEASES}/{artifact_label(name, fingerprint)}"


def lease_key(name: str, fingerprint: str, token: int) -> str:
    return f"{lease_folder(name, fingerprint)}/{token:08}.json"


def token_of(key: str) -> int:
    """The token that a lease's key tells; 0 for a key of another kind."""
    stem = PurePosixPath(key).stem
    return int(stem) if stem.isdecimal() else 0


def shared_record(raw: bytes, key: str, where: str) -> Record:
    """The record that stands at a key, if it belongs there.

    Args:
        where: the key's address, for errors.

    Raises:
        LineageError: it is none, was altered, is another artifact's, or lists files that would lie outside its folder.
    """
    aside = "move it out of the shared root; the next run that has the artifact shares it again"
    try:
        record = parse_record(raw, where)
    except LineageError as error:
        raise LineageError(error.what, where=where, hint=aside) from error
    if record_key(record.name, record.fingerprint) != key:
        raise LineageError(f"this record is that of {record.id}", where=where, hint=aside)
    outside = next((path for path in record.files if not _is_inside(path)), None)
    if outside is not None:
        raise LineageError(f"this record lists a file outside its artifact: {outside!r}", where=where, hint=aside)
    if digest_files(record.files) != record.digest:
        raise LineageError("this record's digest isn't that of the files it lists", where=where, hint=aside)
    return record


def check_url(url: str) -> str:
    """A root's URL without a slash at its end. Raises ConfigError for one without a protocol, or with a secret."""
    protocol, found, path = url.partition("://")
    if not found or not protocol.isalnum() or not path.strip("/"):
        raise ConfigError(
            f"{protocol if found else url!r} names no shared store",
            where="RUFUS_STORE or --store",
            hint="a URL such as s3://bucket/prefix or file:///mnt/shared/rufus",
        )
    if any(mark in path for mark in _NOT_PLAIN):
        raise ConfigError(
            "a store's URL is shown in messages, so it holds no user, password or signature",
            where="RUFUS_STORE or --store",
            hint="leave credentials to the environment: AWS_ACCESS_KEY_ID, AWS_PROFILE, a role",
        )
    return url.rstrip("/")


def _is_inside(path: str) -> bool:
    parts = PurePosixPath(path).parts
    return bool(parts) and not path.startswith("/") and ".." not in parts and str(PurePosixPath(*parts)) == path
