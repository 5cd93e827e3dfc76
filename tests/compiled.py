"""Imported first by the server of `ranks`: Python handed it -B, whatever has been settled since."""

import os
import sys

sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
