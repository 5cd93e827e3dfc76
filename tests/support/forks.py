"""Functions in forks of this process, which has imported all: a kill of one is a real kill."""

import os
import sys
import traceback
from collections.abc import Callable


def forked(*functions: Callable[[], object]) -> list[int]:
    """Call each function in a fork, all at once; return exit codes, negative ones for signals."""
    sys.stdout.flush()
    sys.stderr.flush()
    children = [_fork(function) for function in functions]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _fork(function: Callable[[], object]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
