"""Keeps and deletes cases of one book in two processes at once: BOOK."""

import os
import sys

from kept_cases import answer

from skindx.casebook import (
    casebook_database,  # noqa: F401 (imported once for both)
)
from skindx.casebook.casebook import Casebook


def keep_three_and_delete_one(path: str) -> None:
    book = Casebook.open(path)
    for seed in range(3):
        case = book.keep("ann", answer(seed), patient="P", lesion="arm", consent=True)
    book.delete("ann", case)


if __name__ == "__main__":
    for _ in range(2):
        if os.fork() == 0:
            try:
                keep_three_and_delete_one(sys.argv[1])
            except BaseException as error:
                print(error, file=sys.stderr)
                os._exit(1)
            os._exit(0)
    sys.exit(any(os.wait()[1] for _ in range(2)))
