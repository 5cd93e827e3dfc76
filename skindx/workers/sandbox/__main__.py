"""`python -m skindx.workers.sandbox`: started by its `pool`, not by hand."""

import sys

from skindx.workers.sandbox.child import main

sys.exit(main())
