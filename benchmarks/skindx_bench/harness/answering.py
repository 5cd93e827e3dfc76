"""The side of a rank that a bench commands: lines of JSON in, lines of JSON out."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.training.launching.supervise import end_with_parent

Commands = Mapping[str, Callable[..., dict[str, Any]]]


def answer_commands(start: Callable[[dict[str, Any]], Commands]) -> None:
    """Answer until the input ends, then end this process; die with the bench.

    The first line is the job, of which `start` makes the commands. Each later line names one by
    `do`, beside its arguments.
    """
    end_with_parent(signal.SIGKILL)
    _die_first()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    code = 0
    try:
        commands = start(json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            command = json.loads(line)
            answer = commands[command.pop("do")](**command)
            print(json.dumps(answer), file=answers, flush=True)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    # Without this an exit may hang in gloo when another rank is gone already.
    os._exit(code)


def _die_first() -> None:
    """Be the one that ends when memory runs out, and not the bench, which says so."""
    try:
        Path("/proc/self/oom_score_adj").write_text("500")
    except OSError:
        return
