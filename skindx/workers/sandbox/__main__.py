"""`python -m skindx.workers.sandbox`: started by `fork_server`, not by hand."""

import sys

from skindx.workers.sandbox.child import main
from skindx.workers.sandbox.fork_server import serve

sys.exit(serve(main))
