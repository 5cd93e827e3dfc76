"""What one process may use of the machine: seconds for each task, and bytes of memory."""

import resource
import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds for each file, and 10^6 bytes of memory."""

    timeout_s: int
    memory_mb: int


def limit_memory(memory_mb: int) -> None:
    """Bound what this process may allocate; beyond it allocations fail.

    RLIMIT_DATA counts all private memory, touched or not (Linux 4.7 and later), but not the code
    of libraries, of which RLIMIT_AS would count every mapped gigabyte.
    """
    resource.setrlimit(resource.RLIMIT_DATA, (memory_mb * 10**6, memory_mb * 10**6))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def limit_time(timeout_s: int) -> None:
    """End this process in `timeout_s` seconds, wherever it is then; 0: not any more.

    An alarm's default action is the kernel's: it holds in the middle of a C library, and also
    when the parent is gone.
    """
    signal.alarm(timeout_s)
