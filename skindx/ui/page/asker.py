"""Who asks: the login name that the server put beside the request."""

from typing import Any


def login_name(request: Any) -> str:
    """Return the login name of a Gradio request, "" where nobody logs in."""
    scope = getattr(getattr(request, "request", None), "scope", None) or {}
    return str(scope.get("skindx_user") or getattr(request, "username", None) or "")
