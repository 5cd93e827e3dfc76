"""Start a worker: `python -m skindx.ui.pool DESCRIPTOR BUNDLE VERSION`, from `process.py` alone."""

import socket
import sys
from pathlib import Path

from skindx.offline import go_offline
from skindx.ui.pool.worker import work

if __name__ == "__main__":
    go_offline()
    descriptor, bundle, version = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        work(connection, Path(bundle), version)
