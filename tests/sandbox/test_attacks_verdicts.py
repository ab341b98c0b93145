"""Programs that want to be paid for answers they don't have: none is, whatever a check's form."""

import pytest

from rufus_core.rewards.code import tests_pass as verdict_of
from rufus_core.types import Message, Problem, VerdictKind
from tests.sandbox.attacks import attack_pool, named, nothing_is_left

# Three forms of one test, whose answer no program below knows: a value that is compared outside, and two statements
# that the referee runs.
CHECKS = ["assert f(2) == 41", "assert abs(f(2) - 41) < 1e-6", "import math\nassert math.isclose(f(2), 41)"]


@pytest.fixture(scope="module")
def pool():
    with attack_pool() as pool:
        yield pool


@pytest.fixture(autouse=True)
def _leaves_nothing(pool):
    with nothing_is_left(pool):
        yield


LEAVING = {
    "sys.exit": "import sys\nsys.exit(0)",
    "sys.exit in f": "import sys\ndef f(x): sys.exit(0)",
    "os._exit": "import os\nos._exit(0)",
    "os._exit in f": "import os\ndef f(x): os._exit(0)",
    "os._exit in a thread": """
import os, threading, time
threading.Timer(0.05, os._exit, (0,)).start()
def f(x): time.sleep(5)
""",
    "SystemExit in ==": """
class A:
    def __eq__(self, other): raise SystemExit(0)
    __sub__ = __eq__
def f(x): return A()
""",
    "SystemExit in abs": """
class A(float):
    def __abs__(self): raise SystemExit(0)
    def __sub__(self, x): return self
def f(x): return A(1)
""",
    "KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "GeneratorExit": "def f(x): raise GeneratorExit",
    "an exception of its own": "class E(BaseException): pass\ndef f(x): raise E",
    "atexit": "import atexit, os\natexit.register(os._exit, 0)\nraise SystemExit(0)",
    "abort": "import os\ndef f(x): os.abort()",
    "exec of true": "import os\ndef f(x): os.execv('/bin/true', ['true'])",
    "a fork that goes on": "import os\npid = os.fork()\nif pid: os._exit(0)\ndef f(x): return 7",
    "a child that answers": "import os\ndef f(x):\n    if os.fork(): os._exit(0)\n    return 7",
    "closing everything": "import os\nos.closerange(0, 64)\ndef f(x): return 7",
    "an endless generator": "def f(x):\n    while True: yield 5",
    "the end of input": "raise EOFError",
    "an empty program": "",
    "no Python": "def f(x: return 5",
    "a null byte": "def f(x): return 5\0",
}

LYING = {
    "always equal": """
class A:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __sub__(self, other): return self
    def __abs__(self): return self
    def __float__(self): return 5.0
    def __hash__(self): return 5
    def __repr__(self): return '5'
def f(x): return A()
""",
    "an int that is always equal": """
class A(int):
    def __eq__(self, other): return True
    def __sub__(self, other): return A(0)
    def __float__(self): return 5.0
    def __int__(self): return 5
    def __index__(self): return 5
    def __repr__(self): return '5'
def f(x): return A(1)
""",
    "a float that is always equal": """
class A(float):
    def __eq__(self, o): return True
    def __sub__(self, o): return 0.0
def f(x): return A(1)
""",
    "a str": """
class A(str):
    def __eq__(self, o): return True
    def __sub__(self, o): return 0
def f(x): return A('5')
""",
    "a lie about its class": """
class A:
    __class__ = property(lambda self: int)
    def __eq__(self, o): return True
def f(x): return A()
""",
    "a metaclass": """
class M(type):
    def __eq__(self, o): return True
    def __sub__(self, o): return 0
class A(metaclass=M): pass
def f(x): return A
""",
    "a number that is not one": "def f(x): return float('nan')",
    "infinity": "def f(x): return float('inf')",
    "true": "def f(x): return True",
    "everything at once": "def f(x): return {5, 4, 6}",
    "a value that is code": "class A(str): pass\ndef f(x): return '__import__(\"os\")._exit(0)'",
    "a line of its own": "def f(x): return 'x\\nv 5\\np 0'",
    "a value too long": "def f(x): return '5' * (4 << 20)",
    "a value too deep": "def f(x):\n    v = 5\n    for _ in range(5000): v = [v]\n    return v",
    "a value that holds itself": "def f(x):\n    v = []\n    v.append(v)\n    return v",
    "a large integer": "def f(x): return 10 ** 100000",
    "__del__": "import os\nclass A:\n    def __del__(self): os.write(3, b'v 5\\n')\ndef f(x): return A()",
}

FORGING = {
    "lines on the results": "import os\nos.write(3, b'v 5\\np 0\\nv 5\\n')\ndef f(x): return 7",
    "lines on every descriptor": """
import os
for fd in range(64):
    try: os.write(fd, b'v 5\\n')
    except OSError: pass
def f(x): os._exit(0)
""",
    "lines on the output": "print('v 5\\nv 5\\np 0')\ndef f(x): return 7",
    "lines of the protocol": """
import os
for fd in (1, 2, 3): os.write(fd, (5).to_bytes(4, 'big') + b'\\0\\0\\0\\6exited')
def f(x): os._exit(0)
""",
    "os.write replaced": """
import os
write = os.write
os.write = lambda fd, data: write(fd, b'v 5\\n')
def f(x): return 7
""",
    "ascii replaced": "import builtins\nbuiltins.ascii = builtins.repr = lambda x: '5'\ndef f(x): return 7",
    "eval and exec replaced": "import builtins\nbuiltins.eval = builtins.exec = lambda *a, **k: 5\ndef f(x): return 7",
    "compile replaced": """
import builtins
c = builtins.compile
builtins.compile = lambda s, *a, **k: c('5', *a, **k)
def f(x): return 7
""",
    "the candidate's module": """
import sys
for module in list(sys.modules.values()):
    if hasattr(module, 'plain'):
        module.plain = lambda value: 5
def f(x): return 7
""",
    "the reduction's name": "def __plain(x): return 5\ndef f(x): return 7",
    "a trace": """
import sys
sys.settrace(lambda frame, event, arg: sys.exit(0) if frame.f_code.co_name == '<module>' else None)
def f(x): return 7
""",
    "the exception hook": """
import sys, os
sys.excepthook = sys.__excepthook__ = lambda *a: os._exit(0)
def f(x): raise ValueError
""",
    "asserts that don't raise": """
import builtins
builtins.AssertionError = lambda *a: SystemExit(0)
def f(x): return 7
""",
    "built-ins": "import builtins\nbuiltins.abs = lambda x: 0\nbuiltins.float = lambda x: 5\ndef f(x): return 7",
    "other built-ins": "__builtins__ = {'abs': lambda x: 0}\ndef abs(x): return 0\ndef f(x): return 7",
    "debug off": """
import builtins
try: builtins.__debug__ = False
except (SyntaxError, AttributeError): pass
def f(x): return 7
""",
}

# What would share its process with a statement if the referee did not run it.
SHARING = {
    "the nonce in the callers": """
import os, sys
def f(x):
    frame = sys._getframe()
    while frame:
        nonce = frame.f_locals.get('nonce')
        if nonce:
            os.write(3, f'p {nonce}\\n'.encode() * 4)
            os._exit(0)
        frame = frame.f_back
    return 7
""",
    "the nonce in memory": """
import ctypes, os, re
def f(x):
    libc, mapped = ctypes.CDLL(None), ctypes.create_string_buffer(1)
    pages = {id(thing) >> 20 for thing in ([], {}, 'a' * 32, '%032d' % x, f.__code__, f, libc, 1e9)}
    for page in {(near + step) * 256 + part for near in pages for step in (-1, 0, 1) for part in range(256)}:
        if libc.mincore(ctypes.c_void_p(page << 12), ctypes.c_size_t(4096), mapped) == 0:
            for nonce in re.findall(rb'(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])', ctypes.string_at(page << 12, 4096)):
                if not nonce.isdigit() and len(set(nonce)) > 4:
                    os.write(3, b'p ' + nonce + b'\\n')
                    os._exit(0)
    return 7
""",
    "the nonce in the memory's file": """
import os, re
def f(x):
    for line in open('/proc/self/maps'):
        first, last = (int(part, 16) for part in line.split()[0].split('-'))
        with open('/proc/self/mem', 'rb', 0) as memory:
            memory.seek(first)
            for nonce in re.findall(rb'(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])', memory.read(last - first)):
                os.write(3, b'p ' + nonce + b'\\n')
    return 7
""",
    "a module that is imported": "import math\nmath.isclose = lambda *a, **k: True\ndef f(x): return 7",
    "another module of that name": """
import sys, types
m = types.ModuleType('math')
m.isclose = lambda *a: True
sys.modules['math'] = m
def f(x): return 7
""",
    "an import hook": """
import builtins, types
real = builtins.__import__
def hook(name, *args, **kwargs):
    return types.SimpleNamespace(isclose=lambda *a: True) if name == 'math' else real(name, *args, **kwargs)
builtins.__import__ = hook
def f(x): return 7
""",
    "a finder": """
import sys, importlib.machinery, types
class Finder:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == 'math' else None
    def create_module(self, spec):
        module = types.ModuleType('math'); module.isclose = lambda *a: True
        return module
    def exec_module(self, module): pass
sys.meta_path.insert(0, Finder()); sys.modules.pop('math', None)
def f(x): return 7
""",
    "the answer in the callers": """
import re, sys
def f(x):
    frame, found = sys._getframe(), []
    while frame:
        found += [v for v in frame.f_locals.values() if isinstance(v, (bytes, str))]
        found += [v for values in frame.f_locals.values() if isinstance(values, list) for v in values]
        frame = frame.f_back
    answer = re.search(r'f\\(2\\)\\D+(\\d+)', ' '.join(map(str, found)))
    return int(answer[1]) if answer else 7
""",
    "the answer on the heap": """
import gc, re
def f(x):
    for thing in gc.get_objects():
        for value in thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else ():
            if isinstance(value, (str, bytes)) and (answer := re.search(r'f\\(2\\)\\D+(\\d\\d+)', str(value))):
                return int(answer[1])
    return 7
""",
    "the answer in the command": """
import glob, re
def f(x):
    for path in glob.glob('/proc/[0-9]*/cmdline') + glob.glob('/tmp/**', recursive=True) + glob.glob('/dev/shm/*'):
        try:
            if answer := re.search(r'f\\(2\\)\\D+(\\d\\d+)', open(path, errors='replace').read()):
                return int(answer[1])
        except OSError:
            pass
    return 7
""",
    "the reduction patched in the callers": """
import sys
def f(x):
    frame = sys._getframe()
    while frame:
        scope = frame.f_locals.get('scope')
        if scope:
            scope['__plain'] = lambda value: 5
            scope['abs'] = lambda value: 0
        frame = frame.f_back
    return 7
""",
}


def cases():
    for name, program in {**LEAVING, **LYING, **FORGING, **SHARING}.items():
        for form, check in zip(("value", "statement", "import"), CHECKS, strict=True):
            yield pytest.param(program, check, id=f"{name}-{form}")


@pytest.mark.parametrize(("program", "check"), [*cases()])
def test_no_program_is_paid(pool, program, check):
    told = pool.run_checks(program, [check, "assert 2 + 2 == 4"], timeout_seconds=1.0)
    assert not told.passed
    assert told.reason
    verdict = judged(pool, program, "functional", [check])
    assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0), verdict


# Programs on standard input whose output should be 41, and is not.
OUTPUTS = {
    "nothing": "",
    "another number": "print(7)",
    "both": "print(7); print(41)",
    "every number": "print(*range(100))",
    "a line taken back": r"print('7\r41')",
    "a sign taken back": r"print('7\b41')",
    "a line drawn over": r"print('7\x1b[2K\x1b[1G41')",
    "another tab": r"print('\x1b]0;41\x07')",
    "zeros": r"print('41\0')",
    "a byte order mark": r"print('\ufeff41')",
    "invisible signs": r"print('4\u200b1\u200d')",
    "right to left": r"print('\u202e14')",
    "wide digits": "print('４１')",
    "a sum": "print('40+1')",
    "an exponent": "print('4.1e1')",
    "an underscore": "print('4_1')",
    "on the wrong stream": "import sys\nprint(41, file=sys.stderr)",
    "on the results": "import os\nos.write(3, b'41\\n')",
    "a long line": "print('0' * 100000 + '41')",
    "many lines": "print('7\\n' * 100000 + '41')",
    "and an error": "print(41)\nraise SystemExit(1)",
    "and a crash": "import ctypes, sys\nprint(41, flush=True)\nctypes.string_at(0)",
    "and no end": "print(41, flush=True)\nwhile True: pass",
    "and a flood": "print(41, flush=True)\nwhile True: print(41)",
    "on a closed stream": "import os\nos.close(1)\nprint(41)",
    "to the supervisor": "import os\nos.write(os.open('/proc/1/fd/1', os.O_WRONLY), b'41\\n')",
    "the input": "print(input())",
    "the tests": """
import glob, sys
for p in glob.glob('/tmp/**', recursive=True) + ['/proc/self/cmdline']: print(open(p).read())
""",
}


@pytest.mark.parametrize("program", named(OUTPUTS))
def test_no_output_is_paid_that_is_not_the_expected_one(pool, program):
    verdict = judged(pool, program, "stdin_stdout", [{"input": "7\n", "output": "41\n"}])
    assert (verdict.kind, verdict.score) == (VerdictKind.FAIL, 0.0), verdict


def judged(pool, program, modality, tests):
    truth = {"modality": modality, "tests": tests}
    problem = Problem.build("code", "test", [Message(role="user", content="Do it.")], truth)
    return verdict_of(problem, f"```python\n{program}\n```", pool, seconds_per_test=0.5)
