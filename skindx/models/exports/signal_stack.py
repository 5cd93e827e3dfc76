"""OpenVINO's alternate stack for signals, which it takes away while it is still in use."""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stack(ctypes.Structure):
    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextmanager
def own_signal_stack() -> Iterator[None]:
    """Give this thread the alternate signal stack back that it had before the block.

    Each `openvino.Core` that loads the CPU plugin gives the thread an alternate stack, and when it
    is deleted restores the one before. Where two live at once, and the first is deleted first, the
    second restores the memory that the first has unmapped: the process dies of its next signal,
    such as SIGTERM or SIGCHLD. A Core that finds another stack than its own restores none.
    """
    if sys.platform != "linux":
        yield
        return
    sigaltstack = ctypes.CDLL(None).sigaltstack
    before = _Stack()
    found = sigaltstack(None, ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if found:
            sigaltstack(ctypes.byref(before), None)
