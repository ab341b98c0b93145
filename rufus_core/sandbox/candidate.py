"""One Python program from the inside: what the forked process does between its first and its last instruction.

Standard library only: this module is loaded in a bare interpreter. Everything here shares its process with untrusted
code, so nothing it says is believed: output and values are compared elsewhere, where alone the expected ones are known.
"""

from __future__ import annotations

import _sitebuiltins
import builtins
import marshal
import os
import sys

from rufus_core.sandbox.messages import read_message, write_message
from rufus_core.sandbox.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

CALLS_FD, REPLIES_FD = 3, 4  # of a program that is tested: requests of the referee, and answers
STEPS_FD, NEXT_FD, INPUTS_FD = 3, 4, 5  # of one that runs on several inputs: an end of each, leave for the next one
_TYPICAL = """
def f(x, *rest, y=(1, 2), **more):
    return [{a: b for a, b in x} for _ in y if x and not rest] or sorted(map(str, {1.5, "a"}), key=lambda z: z)
print(*f([]), end="", flush=True)
"""
_Function: Any = type(lambda: 0)
_Cell = type((lambda cell: lambda: cell)(0).__closure__[0])  # type: ignore[index]  # importing `types` costs more
MEMORY_CODE = 71  # the exit code that tells of a MemoryError which the program did not catch


def run_program(code: bytes) -> int:
    """Run the program as `__main__`, with its streams at 0, 1 and 2; returns the exit code."""
    return _guard(lambda: _execute(code, "__main__"))


def run_on_inputs(code: bytes, count: int) -> int:
    """Run the program as `__main__` once for each of `count` inputs, one after the other, in this process."""
    for place in range(count):
        os.dup2(INPUTS_FD + place, 0)
        _open_streams()
        exit_code = _guard(lambda: _execute(code, "__main__"))
        os.write(STEPS_FD, b"%d\n" % exit_code)
        if not os.read(NEXT_FD, 1):
            break
    return 0


def serve_program(code: bytes, setup: bytes) -> int:
    """Run the program, with the setup before and after it, and answer the referee; returns the exit code."""
    original = dict(builtins.__dict__)

    def work() -> None:
        namespace: dict[str, Any] = {}
        before, after = decode(setup)
        exec(compile(before, "<setup>", "exec"), namespace)  # noqa: S102
        namespace = _execute(code, "solution", namespace)
        exec(compile(after, "<setup>", "exec"), namespace)  # noqa: S102
        _Answers(namespace, original).serve()

    return _guard(work)


def prepare() -> None:
    """What every program finds, made ready in the process that they are forked from: a page that they need not write
    to is a page that is not copied, and a program's first `compile` costs more than the rest of its fork.
    """
    for name in ("exit", "quit"):  # programs use them, and `-S` leaves them out
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    sys.set_int_max_str_digits(0)
    sys.argv = ["program.py"]
    _open_streams()
    exec(compile(_TYPICAL, "<typical>", "exec"), {})  # noqa: S102


def _execute(code: bytes, name: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    module = type(sys)(name)
    module.__dict__.update(names or {}, __name__=name)
    sys.modules[name] = module
    exec(compile(code, "<program>", "exec"), module.__dict__)  # noqa: S102
    if name == "__main__" and "threading" in sys.modules:
        sys.modules["threading"]._shutdown()  # waits for its threads, as a normal end does
    return module.__dict__


def _open_streams() -> None:
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115


def _guard(work: Callable[[], object]) -> int:
    """Do the work; whatever it raises becomes an exit code and a traceback."""
    exit_code = 0
    try:
        work()
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except MemoryError:
        exit_code = MEMORY_CODE
    except BaseException as error:  # noqa: BLE001 - the candidate's own failure, told on its stderr
        own = error.__traceback__
        while own and own.tb_frame.f_code.co_filename == _guard.__code__.co_filename:
            own = own.tb_next
        sys.__excepthook__(type(error), error.with_traceback(own), own)
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return exit_code & 0xFF


class _Answers:
    """Answers the referee: names, calls, attributes and expressions of this program.

    What is no plain value stays here, and the referee gets its number.
    """

    def __init__(self, names: dict[str, Any], original: dict[str, Any]) -> None:
        self.names, self.original = names, original
        self.kept: list[Any] = []
        self.numbers: dict[int, int] = {}  # by identity, which stays one's own as long as the object is kept

    def serve(self) -> None:
        """Until the referee ends. Only `Exception` is an answer: a call that exits has ended the program."""
        while True:
            try:
                kind, *rest = read_message(CALLS_FD)
            except EOFError:
                return
            try:
                answer = [b"value", *getattr(self, kind.decode())(*rest)]
            except Exception as error:  # noqa: BLE001 - the referee raises it anew
                answer = [b"error", self.error(error)]
            write_message(REPLIES_FD, answer)

    def value(self, source: bytes) -> list[bytes]:
        """An expression's plain value. It sees the built-ins as they were before the program ran."""
        scope = {**self.names, "__builtins__": self.original}
        return [encode(eval(compile(source, "<check>", "eval"), scope))]  # noqa: S307

    def name(self, name: bytes) -> list[bytes]:
        return [encode(self.names[name.decode()], self.keep)]

    def attribute(self, data: bytes) -> list[bytes]:
        owner, name = decode(data, self.find)
        return [encode(getattr(owner, name), self.keep)]

    def call(self, data: bytes) -> list[bytes]:
        """A call's value, and its positional arguments as it left them, if it changed any of them."""
        function, args, kwargs = decode(data, self.find)
        before = [self.state(arg) for arg in args]
        value = encode(function(*args, **kwargs), self.keep)
        after = [self.state(arg) for arg in args]
        return [value, *(b"" if new == old else new for old, new in zip(before, after, strict=True))]

    def define(self, source: bytes) -> list[bytes]:
        """Classes of a test: its calls have their objects as arguments."""
        exec(compile(source, "<check>", "exec"), self.names)  # noqa: S102
        return []

    def state(self, arg: Any) -> bytes:
        return encode(arg, self.keep) if isinstance(arg, list | dict | set) else b""

    def keep(self, value: Any) -> bytes:
        """An exception class goes by its name and its nearest built-in base, so that the referee can raise it."""
        number = self.numbers.setdefault(id(value), len(self.kept))
        if number == len(self.kept):
            self.kept.append(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            base = next(kind.__name__ for kind in value.__mro__ if kind.__module__ == "builtins")
            return encode((number, value.__name__, base))
        return encode((number,))

    def find(self, data: bytes) -> Any:
        kind, *rest = decode(data, self.find)
        if kind == "kept":
            return self.kept[rest[0]]
        if kind == "function":
            code, used, defaults, cells = rest
            names = {**self.names, **used}
            closure = tuple([_Cell(item) for item in cells])
            function = _Function(marshal.loads(code), names, None, defaults, closure)  # noqa: S302
            names.setdefault(function.__name__, function)  # it may call itself
            return function
        found = __import__(rest[0], fromlist=["_"])
        for part in rest[1:]:
            found = getattr(found, part)
        return found

    def error(self, error: Exception) -> bytes:
        try:
            return encode((type(error), error.args), self.keep)
        except (TypeError, RecursionError):
            return encode((type(error), ()), self.keep)
