"""The side of a rank that a bench commands: lines of JSON in, lines of JSON out."""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skindx.core.errors import UserError
from skindx.training.launching.supervise import end_with_parent


def answer_commands(start: Callable[[dict[str, Any]], object]) -> None:
    """Answer until the input ends, then end this process; die with the bench.

    The first line is the job, of which `start` makes the rank. Each later line names one of the
    rank's public methods by `do`, beside its arguments; what it returns is the answer.
    """
    end_with_parent(signal.SIGKILL)
    _die_first()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    code = 0
    try:
        rank = start(json.loads(sys.stdin.readline()))
        for line in sys.stdin:
            command = json.loads(line)
            name = command.pop("do")
            assert not name.startswith("_"), name
            answer = getattr(rank, name)(**command)
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
