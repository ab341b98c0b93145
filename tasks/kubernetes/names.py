"""What a job is called in the cluster: the same for whoever asks, so that a retry finds what lives."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

JOB_LABEL = "rufus-air/job"
FOLDER_ANNOTATION = "rufus-air/folder"
_WORD_CHARACTERS = 24
_DIGEST_CHARACTERS = 12


def object_name(folder: Path, attempt: int) -> str:
    """A DNS-1123 label of 47 characters at most, which is what KubeRay takes, for this attempt of a job's folder.

    The folder's last name is there to be read; the digest is of its whole path, since two homes run steps of one name.
    """
    words = re.sub(r"[^a-z0-9]+", "-", folder.name.lower())[:_WORD_CHARACTERS].strip("-")
    digest = hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return "-".join(part for part in ("r", words, digest, str(attempt)) if part)
