"""Access control before Gradio: only routes that the page needs, only the user's own uploads.

Gradio serves more than a page: it hands out uploaded files by their path, reads any file that a
request names (where it is mounted into another app it does not check that it was uploaded), and
fetches addresses. Nothing here needs any of it, so nothing of it gets through.
"""

import json
import os
import tempfile
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from skindx.ui.http.asgi import USER, App, Message, Receive, Send, read_body, replay, respond

_API = "/gradio_api/"
_NEEDED = (
    "app_id",
    "cancel",
    "heartbeat/",
    "login_check",
    "queue/data",
    "queue/join",
    "reset",
    "startup-events",
    "theme.css",
    "upload",
    "upload_progress",
)
_NOT_NEEDED = ("/login", "/logout", "/mcp", "/monitoring")
_JOIN_BYTES = 1 << 20
_REMEMBERED = 10_000
_NO_FUNCTION = "This page has no such function; reload it."
_NO_FILE = "Only photos that were uploaded on this page can be read; choose the photo again."
_FILES = "photos"
"""Where the page's form names files, beside Gradio's own `{"path": ...}`."""

# The front end may ask for the photo that it has just uploaded, to show it while it waits.
_WAITING = (
    b'<svg xmlns="http://www.w3.org/2000/svg" width="320" height="200">'
    b'<text x="160" y="100" text-anchor="middle" font-family="sans-serif" font-size="16" '
    b'fill="#7a8794">Looking at the photo ...</text></svg>'
)


class Guard:
    """ASGI middleware around Gradio's app; `uploads` is the folder in which it keeps files.

    None: the one that the environment names.
    Where people log in, an upload and a session belong to the user who first sent them.
    `functions` are the numbers of the page's functions; None: whatever a request names is passed
    on, and Gradio answers 500 to a number that it does not know.
    """

    def __init__(
        self, app: App, uploads: Path | None = None, functions: Collection[int] | None = None
    ) -> None:
        self.app, self._uploads, self._functions = app, uploads, functions
        self._owners = _Owners()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass on what the page needs, and answer everything else here."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path, user = scope["path"], str(scope.get(USER) or "")
        route = path.partition(_API)[2].rstrip("/")
        if route.startswith("file="):
            await respond(send, 200, _WAITING, "image/svg+xml")
        elif (_API in path and not _matches(route, _NEEDED)) or path.startswith(_NOT_NEEDED):
            await respond(send, 404, b"not found")
        elif route.startswith(("queue/join", "cancel", "reset")):
            await self._with_body(scope, receive, send, user)
        elif not self._may_listen(scope, route, user):
            await respond(send, 403, b"this session belongs to another user")
        elif route == "upload":
            await self.app(scope, receive, self._noting_uploads(send, user))
        else:
            await self.app(scope, receive, send)

    async def _with_body(self, scope: Message, receive: Receive, send: Send, user: str) -> None:
        body = await read_body(receive, _JOIN_BYTES)
        try:
            sent = json.loads(body or b"")
            allowed = isinstance(sent, dict) and all(map(self._is_upload, _paths(sent)))
        except (ValueError, RecursionError):
            allowed = False
        if body is None or not allowed:
            await _refuse(send, 400, _NO_FILE)
        elif scope["path"].rstrip("/").endswith("queue/join") and not self._is_known(sent):
            await _refuse(send, 400, _NO_FUNCTION)
        elif not all(self._owners.may(user, what) for what in _owned(sent)):
            await _refuse(
                send, 403, "This photo or session belongs to another user; reload the page."
            )
        else:
            await self.app(scope, replay(body, receive), send)

    def _is_known(self, sent: dict[str, Any]) -> bool:
        number = sent.get("fn_index")
        return self._functions is None or (type(number) is int and number in self._functions)

    def _is_upload(self, path: str) -> bool:
        """Tell whether a path is a file in the upload folder, with no link on the way to it.

        One that was cleared away meanwhile is allowed to be asked for: the page says so.
        """
        root, file = uploads_folder(self._uploads), Path(path)
        try:
            inside = ".." not in file.parts and file.is_relative_to(root) and file != root
            return inside and file.resolve() == file and (file.is_file() or not file.exists())
        except (OSError, ValueError):
            return False

    def _may_listen(self, scope: Message, route: str, user: str) -> bool:
        """Tell whether a session that is named in the address is this user's."""
        query = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        sessions = query.get("session_hash", [])
        if route.startswith("heartbeat/"):
            sessions = [*sessions, route.removeprefix("heartbeat/")]
        return all(self._owners.may(user, f"session {session}") for session in sessions)

    def _noting_uploads(self, send: Send, user: str) -> Send:
        """Return a `send` that notes whose the files are that Gradio says it took."""
        received = bytearray()

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.body":
                received.extend(message.get("body", b"")[:_JOIN_BYTES])
                if not message.get("more_body"):
                    for path in _strings(received):
                        self._owners.give(user, path)
            await send(message)

        return noting


def uploads_folder(given: Path | None) -> Path:
    """Return where uploads lie, links resolved."""
    default = Path(tempfile.gettempdir()) / "gradio"
    return (given or Path(os.environ.get("GRADIO_TEMP_DIR") or default)).resolve()


class _Owners:
    """Owners of uploads and sessions; the oldest are forgotten, and then have no owner."""

    def __init__(self) -> None:
        self._of: OrderedDict[str, set[str]] = OrderedDict()

    def give(self, user: str, what: str) -> None:
        """Note one more owner: two people may have uploaded the same file."""
        self._of.setdefault(what, set()).add(user)
        self._of.move_to_end(what)
        while len(self._of) > _REMEMBERED:
            self._of.popitem(last=False)

    def may(self, user: str, what: str) -> bool:
        """Return whether a user may have it; a session belongs to the user who first names it."""
        if not user:
            return True  # without logins all users are one
        if what not in self._of and what.startswith("session "):
            self.give(user, what)
        return user in self._of.get(what, ())


def _matches(route: str, routes: Iterable[str]) -> bool:
    return any(
        route == needed or (route.startswith(needed) and needed.endswith("/")) for needed in routes
    )


def _owned(sent: dict[str, Any]) -> Iterator[str]:
    yield from _paths(sent)
    if isinstance(sent.get("session_hash"), str):
        yield f"session {sent['session_hash']}"


def _paths(value: Any) -> Iterator[str]:
    """Yield what stands where files are named: `path` of Gradio's files, and the form's photos.

    Anything else is text, such as a note, and may begin with a slash.
    """
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, list):
            pending += inner
        elif isinstance(inner, dict):
            if inner.get("path") is not None:
                yield str(inner["path"])
            yield from _texts(inner.get(_FILES))
            # `url` is Gradio's own address of the file; it reads `path` alone.
            pending += [other for key, other in inner.items() if key not in ("path", "url")]


def _texts(value: Any) -> Iterator[str]:
    pending = [value]
    while pending:
        inner = pending.pop()
        if isinstance(inner, list):
            pending += inner
        elif isinstance(inner, str):
            yield inner


async def _refuse(send: Send, status: int, sentence: str) -> None:
    """Answer as Gradio's front end reads it: it shows `detail`."""
    body = json.dumps({"detail": sentence}).encode()
    await respond(send, status, body, "application/json")


def _strings(received: bytearray) -> list[str]:
    try:
        paths = json.loads(received)
    except ValueError:
        return []
    return [path for path in paths if isinstance(path, str)] if isinstance(paths, list) else []
