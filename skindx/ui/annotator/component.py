"""The canvas's scripts and styles over HTTP.

Gradio has a route for them, which prints a line for every file that it sends; this stands before
it, so that the terminal shows the annotator's own words alone.
"""

from pathlib import Path
from typing import Any

from skindx.ui.asgi import App, Message, Receive, Send, respond


class ComponentFiles:
    """ASGI middleware that answers for the files of one custom component, and of no other."""

    def __init__(self, app: App, component: Any) -> None:
        """Take the component's class, whose `templates` lie beside its module."""
        import inspect

        from starlette.staticfiles import StaticFiles

        self.app = app
        self._prefix = f"/gradio_api/custom_component/{component.get_component_class_id()}/client/"
        self._files = StaticFiles(directory=Path(inspect.getfile(component)).parent / "templates")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Send the file that is asked for, 404 for one that is not there."""
        if scope["type"] != "http" or not scope["path"].startswith(self._prefix):
            await self.app(scope, receive, send)
            return
        from starlette.exceptions import HTTPException

        within = {**scope, "path": "/" + scope["path"].removeprefix(self._prefix), "root_path": ""}
        try:
            await self._files(within, receive, send)
        except HTTPException as error:
            await respond(send, error.status_code, b"not found")
