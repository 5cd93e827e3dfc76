"""The start of a process: Ctrl-C during imports, and imports without what is never called.

Raised in the middle of an import, KeyboardInterrupt is lost: libraries catch it, or go on with half
a module and fail later by an error that nobody understands.

torchvision imports torch's compiler for one function, timm wandb for a table of epochs, DeepSpeed
mlflow for its autotuner. Together they take longer to import than all the rest of a start.
"""

import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from types import FrameType, ModuleType
from typing import Any

STOPPED = "stopped; run the same command again to go on"
"""Sentence that a command prints when Ctrl-C has ended it."""

_COMMAND_LINE = ("skindx.__main__", "skindx.cli", "__main__")


def heed_interrupts() -> None:
    """Let Ctrl-C act at once or right after an import; call it first in a command's process.

    A process that ignores Ctrl-C, as in a shell's background, goes on ignoring it.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    importer = _importer(frame)
    if importer is None:
        raise KeyboardInterrupt
    name = str(importer.f_globals.get("__name__"))
    if name.startswith(_COMMAND_LINE) or importer.f_trace is not None:
        # A verb imports before it begins its work, so that nothing has to be put away. The second
        # Ctrl-C does not wait either.
        os.write(sys.stderr.fileno() if sys.stderr else 2, f"{STOPPED}\n".encode())
        os._exit(128 + number)
    importer.f_trace = _raise
    sys.settrace(_ignore)  # without one the frame's is not called


def _importer(frame: FrameType | None) -> FrameType | None:
    """Return the frame of the outermost import that is under way; None where none is."""
    outermost, below = None, frame
    while below is not None:
        above = below.f_back
        if above is not None and _is_machinery(below) and not _is_machinery(above):
            outermost = above
        below = above
    return outermost


def _is_machinery(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")


def _ignore(frame: FrameType, event: str, argument: Any) -> None:
    """Trace no other frame."""


def _raise(frame: FrameType, event: str, argument: Any) -> None:
    """Raise what was asked for during the import that this frame has done."""
    frame.f_trace = None
    sys.settrace(None)
    raise KeyboardInterrupt


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
