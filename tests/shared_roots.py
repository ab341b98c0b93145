"""Shared roots for tests: a folder, and a bucket of a real server that speaks S3."""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "rufus",
    "AWS_SECRET_ACCESS_KEY": "a-secret-that-nobody-may-see",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


def on_host(name: str) -> None:
    """Let this process believe that its host is called so."""
    real = platform.uname()
    here = platform.uname_result(real.system, name, real.release, real.version, real.machine)
    platform.uname = lambda: here


class S3Server:
    """A `moto_server` of our own on one port of 127.0.0.1. It forgets everything when it is stopped."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(Path(sys.executable).with_name("moto_server")), "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **ENVIRONMENT}
        )
        while True:
            assert self._process.poll() is None, "moto_server ended"
            try:
                httpx.get(f"{self.url}/moto-api/")
                return
            except httpx.TransportError:
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def bucket(self) -> str:
        """A new bucket's name."""
        name = f"bucket-{uuid.uuid4().hex[:8]}"
        self.make(name)
        return name

    def make(self, bucket: str) -> None:
        httpx.put(f"{self.url}/{bucket}").raise_for_status()


class Place:
    """A shared root, and its bytes as somebody else would get at them."""

    def __init__(self, url: str) -> None:
        import fsspec

        self.url = url
        self._files, self._path = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)

    def listed(self) -> list[str]:
        return sorted(path.removeprefix(f"{self._path}/") for path in self._files.find(self._path))

    def read(self, key: str) -> bytes:
        return self._files.cat_file(f"{self._path}/{key}")

    def write(self, key: str, data: bytes) -> None:
        self._files.makedirs(f"{self._path}/{key}".rpartition("/")[0], exist_ok=True)
        self._files.pipe_file(f"{self._path}/{key}", data)

    def delete(self, key: str) -> None:
        self._files.rm_file(f"{self._path}/{key}")

    def flip(self, key: str) -> None:
        data = self.read(key)
        self.write(key, bytes([data[0] ^ 1]) + data[1:])


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": s3_server.url}.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty root of each kind."""
    if request.param == "file":
        folder = tmp_path / "shared"
        folder.mkdir()
        return Place(folder.as_uri())
    return Place(f"s3://{request.getfixturevalue('s3').bucket()}/team/rufus")
