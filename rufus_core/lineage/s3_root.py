"""A bucket of S3: big files go there in parts, so that an upload that was killed goes on.

An open upload of a key is found again by whoever puts the same file, of this host or another. What it holds is taken
for sent where its hash is that of the file's part. So two that put one file at once share the work, and the first to
end it ends it for both.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from rufus_core.errors import InfrastructureError
from rufus_core.lineage.roots import BucketRoot

PART_BYTES = 32 * 2**20
MOST_PARTS = 10_000  # S3's limit
SENT_AT_ONCE = 4
UPLOADS = 3  # begun for one file, where others end or abort them meanwhile
ABANDONED = timedelta(days=7)  # an upload that is older is aborted: nobody goes on with it, and its parts cost

Answer = dict[str, Any]


class S3Root(BucketRoot):
    """Every upload carries the SHA-256 of its bytes, which the server compares."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._bucket, _, self._prefix = self._path.partition("/")
        self._swept = False

    def put(self, key: str, file: Path) -> None:
        size = file.stat().st_size
        if size <= PART_BYTES:
            data = file.read_bytes()
            self._write(lambda: self._files.pipe_file(self._at(key), data, ChecksumSHA256=_sha256(data)))
            return
        if not self._swept:
            self._abort_abandoned(besides=key)
            self._swept = True
        for _ in range(UPLOADS):
            if self._put_in_parts(key, file, size):
                return
        raise InfrastructureError(
            f"{UPLOADS} uploads of {key} went away before their ends",
            where=self.url,
            hint="does a rule of the bucket abort uploads too early? Else run the same command again",
        )

    def _put_in_parts(self, key: str, file: Path, size: int) -> bool:
        """Put a file by the newest upload of its key that is open, or by one of our own; False if that went away."""
        upload = self._open_upload(key)
        length = max(PART_BYTES, -(-size // MOST_PARTS))

        def send(number: int) -> Answer:
            with file.open("rb") as stream:
                stream.seek((number - 1) * length)
                data = stream.read(length)
            part = {"PartNumber": number, "ChecksumSHA256": _sha256(data)}
            if _holds(there.get(number), data):
                return {**part, "ETag": there[number]["ETag"]}
            return {**part, "ETag": self._call("upload_part", **upload, **part, Body=data)["ETag"]}

        try:
            there = {part["PartNumber"]: part for part in self._parts(upload)}
            with ThreadPoolExecutor(SENT_AT_ONCE) as pool:
                parts = list(pool.map(send, range(1, -(-size // length) + 1)))
            self._call("complete_multipart_upload", **upload, MultipartUpload={"Parts": parts})
        except (FileNotFoundError, InfrastructureError) as error:
            # It was ended or aborted, perhaps by the first try of a request to end it, whose answer was lost.
            if self.size(key) != size:
                if isinstance(error, InfrastructureError):
                    raise
                return False
        for other in self._uploads(key):
            self._abort(other)
        return True

    def _open_upload(self, key: str) -> Answer:
        """The words that name an upload in every request about it."""
        found = sorted(self._uploads(key), key=lambda upload: upload["Initiated"])
        name = {"Bucket": self._bucket, "Key": self._key(key)}
        upload = found[-1] if found else self._call("create_multipart_upload", **name, ChecksumAlgorithm="SHA256")
        return {**name, "UploadId": upload["UploadId"]}

    def _uploads(self, key: str) -> list[Answer]:
        return [upload for upload, _ in self._listed(self._key(key)) if upload["Key"] == self._key(key)]

    def _abort_abandoned(self, besides: str) -> None:
        """Abort old uploads of this root. Their age is told by the server's clock."""
        for upload, now in self._listed(f"{self._prefix}/" if self._prefix else ""):
            if now - upload["Initiated"] > ABANDONED and upload["Key"] != self._key(besides):
                self._abort(upload)

    def _abort(self, upload: Answer) -> None:
        try:
            self._call("abort_multipart_upload", Bucket=self._bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except FileNotFoundError:
            return  # somebody else did, or ended it

    def _listed(self, prefix: str) -> Iterator[tuple[Answer, Any]]:
        """Open uploads, and the server's time."""
        after: Answer = {}
        while True:
            try:
                page = self._call("list_multipart_uploads", Bucket=self._bucket, Prefix=prefix, **after)
            except FileNotFoundError as error:
                raise self._gone() from error
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            yield from ((upload, now) for upload in page.get("Uploads") or ())
            if not page.get("IsTruncated"):
                return
            after = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}

    def _parts(self, upload: Answer) -> Iterator[Answer]:
        after: Answer = {}
        while True:
            page = self._call("list_parts", **upload, **after)
            yield from page.get("Parts") or ()
            if not page.get("IsTruncated"):
                return
            after = {"PartNumberMarker": page["NextPartNumberMarker"]}

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    def _call(self, method: str, **words: Any) -> Answer:
        answer: Answer = self._asked(lambda: self._files.call_s3(method, **words))
        return answer


def _sha256(data: bytes) -> str:
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def _holds(part: Answer | None, data: bytes) -> bool:
    """Whether a part that is there holds these bytes. Servers that list no SHA-256 have the MD5 for its ETag."""
    if part is None or part["Size"] != len(data):
        return False
    if "ChecksumSHA256" in part:
        return bool(part["ChecksumSHA256"] == _sha256(data))
    return bool(part["ETag"].strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest())
