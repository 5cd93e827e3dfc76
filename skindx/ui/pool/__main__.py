"""Start a worker; `worker.started` alone does."""

import sys

from skindx.ui.pool.loading import main

if __name__ == "__main__":
    main(sys.argv[1:])
