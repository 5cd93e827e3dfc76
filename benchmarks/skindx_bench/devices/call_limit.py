"""A time limit for one call that runs many operators of torch."""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlowError(RuntimeError):
    """This device emulates the work so slowly that its rounds would take the whole run."""


@contextmanager
def call_limit(most_s: float) -> Iterator[None]:
    """Raise TooSlowError in the block after `most_s` seconds, between two operators.

    Python handles a signal only between its own instructions, and `backward` is one call of C++.
    So operators fetch the tensors that they saved for it through a function of Python, in this
    block only. A single operator cannot be interrupted. Other threads than the main one receive no
    signals, so they have no limit.
    """
    if math.isinf(most_s) or threading.current_thread() is not threading.main_thread():
        yield
        return
    from torch.autograd.graph import saved_tensors_hooks

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError(f"one call takes more than most_s = {most_s:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, most_s)
    try:
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
