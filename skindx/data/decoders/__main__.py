"""`python -m skindx.data.decoders`: started by skindx.data.decoders.pool, not by hand."""

import sys

from skindx.data.decoders.child import main

sys.exit(main())
