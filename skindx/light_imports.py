"""Import timm, torchvision and DeepSpeed without what only functions that we never call need.

torchvision imports torch's compiler for one function, timm wandb for a table of epochs, DeepSpeed
mlflow for its autotuner. Together they take longer to import than all the rest of a start.
"""

import atexit
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import ModuleType
from typing import Any

_COMPILER = ("torch._dynamo", "torch._dynamo.utils")
_OPTIONAL = ("wandb", "mlflow")
"""Packages that the libraries do without where they are not installed."""

_ONE_AT_A_TIME = RLock()


def collect_rarely() -> None:
    """Let the garbage collector look through new objects less often; call it first in a process.

    Imports are half a million objects that stay. At Python's thresholds the collector passes over
    all of them again and again during a start, and several times more at the end, when it takes a
    second of a core to free what the end of the process frees anyway.
    """
    gc.set_threshold(10_000, 10, 100)
    atexit.register(_end_without_collection)


def _end_without_collection() -> None:
    # Triton's bindings print a list of all objects that nobody freed.
    if "triton" not in sys.modules:
        gc.freeze()


@contextmanager
def light_imports() -> Iterator[None]:
    """Keep torch's compiler, wandb and mlflow out of what is imported inside.

    Each can be imported afterwards. What was imported before stays as it is.
    """
    with _ONE_AT_A_TIME:
        # `import` raises ImportError for a name that stands for None.
        absent: dict[str, Any] = {name: None for name in _OPTIONAL if name not in sys.modules}
        if not any(name in sys.modules for name in _COMPILER):
            absent |= _compiler_on_demand()
        sys.modules.update(absent)
        collecting = gc.isenabled()
        gc.disable()  # what is imported stays; to look through it again and again is in vain
        try:
            yield
        finally:
            if collecting:
                gc.enable()
            for name, module in absent.items():
                if sys.modules.get(name) is module:
                    del sys.modules[name]


def never_compiled(
    function: Callable[..., Any] | None = None, recursive: bool = True, **_: object
) -> Any:
    """Keep torch's compiler out of a function, as torch.compiler.disable does; a decorator.

    The compiler is imported when the function is called, not here.
    """
    from torch._compile import _disable_dynamo

    return _disable_dynamo(function, recursive)


def _compiler_on_demand() -> dict[str, ModuleType]:
    """Return modules whose functions import the compiler when they are called."""
    package, utils = (ModuleType(name) for name in _COMPILER)
    package.__path__ = []
    vars(package).update(disable=never_compiled, utils=utils)
    vars(utils).update(is_compile_supported=_is_compile_supported)
    return dict(zip(_COMPILER, (package, utils), strict=True))


def _is_compile_supported(device_type: Any) -> Any:
    from torch._dynamo.utils import is_compile_supported

    return is_compile_supported(device_type)
