"""Run one scan; `jobs.ScanJobs` starts this."""

import sys

from skindx.ui.scans.scan_process import main

if __name__ == "__main__":
    main(sys.argv[1:])
