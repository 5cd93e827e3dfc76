"""How much a request may send, all requests together, and how long it may take over it."""

import asyncio
from collections.abc import Callable

from skindx.ui.asgi import App, Message, Receive, Send, header, refuse

SILENCE_S = 30.0
"""A client that sends nothing for so long is given up."""


class BodyLimit:
    """ASGI middleware that counts a body while it arrives, before anybody keeps it.

    `most` gives the limit of a path in bytes; `total` is that of all requests together, since
    what arrives is held in memory.
    """

    def __init__(self, app: App, most: Callable[[str], int], total: int) -> None:
        self.app, self._most, self._total = app, most, total
        self._held = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Pass a request on until it sends too much; then it ends with 413, 408 or 503."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        most = self._most(scope["path"])
        declared = header(scope, b"content-length")
        if declared.isdigit() and int(declared) > most:
            await _too_much(send, most)
            return
        if declared.isdigit() and self._held + int(declared) > self._total:
            await _busy(send)
            return
        await self._counted(scope, receive, send, most)

    async def _counted(self, scope: Message, receive: Receive, send: Send, most: int) -> None:
        came, begun, whole = 0, False, False
        refused: Callable[[Send], object] | None = None

        async def count() -> Message:
            nonlocal came, whole, refused
            if whole:
                return await receive()
            try:
                message = await asyncio.wait_for(receive(), SILENCE_S)
            except TimeoutError:
                refused = _too_slow
                return {"type": "http.disconnect"}
            size = len(message.get("body", b""))
            came += size
            self._held += size
            whole = not message.get("more_body", False)
            if came > most:
                refused = lambda send: _too_much(send, most)  # noqa: E731
            elif self._held > self._total:
                refused = _busy
            return {"type": "http.disconnect"} if refused else message

        async def sent(message: Message) -> None:
            nonlocal begun
            if refused is None or begun:
                begun = True
                await send(message)

        try:
            await self.app(scope, count, sent)
        except Exception:
            if refused is None or begun:
                raise
        finally:
            self._held -= came
        if refused is not None and not begun:
            await refused(send)  # type: ignore[misc]


async def _too_much(send: Send, most: int) -> None:
    sentence = f"The request has more than {most >> 20} MB; send fewer or smaller photos."
    await refuse(send, 413, sentence, {"connection": "close"})


async def _busy(send: Send) -> None:
    sentence = "Too many photos arrive at once; try again in a few seconds."
    await refuse(send, 503, sentence, {"retry-after": "5", "connection": "close"})


async def _too_slow(send: Send) -> None:
    await refuse(send, 408, "The photo did not arrive; try again.", {"connection": "close"})
