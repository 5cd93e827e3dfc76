"""Methods and last slashes of our routes: HEAD and OPTIONS are answered, others refused by 405.

Gradio's page is mounted over every path, so the router takes one of ours with another method for a
page that is not there and answers 404.
"""

from collections.abc import Iterable, Mapping

from starlette.routing import BaseRoute, Match, Mount

from skindx.ui.asgi import App, Message, Receive, Send, refuse, respond

_GRADIO = "/gradio_api/"
_READING = frozenset({"GET", "HEAD", "OPTIONS"})
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class Methods:
    """ASGI middleware; `routes` are those of a FastAPI application, `others` further paths."""

    def __init__(
        self, app: App, routes: Iterable[BaseRoute], others: Mapping[str, frozenset[str]]
    ) -> None:
        self.app, self._others = app, others
        self._routes = [route for route in routes if not isinstance(route, Mount)]

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on by a method that its path has, GET for HEAD, without a last slash."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        bare = path.rstrip("/")
        allowed = self._allowed(scope, bare)
        if allowed:
            scope = {**scope, "path": bare, "raw_path": bare.encode()}
        if method == "OPTIONS":
            said = ", ".join(sorted(allowed or _READING))
            await respond(send, 204, b"", headers={"allow": said})
        elif allowed and method not in allowed:
            said = ", ".join(sorted(allowed))
            sentence = f"This address is asked by {said}, not by {method[:20]}."
            await refuse(send, 405, sentence, {"allow": said})
        elif method == "HEAD" and _GRADIO not in path:
            # The server sends no body to HEAD, whatever is answered.
            await self.app({**scope, "method": "GET"}, receive, send)
        else:
            await self.app(scope, receive, send)

    def _allowed(self, scope: Message, path: str) -> frozenset[str]:
        """Return the methods of one of our paths; empty: it is none, and may be Gradio's."""
        found = self._others.get(path, frozenset())
        for method in _METHODS:
            asked = {**scope, "path": path, "method": method}
            if any(route.matches(asked)[0] is Match.FULL for route in self._routes):
                found |= {method}
        if "GET" in found:
            found |= {"HEAD"}
        return found | {"OPTIONS"} if found else found
