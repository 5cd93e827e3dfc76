"""Imported first by the server of `ranks`: settings of its Python for all imports that follow."""

import gc
import os
import sys

# Python handed the server -B, whatever has been settled since.
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
gc.disable()  # `preloaded` enables it after the imports
