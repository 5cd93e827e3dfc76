"""`python -m skindx.data.fetch`: started by skindx.data.fetch.crawl, not by hand."""

import sys

from skindx.data.fetch.process import main

sys.exit(main())
