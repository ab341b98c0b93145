"""Messages as a sandbox reads and writes them: lists of byte fields, all lengths in four big-endian bytes.

A field that untrusted code may not find in the memory that it inherits (an expected value, another program's source) is
moved from the pipe into a nameless file by the kernel, without passing through the process. Standard library only.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_PARTS = 1024  # of one writev(2)


def read_exactly(fd: int, size: int) -> bytes:
    """Raises EOFError at the end of the stream."""
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def write_all(fd: int, data: bytes) -> None:
    write_parts(fd, [data])


def write_parts(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write one after the other, straight from where they lie: nothing of them stays in this process's heap."""
    left = [memoryview(part) for part in reversed(parts)]
    while left:
        written = os.writev(fd, left[: -_MOST_PARTS - 1 : -1])
        while left and written >= len(left[-1]):
            written -= len(left.pop())
        if left:
            left[-1] = left[-1][written:]


def packed(fields: Sequence[bytes]) -> bytes:
    return len(fields).to_bytes(4, "big") + b"".join(len(f).to_bytes(4, "big") + f for f in fields)


def unpacked(data: bytes) -> list[bytes]:
    """The fields of a message that is there as a whole. Raises ValueError where it is none."""
    fields: list[bytes] = []
    place = 4
    for _ in range(int.from_bytes(data[:4], "big")):
        size = int.from_bytes(data[place : place + 4], "big")
        fields.append(data[place + 4 : place + 4 + size])
        place += 4 + size
        if place > len(data):
            raise ValueError("the message ends early")
    if place != len(data):
        raise ValueError("the message has no end")
    return fields


def write_message(fd: int, fields: Sequence[bytes | memoryview]) -> None:
    parts: list[bytes | memoryview] = [len(fields).to_bytes(4, "big")]
    for field in fields:
        parts += [len(field).to_bytes(4, "big"), field]
    write_parts(fd, parts)


def read_message(fd: int) -> list[bytes]:
    return Message(fd).rest()


class Message:
    """One message that is being read, field by field, in order."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.left = self._number()

    def take(self) -> bytes:
        size = self._next()
        return read_exactly(self.fd, size)

    def rest(self) -> list[bytes]:
        return [self.take() for _ in range(self.left)]

    def move(self, folder: str) -> int:
        """The next field as a file without a name, which lies in a memory file system, positioned at its start."""
        size = self._next()
        file = os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
        while size:
            moved = os.splice(self.fd, file, min(size, 1 << 20))
            if not moved:
                raise EOFError
            size -= moved
        os.lseek(file, 0, os.SEEK_SET)
        return file

    def _next(self) -> int:
        self.left -= 1
        return self._number()

    def _number(self) -> int:
        return int.from_bytes(read_exactly(self.fd, 4), "big")


def content(file: int) -> bytes:
    """All of a file, wherever it is positioned."""
    data = bytearray()
    while chunk := os.pread(file, 1 << 20, len(data)):
        data += chunk
    return bytes(data)
