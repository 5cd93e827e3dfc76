"""`python -m skindx.workers.sandbox`: started by `fork_server`, not by hand."""

import sys

from skindx.workers.fork_server import serve
from skindx.workers.sandbox import main

sys.exit(serve(main))
