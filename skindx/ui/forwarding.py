"""What a proxy before the server says of a request: its client, scheme, name and folder.

Only a proxy that `--proxy` names is believed. What anyone else sends of these headers is taken
away, so that nothing behind this file, Gradio among it, builds an address from it.
"""

import re

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from skindx.core.errors import UserError
from skindx.ui.asgi import NAMED, ROOT, App, Message, Receive, Send, header, headers, respond

_FOLDER = re.compile(r"(/[A-Za-z0-9_~][A-Za-z0-9._~-]*)+")
_LONGEST = 200
_OURS = ("assets", "config", "docs", "gradio_api", "healthz", "login", "logout", "openapi.json",
         "report", "static", "svelte", "v1")  # fmt: skip
_FORWARDED = (b"forwarded", b"x-gradio-server")
_TRUSTED = "skindx_trusted"


class Forwarding:
    """ASGI middleware around everything else.

    `proxy` are the addresses, by commas, that are believed; `root` is the folder of this server in
    the addresses of browsers, such as "/skin"; "": the proxy's X-Forwarded-Prefix says it, or there
    is none. The proxy may take the folder off the path before it passes a request on, or leave it.
    """

    def __init__(self, app: App, proxy: str | None, root: str = "") -> None:
        self._app, self._root = app, root
        named = ProxyHeadersMiddleware(self._forwarded, proxy or [])  # type: ignore[arg-type]
        self._named, self._trusted = named, named.trusted_hosts

    def trusts(self, address: str) -> bool:
        """Tell whether an address is a proxy's that is believed."""
        return address in self._trusted

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on as its client sent it to the proxy."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = (scope.get("client") or ("",))[0]
        await self._named({**scope, _TRUSTED: self.trusts(client)}, receive, send)  # type: ignore[arg-type]

    async def _forwarded(self, scope: Message, receive: Receive, send: Send) -> None:
        named, root = [], self._root
        if scope.pop(_TRUSTED):
            said = ",".join(headers(scope, b"x-forwarded-host"))
            named = [name.strip() for name in said.split(",") if name.strip()]
            root = root or _folder(header(scope, b"x-forwarded-prefix"))
        kept = [pair for pair in scope["headers"] if not _is_forwarded(pair[0])]
        path = scope["path"]
        if root and path == root:
            query = scope.get("query_string", b"").decode("latin-1")
            location = f"{root}/{'?' if query else ''}{query}"
            await respond(send, 308, b"", headers={"location": location})
            return
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        shown = named[0] if named else header(scope, b"host")
        if shown and (named or root):
            # Gradio builds its page's addresses from these two.
            kept.append((b"x-forwarded-host", f"{shown}{root}".encode("latin-1")))
            kept.append((b"x-forwarded-proto", str(scope.get("scheme", "http")).encode()))
        changed = {"headers": kept, "path": path, "raw_path": path.encode(), NAMED: named}
        await self._app({**scope, **changed, ROOT: root}, receive, send)


def checked_root(root: str) -> str:
    """Return the folder of a server as `Forwarding` takes it. Raises UserError."""
    ours = "/" + root.strip().strip("/")
    if ours == "/":
        return ""
    if not _folder(ours):
        raise UserError(
            f"--root-path {root!r} is no folder of an address; give one such as /skin, of letters, "
            "digits and . _ ~ - between slashes."
        )
    if ours.split("/")[1] in _OURS:
        raise UserError(f"--root-path {root!r} is an address of the server itself; take another.")
    return ours


def _folder(said: str) -> str:
    """Return a folder that may be written into pages and headers; "" for anything else."""
    ours = said.strip().rstrip("/")
    return ours if len(ours) <= _LONGEST and _FOLDER.fullmatch(ours) else ""


def _is_forwarded(name: bytes) -> bool:
    return name.startswith(b"x-forwarded-") or name in _FORWARDED
