"""`python -m skindx.data.fetch`: started by skindx.data.crawl.crawl_process, not by hand."""

import sys

from skindx.core.startup import collect_rarely

collect_rarely()
from skindx.data.crawl.crawl_process import main  # noqa: E402 (its imports are collected rarely)

sys.exit(main())
