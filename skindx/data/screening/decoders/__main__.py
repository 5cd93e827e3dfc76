"""`python -m skindx.data.screening.decoders`: started by its `pool`, not by hand."""

import sys

from skindx.data.screening.decoders.child import main

sys.exit(main())
