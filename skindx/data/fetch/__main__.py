"""`python -m skindx.data.fetch`: started by skindx.data.build.acquire, not by hand."""

import sys

from skindx.data.fetch.process import main

sys.exit(main())
