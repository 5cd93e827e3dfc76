"""Compiled loops; importing this module imports numba."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile by numba on the first call; kept beside the source or in the user's cache."""
    import numba

    try:
        return cast(F, numba.njit(function, cache=True, nogil=True, error_model="numpy"))
    except RuntimeError:  # neither folder can be written to
        return cast(F, numba.njit(function, nogil=True, error_model="numpy"))
