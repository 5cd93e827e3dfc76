"""`python -m skindx.data.fetch`: started by skindx.data.fetch.crawl, not by hand."""

import sys

from skindx.core.startup import collect_rarely

collect_rarely()
from skindx.data.fetch.process import main  # noqa: E402 (its imports are collected rarely)

sys.exit(main())
