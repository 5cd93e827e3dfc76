"""Compiled loops; importing this module imports numba."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile on the first call; the result is kept beside the source or in the user's cache."""
    try:
        return cast(F, numba.njit(function, cache=True, nogil=True, error_model="numpy"))
    except RuntimeError:  # neither folder can be written to
        return cast(F, numba.njit(function, nogil=True, error_model="numpy"))
