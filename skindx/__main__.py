import os
import sys

# `python -m` looks for modules in the current folder first, where anybody's may lie.
if not sys.flags.safe_path and sys.path[0] == os.getcwd():  # noqa: PTH109 (no further import)
    del sys.path[0]

from skindx.core.startup import heed_interrupts


def main() -> None:
    """Run the command line, which Ctrl-C ends also while it is being imported."""
    heed_interrupts()
    from skindx.cli import main as run

    run()


if __name__ == "__main__":
    main()
