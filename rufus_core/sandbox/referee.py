"""Runs the tests of a program in a process that never executed it, and alone says which of them passed.

A test's statement sees the program's functions and classes as stand-ins: a call is sent to the program's process, and
its plain value, the exception it raised, or a stand-in for another object comes back. The program's process sees the
arguments of its calls, and neither the rest of the test nor the pipe that verdicts are written to.

Standard library only, as it is forked from a bare interpreter.
"""

from __future__ import annotations

import builtins
import marshal
import os

from rufus_core.sandbox.messages import read_message, write_all, write_message
from rufus_core.sandbox.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CALLS_FD, REPLIES_FD, VERDICTS_FD = 3, 4, 5


def judge(data: bytes, only: int) -> int:
    """Write a line for each test, or `only` for one, until the first that fails: `v HEX`, `p` or `e EXCEPTION`.

    The tests are (setup, [(kind, source, classes, names of the program)...]); kind "value" asks for a value in hex,
    which is compared outside, and "statement" passes here. `classes` are the test's own, defined in the program.
    """
    setup, tests = decode(data)
    program = Program()
    for kind, source, classes, names in tests if only < 0 else tests[only : only + 1]:
        try:
            if kind == "value":
                line = "v " + program.ask(b"value", source.encode("utf-8", "surrogatepass"))[0].hex()
            else:
                if classes:
                    program.ask(b"define", classes.encode("utf-8", "surrogatepass"))
                _run(program, setup, source, names)
                line = "p"
        except Exception as error:  # noqa: BLE001 - whatever is raised is a failed test
            line = "e " + type(error).__name__
        write_all(VERDICTS_FD, line.encode("ascii", "backslashreplace").replace(b"\n", b" ") + b"\n")
        if line.startswith("e"):
            break
    return 0


def _run(program: Program, setup: str, source: str, names: Sequence[str]) -> None:
    scope: dict[str, Any] = {"__name__": "__test__"}
    for name in names:
        try:  # noqa: SIM105 - contextlib is an import
            scope[name] = program.name(name)
        except KeyError:  # the test's own, or nobody's
            pass
    for part in (setup, source):
        exec(compile(part, "<test>", "exec", optimize=0), scope)  # noqa: S102


class Program:
    """The program's process, asked over two pipes."""

    def __init__(self) -> None:
        self.exceptions: dict[type, int] = {}  # stand-ins of exception classes, and their numbers
        self.raised: dict[int, type[Exception]] = {}

    def ask(self, *request: bytes) -> list[bytes]:
        """The answer's fields. Raises what the program raised; its end ends this process, whatever a test catches."""
        try:
            write_message(CALLS_FD, request)
            kind, *fields = read_message(REPLIES_FD)
        except (EOFError, OSError, ValueError):
            os._exit(0)
        if kind == b"value":
            return fields
        raised, args = decode(fields[0], self.read)
        raise raised(*args)

    def name(self, name: str) -> Any:
        return decode(self.ask(b"name", name.encode("utf-8", "surrogatepass"))[0], self.read)

    def call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        value, *changed = self.ask(b"call", encode((function, args, kwargs), self.write))
        for arg, after in zip(args, changed, strict=False):
            if after:
                _replace(arg, decode(after, self.read))
        return decode(value, self.read)

    def attribute(self, owner: Any, name: str) -> Any:
        return decode(self.ask(b"attribute", encode((owner, name), self.write))[0], self.read)

    def write(self, value: Any) -> bytes:
        """What stands for an argument that is no plain value: its number there, its code, or where to import it."""
        kind = type(value)
        if kind is StandIn:
            return encode(("kept", object.__getattribute__(value, "_number")))
        if isinstance(value, type) and value in self.exceptions:
            return encode(("kept", self.exceptions[value]))
        if kind is type(_run) and value.__module__ == "__test__":
            names = {name: value.__globals__.get(name) for name in value.__code__.co_names}
            used = {name: item for name, item in names.items() if item not in (None, value)}
            cells = tuple([cell.cell_contents for cell in value.__closure__ or ()])
            parts = ("function", marshal.dumps(value.__code__), used, value.__defaults__, cells)
            return encode(parts, self.write)
        if kind is type(os):
            return encode(("import", value.__name__))
        home = getattr(value, "__module__", None) or getattr(getattr(value, "__objclass__", None), "__module__", None)
        if callable(value) and home not in (None, "__test__"):
            return encode(("import", home, *value.__qualname__.split(".")))
        raise TypeError(f"a {kind.__name__} can't be handed to the program")

    def read(self, data: bytes) -> Any:
        number, *exception = decode(data)
        if not exception:
            return StandIn(self, number)
        name, base_name = exception
        base = getattr(builtins, base_name)
        if not (isinstance(base, type) and issubclass(base, Exception)):
            raise ValueError(f"{base_name} is no exception")
        raised = base if name == base_name else type(name, (base,), {"__module__": "program"})
        raised = self.raised.setdefault(number, raised)
        self.exceptions[raised] = number
        return raised


def _replace(arg: Any, after: Any) -> None:
    """Change a container in place to what the program's copy of it became."""
    if type(arg) is not type(after):
        raise ValueError("the program answers with another kind of argument")
    arg.clear()
    if isinstance(arg, list):
        arg.extend(after)
    else:
        arg.update(after)


def _special(name: str) -> Any:
    def forward(self: StandIn, *args: Any) -> Any:
        try:
            method = getattr(self, name)
        except AttributeError as error:  # as the interpreter says it of an object without the method
            raise TypeError(str(error)) from None
        return method(*args)

    return forward


class StandIn:
    """An object of the program's process: called, read and iterated there.

    It compares with nothing and is neither true nor false, as the program could answer what the test wants to hear.
    """

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        program: Program = object.__getattribute__(self, "_program")
        return program.call(self, args, kwargs)

    def __getattribute__(self, name: str) -> Any:
        program: Program = object.__getattribute__(self, "_program")
        return program.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        program: Program = object.__getattribute__(self, "_program")
        program.call(setattr, (self, name, value), {})

    __len__, __iter__, __next__ = _special("__len__"), _special("__iter__"), _special("__next__")
    __getitem__, __setitem__ = _special("__getitem__"), _special("__setitem__")
    __str__, __repr__ = _special("__str__"), _special("__repr__")

    def _refuse(self, *_: object) -> Any:
        raise TypeError("an object of the program is no plain value")

    __bool__ = __eq__ = __contains__ = __hash__ = _refuse
