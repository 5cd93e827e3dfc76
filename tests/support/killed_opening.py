"""Opens copies of a case book in children that are killed on the way: COPY MOMENT CALL ..."""

import os
import pkgutil
import signal
import sys
from typing import Any

from skindx.casebook import (
    casebook_database,  # noqa: F401 (imported once for all children)
)
from skindx.casebook.casebook import Casebook


def open_and_die(book: str, moment: str, call: int) -> None:
    """Open a book; the process kills itself at the `call`-th call of the function `moment`."""
    owner_name, _, name = moment.rpartition(".")
    owner = pkgutil.resolve_name(owner_name)
    real, calls = getattr(owner, name), []

    def die(*sent: Any, **named: Any) -> Any:
        calls.append(name)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*sent, **named)

    setattr(owner, name, die)
    Casebook.open(book)


if __name__ == "__main__":
    given = sys.argv[1:]
    for book, moment, call in zip(given[::3], given[1::3], given[2::3], strict=True):
        child = os.fork()
        if child == 0:
            open_and_die(book, moment, int(call))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), f"{moment} was not reached"
