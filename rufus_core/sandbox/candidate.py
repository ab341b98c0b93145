"""One Python program from the inside: what the forked process does between its first and its last instruction.

Standard library only: this module is loaded in a bare interpreter. Everything here shares its process with untrusted
code, so nothing it says is believed without proof: values are compared outside, where alone the expected ones are
known, and a statement counts as passed only with the nonce of its request.
"""

from __future__ import annotations

import builtins
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

RESULTS_FD = 3


def plain(value: Any) -> Any:
    """The value as exact built-in containers and scalars, read through the base types so that no override takes part.

    Raises TypeError for anything else: such a value equals no literal.
    """
    kind = type(value)
    if value is None or any(kind is exact for exact in (bool, int, float, complex, str, bytes)):
        return value
    if isinstance(value, int):
        return int.__add__(value, 0)
    if isinstance(value, float):
        return float.__add__(value, 0.0)
    if isinstance(value, complex):
        return complex.__add__(value, 0j)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return bytes(memoryview(value))
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in dict.items(value)}
    if isinstance(value, list):
        return [plain(item) for item in list.__iter__(value)]
    if isinstance(value, tuple):
        return tuple([plain(item) for item in tuple.__iter__(value)])
    if isinstance(value, set):
        return {plain(item) for item in set.__iter__(value)}
    if isinstance(value, frozenset):
        return {plain(item) for item in frozenset.__iter__(value)}
    raise TypeError(f"{kind.__name__} is no plain value")


def run_checks(namespace: dict[str, Any], original: dict[str, Any], checks: list[bytes], nonce: str) -> None:
    """One line for each check: `v VALUE`, `p NONCE` (a statement passed) or `e EXCEPTION`.

    A check sees the program's names, but the interpreter's own built-ins as they were before the program ran.
    """
    for check in checks:
        kind, source = check[:1], check[1:].decode()
        scope = {**namespace, "__builtins__": original, "__plain": plain}
        try:
            if kind == b"v":
                line = "v " + ascii(plain(eval(compile(source, "<check>", "eval"), scope)))  # noqa: S307
            else:
                exec(compile(source, "<check>", "exec", optimize=0), scope)  # noqa: S102
                line = "p " + nonce
        except Exception as error:  # noqa: BLE001 - whatever a candidate raises is a failed check
            line = "e " + type(error).__name__
        os.write(RESULTS_FD, line.encode("ascii", "backslashreplace").replace(b"\n", b" ") + b"\n")


def run_program(code: bytes, checks: list[bytes] | None, nonce: str) -> int:
    """Run the candidate in this process, with its streams at 0, 1 and 2 and results at 3; returns the exit code."""
    import _sitebuiltins

    for name in ("exit", "quit"):  # programs use them, and `-S` leaves them out
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D"))
    original = dict(builtins.__dict__)
    sys.set_int_max_str_digits(0)
    sys.argv = ["program.py"]
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    module = type(sys)("__main__" if checks is None else "solution")
    sys.modules[module.__name__] = module
    exit_code = 0
    try:
        exec(compile(code, "<program>", "exec"), module.__dict__)  # noqa: S102
        if checks is not None:
            run_checks(module.__dict__, original, checks, nonce)
        elif "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # waits for its threads, as a normal end does
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except MemoryError:
        os.write(RESULTS_FD, b"m\n")
        exit_code = 1
    except BaseException as error:  # noqa: BLE001 - the candidate's own failure, told on its stderr
        own = error.__traceback__ and error.__traceback__.tb_next
        sys.__excepthook__(type(error), error.with_traceback(own), own)
        exit_code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return exit_code & 0xFF
