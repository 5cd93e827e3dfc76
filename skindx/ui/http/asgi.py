"""The server's protocol (ASGI) as our middleware uses it."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

NAMED, ROOT = "skindx_named", "skindx_root"
"""Keys of what a trusted proxy says: names that the request was for, and the folder of this server
in the addresses of browsers, such as "/skin"; missing or empty without a proxy."""
USER = "skindx_user"
"""Key of the login name in a request's scope; "" or missing on a server without logins."""


def header(scope: Message, name: bytes) -> str:
    """Return a request's header, "" without one."""
    return next(iter(headers(scope, name)), "")


def headers(scope: Message, name: bytes) -> list[str]:
    """Return every value of a request's header, in order."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def login_name(request: Any) -> str:
    """Return the login name of a Gradio request, "" on a server without logins."""
    scope = getattr(getattr(request, "request", None), "scope", None) or {}
    return str(scope.get(USER) or getattr(request, "username", None) or "")


def root_of(scope: Message) -> str:
    """Return what stands before our paths in the addresses of browsers; "" for nothing."""
    return str(scope.get(ROOT) or "")


async def respond(
    send: Send,
    status: int,
    body: bytes,
    kind: str = "text/plain; charset=utf-8",
    headers: dict[str, str] | None = None,
) -> None:
    """Answer a request."""
    fields = {"content-type": kind, "content-length": str(len(body))} | (headers or {})
    raw = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def refuse(
    send: Send,
    status: int,
    sentence: str,
    headers: dict[str, str] | None = None,
    *,
    retry_s: int | None = None,
) -> None:
    """Answer with an error in the form of the interface.

    With `retry_s` a second sentence and the header Retry-After say when to try again, and the
    connection is closed.
    """
    if retry_s is not None:
        seconds = "1 second" if retry_s == 1 else f"{retry_s} seconds"
        sentence = f"{sentence} Try again in {seconds}."
        headers = (headers or {}) | {"retry-after": str(retry_s), "connection": "close"}
    body = {"error": sentence, "gate": None, "photo": None}
    await respond(send, status, json.dumps(body).encode(), "application/json", headers)


async def read_body(receive: Receive, most: int) -> bytes | None:
    """Return the body of a request; None for one that is too long or breaks off."""
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > most:
            return None
        if not message.get("more_body"):
            return bytes(body)


def replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives the body that was read already, then whatever follows."""
    unread = [body]

    async def again() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await receive()

    return again
