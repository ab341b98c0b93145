"""Lets SGLang start where there is no GPU. Tests put this folder on the PYTHONPATH of a server, and nothing else does.

Two things are in its way on a CPU: packages for images and sound, which it imports for models that we don't serve and
which have no build that fits; and the registration of host memory with CUDA.
"""

import importlib.abc
import importlib.machinery
import sys
import types

ABSENT = ("torchvision", "torchaudio", "sgl_kernel")
HOST_POOL = "sglang.srt.mem_cache.pool_host.common"


class Nothing:
    """Whatever is asked of it, it is there and does nothing: decorators, enumerations, base classes."""

    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return Nothing()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __iter__(self):
        return iter(())


class EmptyClass(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class EmptyModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name[:1].isupper():
            return EmptyClass(name, (), {"__init__": lambda self, *args, **kwargs: None})
        return Nothing()


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the absent packages, but not for transformers, which asks whether they are there."""

    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in ABSENT and not _asked_by("transformers/utils/import_utils.py"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = EmptyModule(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"
        return module

    def exec_module(self, module):
        pass


def _asked_by(file):
    frame = sys._getframe()
    while frame:
        if frame.f_code.co_filename.endswith(file) and "available" in frame.f_code.co_name:
            return True
        frame = frame.f_back
    return False


class WithoutCuda(importlib.abc.MetaPathFinder):
    """Loads the host pool, and leaves its memory unregistered."""

    def find_spec(self, name, path, target=None):
        if name != HOST_POOL:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module._cuda_host_register = module._cuda_host_unregister = lambda *args, **kwargs: None

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path[:0] = [WithoutCuda()]
sys.meta_path.append(Empty())
