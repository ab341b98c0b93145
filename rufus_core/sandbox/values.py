"""Plain values as bytes: what processes that don't trust each other hand over, without pickle.

Each value is a tag and, for what has a size, four big-endian bytes of length. A subclass is written as its base type,
read through that type's own methods, so that nothing a candidate overrides takes part. What is no plain value goes to
`other`, which returns bytes that stand for it or raises TypeError. Standard library only, without imports: sandboxes
load it too.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_CONSTANTS = {b"N": None, b"T": True, b"F": False}
_SEQUENCES: dict[bytes, Any] = {b"l": list, b"t": tuple, b"S": set, b"Z": frozenset}


def refuse(value: Any) -> Any:
    raise TypeError(f"{type(value).__name__} is no plain value")


def encode(value: Any, other: Callable[[Any], bytes] = refuse) -> bytes:
    """Raises TypeError for what is no plain value, RecursionError for what is nested too deep."""
    parts: list[bytes] = []
    _write(value, parts, other)
    return b"".join(parts)


def decode(data: bytes, other: Callable[[bytes], Any] = refuse, max_members: int | None = None) -> Any:
    """Read one value back. Raises ValueError, TypeError or RecursionError for what `encode` did not write.

    Args:
        max_members: at most so many members of sets and keys of dictionaries are hashed; a hostile value can have so
            many with equal hashes that building its set takes hours.
    """
    reader = _Reader(data, other, max_members)
    value = reader.value()
    if reader.place != len(data):
        raise ValueError("bytes follow the value")
    return value


def count_members(value: Any) -> int:
    """How many members of sets and keys of dictionaries a plain value has, at all depths. Equal values have as many."""
    if isinstance(value, dict):
        return len(value) + sum(count_members(key) + count_members(item) for key, item in value.items())
    own = len(value) if isinstance(value, set | frozenset) else 0
    inner = value if isinstance(value, list | tuple | set | frozenset) else ()
    return own + sum(map(count_members, inner))


def _write(value: Any, parts: list[bytes], other: Callable[[Any], bytes]) -> None:
    kind = type(value)  # `isinstance` would ask the value
    if value is None:
        parts.append(b"N")
    elif value is True or value is False:
        parts.append(b"T" if value else b"F")
    elif issubclass(kind, int):
        _sized(parts, b"i", int.to_bytes(value, int.bit_length(value) // 8 + 1, "big", signed=True))
    elif issubclass(kind, float):
        _sized(parts, b"f", float.hex(value).encode())
    elif issubclass(kind, complex):
        _sized(parts, b"c", complex.__repr__(value).encode())
    elif issubclass(kind, str):
        _sized(parts, b"s", str.encode(value, "utf-8", "surrogatepass"))
    elif issubclass(kind, bytes | bytearray):
        _sized(parts, b"b", bytes(memoryview(value)))
    elif issubclass(kind, dict):
        items = [*dict.items(value)]
        parts.append(b"d" + len(items).to_bytes(4, "big"))
        for key, item in items:
            _write(key, parts, other)
            _write(item, parts, other)
    else:
        for tag, base in _SEQUENCES.items():
            if issubclass(kind, base):
                members = [*base.__iter__(value)]
                parts.append(tag + len(members).to_bytes(4, "big"))
                for member in members:
                    _write(member, parts, other)
                return
        _sized(parts, b"o", other(value))


def _sized(parts: list[bytes], tag: bytes, data: bytes) -> None:
    parts.append(tag + len(data).to_bytes(4, "big") + data)


class _Reader:
    def __init__(self, data: bytes, other: Callable[[bytes], Any], max_members: int | None) -> None:
        self.data, self.place, self.other, self.left = data, 0, other, max_members

    def value(self) -> Any:
        tag = self._bytes(1)
        if tag in _CONSTANTS:
            return _CONSTANTS[tag]
        size = int.from_bytes(self._bytes(4), "big")
        if tag == b"d":
            self._count(size)
            return {self.value(): self.value() for _ in range(size)}
        if make := _SEQUENCES.get(tag):
            if tag in b"SZ":
                self._count(size)
            return make([self.value() for _ in range(size)])
        data = self._bytes(size)
        if tag == b"i":
            return int.from_bytes(data, "big", signed=True)
        if tag == b"f":
            return float.fromhex(data.decode())
        if tag == b"c":
            return complex(data.decode())
        if tag == b"s":
            return data.decode("utf-8", "surrogatepass")
        if tag == b"b":
            return data
        if tag == b"o":
            return self.other(data)
        raise ValueError(f"{tag!r} is no tag")

    def _bytes(self, size: int) -> bytes:
        data = self.data[self.place : self.place + size]
        if len(data) != size:
            raise ValueError("the value is cut short")
        self.place += size
        return data

    def _count(self, members: int) -> None:
        if self.left is not None:
            self.left -= members
            if self.left < 0:
                raise ValueError("more members than allowed")
