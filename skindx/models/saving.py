"""Tensors on disk; a full disk is the system's own error, which names the file."""

import os
import re
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def save_tensors(
    tensors: dict[str, Tensor], file: Path, metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file. Raises OSError, also where safetensors wraps it."""
    try:
        save_file(tensors, file, metadata)
    except SafetensorError as error:
        if found := re.search(r"\(os error (\d+)\)", str(error)):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(file)) from None
        raise
