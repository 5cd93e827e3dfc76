"""Sandboxed calls: processes with limited memory and time for untrusted files.

`pool` is the caller's side, `child` the process; plain messages are the only way back.
"""

from skindx.workers.process import Limits
from skindx.workers.sandbox.functions import Work, for_each, sandboxed
from skindx.workers.sandbox.pool import Failure, run_sandboxed

__all__ = ["Failure", "Limits", "Work", "for_each", "run_sandboxed", "sandboxed"]
