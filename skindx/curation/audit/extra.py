"""The `audit` extra: asked for where it is used, and missed in one sentence."""

import importlib.util

from skindx.errors import UserError


def need(*modules: str) -> None:
    """Raise UserError when one of the modules of the `audit` extra is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"this needs {', '.join(missing)}, which is not installed; "
            f"run `pip install 'skindx[audit]'`."
        )
