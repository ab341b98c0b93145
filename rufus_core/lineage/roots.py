"""Roots: the few things that a shared store asks of a place that keeps bytes by key, and two kinds of such places.

A key, once it can be read, holds all of its bytes. Of several that create one key at once, one succeeds.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from rufus_core.errors import ConfigError, InfrastructureError
from rufus_core.lineage.files import sync
from rufus_core.lineage.shared_layout import check_url

TRIES = 3  # of each request, beside those of the library below
WAIT_SECONDS = 0.5  # before the second try; doubled before each further one
_CHUNK_BYTES = 16 * 2**20
_EXTRAS = {"s3": "rufus-air[s3]"}  # what to install for a protocol
_FOREIGN = (("botocore.exceptions", "BotoCoreError"), ("aiohttp", "ClientError"))  # errors that are no OSError
_FINAL = (FileNotFoundError, FileExistsError, PermissionError)
_FINAL_NAMES = ("NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "NoRegionError")
_GO_ON = "nothing published is lost; when it answers again, the same command goes on"

Result = TypeVar("Result")


class Root(Protocol):
    """Keys are words joined by `/`. Every method raises InfrastructureError, naming the URL, where the root fails."""

    url: str

    def read(self, key: str) -> bytes | None: ...

    def read_all(self, keys: Iterable[str]) -> Mapping[str, bytes]: ...

    def chunks(self, key: str) -> Iterator[bytes]:
        """A key's bytes, piece by piece. Raises FileNotFoundError where it isn't there."""
        ...

    def size(self, key: str) -> int | None: ...

    def keys(self, folder: str) -> list[str]:
        """Keys below a folder. One that was written a moment ago may lack."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a key that isn't there; False if it is, unless it holds these very bytes."""
        ...

    def write(self, key: str, data: bytes) -> None: ...

    def put(self, key: str, file: Path) -> None: ...


def open_root(url: str) -> Root:
    """The root at a URL: a folder for `file://`, a bucket for `s3://`, else what fsspec knows by that protocol.

    Raises:
        ConfigError: the URL is none, holds a secret, or is of a protocol that isn't installed.
    """
    url = check_url(url)
    protocol, _, path = url.partition("://")
    if protocol == "file":
        return FolderRoot(url, Path(unquote(path)))
    if protocol == "s3":
        from rufus_core.lineage.s3_root import S3Root

        return S3Root(url)
    return BucketRoot(url)


class FolderRoot:
    """A folder that several machines mount. It must be there: an empty mount point is no store."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self._folder = url, folder

    def read(self, key: str) -> bytes | None:
        with self._told():
            try:
                return (self._there() / key).read_bytes()
            except FileNotFoundError:
                return None

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        return {key: data for key in keys if (data := self.read(key)) is not None}

    def chunks(self, key: str) -> Iterator[bytes]:
        with self._told(), (self._there() / key).open("rb") as stream:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk

    def size(self, key: str) -> int | None:
        with self._told():
            try:
                return (self._there() / key).stat().st_size
            except FileNotFoundError:
                return None

    def keys(self, folder: str) -> list[str]:
        with self._told():
            found = [path for path in (self._there() / folder).rglob("*") if path.is_file()]
        return sorted(path.relative_to(self._folder).as_posix() for path in found if not path.name.startswith("."))

    def create(self, key: str, data: bytes) -> bool:
        with self._told(), self._aside(key) as (partial, place):
            partial.write_bytes(data)
            sync(partial)
            try:
                os.link(partial, place)  # unlike a rename, it takes no one's place
            except FileExistsError:
                return place.read_bytes() == data
            sync(place.parent)
            return True

    def write(self, key: str, data: bytes) -> None:
        with self._told(), self._aside(key) as (partial, place):
            partial.write_bytes(data)
            sync(partial)
            partial.replace(place)

    def put(self, key: str, file: Path) -> None:
        with self._told(), self._aside(key) as (partial, place):
            shutil.copyfile(file, partial)
            sync(partial)
            partial.replace(place)
            sync(place.parent)

    def _there(self) -> Path:
        if not self._folder.is_dir():
            raise InfrastructureError(
                "this shared store isn't there", where=self.url, hint=f"mount it, or make the folder {self._folder}"
            )
        return self._folder

    @contextmanager
    def _aside(self, key: str) -> Iterator[tuple[Path, Path]]:
        place = self._there() / key
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".{place.name}.{uuid.uuid4().hex[:8]}.partial")
        try:
            yield partial, place
        finally:
            partial.unlink(missing_ok=True)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            hint = "free some space there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else _GO_ON
            raise InfrastructureError(
                f"this shared store failed: {error.strerror or error}", where=self.url, hint=hint
            ) from error


class BucketRoot:
    """Any file system of fsspec whose keys come to be whole and that creates one only where none is, as S3 does."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        protocol, _, self._path = url.partition("://")
        try:
            # Without fsspec's caches: other machines write here too.
            self._files: Any = fsspec.filesystem(protocol, use_listings_cache=False, skip_instance_cache=True)
        except (ImportError, ValueError, TypeError) as error:  # the last from one that needs more than a URL
            extra = _EXTRAS.get(protocol)
            raise ConfigError(
                f"nothing here can read {protocol}://",
                where=url,
                hint=f"pip install '{extra}'" if extra else f"fsspec says: {error}",
            ) from error

    def read(self, key: str) -> bytes | None:
        try:
            return self._asked(lambda: bytes(self._files.cat_file(self._at(key))))
        except FileNotFoundError:
            return None

    def read_all(self, keys: Iterable[str]) -> dict[str, bytes]:
        by_path = {self._at(key): key for key in keys}
        if not by_path:
            return {}
        found: Mapping[str, bytes] = self._asked(lambda: self._files.cat(list(by_path), on_error="omit"))
        return {by_path[path.lstrip("/")]: data for path, data in found.items()}

    def chunks(self, key: str) -> Iterator[bytes]:
        stream = self._asked(lambda: self._files.open(self._at(key), "rb", block_size=_CHUNK_BYTES))
        with stream:
            while chunk := self._asked(lambda: stream.read(_CHUNK_BYTES)):
                yield chunk

    def size(self, key: str) -> int | None:
        try:
            return self._asked(lambda: int(self._files.info(self._at(key))["size"]))
        except FileNotFoundError:
            return None

    def keys(self, folder: str) -> list[str]:
        try:
            found = self._asked(lambda: self._files.find(self._at(folder)))
        except FileNotFoundError as error:
            raise self._gone() from error
        return sorted(path.lstrip("/").removeprefix(f"{self._path}/") for path in found)

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._write(lambda: self._files.pipe_file(self._at(key), data, mode="create"))
        except FileExistsError:
            return self.read(key) == data  # also where the first of two tries came through, and no answer to it
        return True

    def write(self, key: str, data: bytes) -> None:
        self._write(lambda: self._files.pipe_file(self._at(key), data))

    def put(self, key: str, file: Path) -> None:
        self._write(lambda: self._files.put_file(str(file), self._at(key)))

    def _at(self, key: str) -> str:
        return f"{self._path}/{key}"

    def _write(self, ask: Callable[[], object]) -> None:
        try:
            self._asked(ask)
        except FileNotFoundError as error:
            raise self._gone() from error

    def _gone(self) -> InfrastructureError:
        bucket = self._path.partition("/")[0]
        return InfrastructureError(f"there is no {bucket!r}", where=self.url, hint="make the bucket, or name another")

    def _asked(self, ask: Callable[[], Result]) -> Result:
        """What the file system answers, asked again a few times where it fails.

        Raises FileNotFoundError and FileExistsError as they come, which are answers.
        """
        import tenacity

        retrying = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES),
            wait=tenacity.wait_exponential(multiplier=WAIT_SECONDS),
            retry=tenacity.retry_if_exception(_is_transient),
            reraise=True,
        )
        try:
            return retrying(ask)
        except (FileNotFoundError, FileExistsError):
            raise
        except _failures() as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> InfrastructureError:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        if isinstance(error, PermissionError) or type(error).__name__ in _FINAL_NAMES:
            hint = "its credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_PROFILE, a role)"
            return InfrastructureError(f"this shared store lets nobody in like this: {why}", where=self.url, hint=hint)
        return InfrastructureError(f"this shared store doesn't answer: {why}", where=self.url, hint=_GO_ON)


def _failures() -> tuple[type[Exception], ...]:
    """What a file system raises; a module that wasn't imported raised nothing."""
    return (OSError, *(getattr(sys.modules[module], name) for module, name in _FOREIGN if module in sys.modules))


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, _failures()) and not isinstance(error, _FINAL) and type(error).__name__ not in _FINAL_NAMES
