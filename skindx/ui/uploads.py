"""Photos on their way to the page: within quotas, whole or not at all, deleted after a while.

Gradio's own upload leaves what a broken connection sent in its folder for ever, and any number of
files there. So the page's uploads are taken here: each lies under a random name until it is
diagnosed, which deletes it, or until it is too old. Only files of the upload folder are read.
"""

import asyncio
import json
import os
import secrets
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from skindx.core.errors import UserError
from skindx.core.private_files import make_private, new_private
from skindx.diagnosis.case import MAX_PHOTOS, Case
from skindx.diagnosis.network_gates import cut_photo
from skindx.diagnosis.photo_checks import MAX_BYTES, Refused, read_photo, small_view
from skindx.diagnosis.record import CaseAnswer
from skindx.imaging.cut_lesions import Cut
from skindx.imaging.decode import decode
from skindx.imaging.image_formats import HEAD, SHOWN_BY_NONE, photo_format
from skindx.models.bundle.use_limits import Examples
from skindx.ui.http.api_schemas import problem
from skindx.ui.http.asgi import App, Message, Receive, Send, refuse, respond
from skindx.ui.http.forms import FORM_BYTES, is_form, parsed_form
from skindx.ui.http.request_limits import ConnectionQuota, client_of
from skindx.ui.page_basics import data_url

if TYPE_CHECKING:
    from fastapi import APIRouter

ROUTE = "/gradio_api/upload"
REQUEST_BYTES = FORM_BYTES
UPLOAD_LIFE_S = 300.0
"""Seconds after which a photo is deleted that was uploaded but never diagnosed."""
_SWEEP_S = 10.0
_CLIENT_BYTES, _TOTAL_BYTES = 128 << 20, 1 << 30
"""Most bytes of photos that wait to be looked at, from one client and in all."""
_NO_FORM = "The upload is no form with photos named `files`."
_NAME = "photo"


@dataclass(frozen=True, slots=True)
class _Waiting:
    client: str
    size: int
    until: float


class UploadFolder:
    """Photos that wait in a folder; `quota` bounds their bytes for each client and in all."""

    def __init__(
        self, folder: Path, quota: ConnectionQuota | None = None, life_s: float = UPLOAD_LIFE_S
    ) -> None:
        self.folder = folder.resolve()
        self.quota = quota or ConnectionQuota(_CLIENT_BYTES, _TOTAL_BYTES)
        self._life_s = life_s
        self._waiting: dict[Path, _Waiting] = {}

    async def add(self, client: str, photos: list[bytes]) -> list[Path]:
        """Write photos and return their paths; none stays if one cannot be written (OSError)."""
        paths = [self.folder / secrets.token_hex(16) / _NAME for _ in photos]
        sizes = [len(photo) for photo in photos]
        self.quota.add(client, sum(sizes))
        writing = asyncio.create_task(asyncio.to_thread(_write, paths, photos))
        try:
            await asyncio.shield(writing)
        except BaseException:
            await asyncio.wait([writing])  # a cancelled request must not leave a writing thread
            for path in paths:
                shutil.rmtree(path.parent, ignore_errors=True)
            self.quota.add(client, -sum(sizes))
            raise
        # Only now: a sweep takes a listed photo that is not there for one that was deleted.
        until = time.monotonic() + self._life_s
        for path, size in zip(paths, sizes, strict=True):
            self._waiting[path] = _Waiting(client, size, until)
        return paths

    def sweep(self) -> None:
        """Delete what is too old, and give back the share of what was deleted."""
        now = time.monotonic()
        for path, waiting in tuple(self._waiting.items()):
            if waiting.until < now or not path.exists():
                self._forget(path)

    async def keep_clear(self) -> None:
        """Sweep until cancelled."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.sweep()

    def _forget(self, path: Path) -> None:
        waiting = self._waiting.pop(path)
        shutil.rmtree(path.parent, ignore_errors=True)
        self.quota.add(waiting.client, -waiting.size)


class Uploads:
    """ASGI middleware that takes the page's uploads in Gradio's place; the rest passes."""

    def __init__(self, app: App, folder: UploadFolder) -> None:
        self.app, self._folder = app, folder

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer an upload with the paths of its photos, as Gradio's front end expects it."""
        if scope["type"] != "http" or scope["path"].rstrip("/") != ROUTE:
            await self.app(scope, receive, send)
            return
        if scope["method"] != "POST":
            await refuse(send, 405, "Photos are sent by POST.", {"allow": "POST"})
            return
        self._folder.sweep()
        request, client = Request(scope, receive), client_of(scope)
        declared = request.headers.get("content-length", "")
        if await self._refused(send, client, int(declared) if declared.isdigit() else 0):
            return
        try:
            photos = await _photos(request)
        except ClientDisconnect:
            return
        except MultiPartException:
            await refuse(send, 400, _NO_FORM)
            return
        if any(len(photo) > MAX_BYTES for photo in photos):
            sentence = f"A photo has more than {MAX_BYTES >> 20} MB; save it smaller."
            await refuse(send, 413, sentence)
        elif not await self._refused(send, client, sum(map(len, photos))):
            try:
                paths = await self._folder.add(client, photos)
            except OSError:
                await refuse(send, 507, "The server has no room for photos; try again later.")
                return
            body = json.dumps([str(path) for path in paths]).encode()
            await respond(send, 200, body, "application/json")

    async def _refused(self, send: Send, client: str, size: int) -> bool:
        exceeded = self._folder.quota.exceeded(client, size)
        if exceeded:
            whose = "your photos" if exceeded == "client" else "photos"
            status = 429 if exceeded == "client" else 503
            await refuse(send, status, f"Too many {whose} wait to be looked at.", retry_s=60)
        return bool(exceeded)


async def _photos(request: Request) -> list[bytes]:
    """Return the files of a form. Raises MultiPartException for what is none."""
    if not is_form(request):
        raise MultiPartException(_NO_FORM)
    try:
        most = {"files": MAX_PHOTOS, "fields": MAX_PHOTOS}
        async with parsed_form(request, MultiPartParser, **most) as form:
            files = [value for value in form.getlist("files") if not isinstance(value, str)]
            photos = [await file.read() for file in files]
    except KeyError:
        raise MultiPartException(_NO_FORM) from None
    if not photos:
        raise MultiPartException(_NO_FORM)
    return photos


def _write(paths: list[Path], photos: list[bytes]) -> None:
    for path, photo in zip(paths, photos, strict=True):
        make_private(path.parent, parents=False)
        with new_private(path) as file:
            file.write(photo)


EXAMPLE = "/examples"
"""Where the page gets an example, which it then sends as any other photo."""


def offered_examples(examples: Examples) -> list[dict[str, str]]:
    """Return what the form shows of each example."""
    return [
        {
            "url": f"{EXAMPLE[1:]}/{number}",
            "jpeg": data_url(photo.thumbnail, "image/jpeg"),
        }
        for number, photo in enumerate(examples.photos.values(), 1)
    ]


def example_routes(examples: Examples) -> "APIRouter":
    """Return the router of the examples' files, by their place in the list from 1 on."""
    from fastapi import APIRouter

    router, photos = APIRouter(), tuple(examples.photos.values())

    @router.get(f"{EXAMPLE}/{{number}}", include_in_schema=False)
    def example(number: int) -> Response:
        if not 0 < number <= len(photos):
            return problem(404, "there is no such example; reload the page.")
        return Response(photos[number - 1].data, media_type="application/octet-stream")

    return router


_GONE = "a photo did not arrive or was cleared away; send it again."


def take_uploads(paths: Sequence[object], folder: Path) -> tuple[bytes, ...]:
    """Return the bytes of uploaded files; every file that lies in `folder` is deleted in any case.

    A path comes from the browser, so it may be anybody's invention: only a file that lies, links
    resolved, inside `folder` is read or deleted. Raises UserError for any other.
    """
    inside = [_inside(path, folder) for path in paths]
    try:
        return tuple(read_photo(_checked(path)) for path in inside)
    finally:
        for path in inside:
            if path is not None:
                path.unlink(missing_ok=True)
                with suppress(OSError):  # its folder is named by the photo's hash
                    path.parent.rmdir()


def taken_on(answer: CaseAnswer, day: str) -> CaseAnswer:
    """Return an answer whose photos were taken on a day, as a person says; "" changes nothing."""
    if not day:
        return answer
    photos = tuple(one.model_copy(update={"taken": day}) for one in answer.diagnosis.photos)
    return replace(answer, diagnosis=answer.diagnosis.model_copy(update={"photos": photos}))


def cut_as_seen(answer: CaseAnswer, cuts: Sequence[Cut]) -> CaseAnswer:
    """Return an answer that says of each photo that its lesion is cut, as the form said before.

    `cuts` are what the form found, photo by photo. It judges what it shows; the server looks again,
    and what it finds stands.
    """
    photos = list(answer.diagnosis.photos)
    for place, (photo, cut) in enumerate(zip(photos, cuts, strict=False)):
        photos[place] = photo if photo.cut_by else cut_photo(photo, cut)
    diagnosis = answer.diagnosis.model_copy(update={"photos": tuple(photos)})
    return replace(answer, diagnosis=diagnosis)


def shown_by_server(case: Case, answer: CaseAnswer) -> dict[int, str]:
    """Return small photos of those that most browsers cannot show, as addresses, by their place.

    They are made of what the page shows of the photos.
    """
    small = {
        place: small_view(photo, decode(view.jpeg))
        for place, (photo, view) in enumerate(zip(case.photos, answer.views, strict=True))
        if photo_format(photo[:HEAD]) in SHOWN_BY_NONE  # before the view is decoded for nothing
    }
    return {place: data_url(jpeg, "image/jpeg") for place, jpeg in small.items()}


def shown_of_refused(error: Refused) -> dict[int, str]:
    """Return the same of the photos that were refused."""
    small = {refusal.photo: refusal.shown for refusal in error.refusals if refusal.shown}
    return {place: data_url(jpeg, "image/jpeg") for place, jpeg in small.items()}


def upload_folder() -> Path:
    from gradio.utils import get_upload_folder

    return Path(get_upload_folder())


def _inside(path: object, folder: Path) -> Path | None:
    if not isinstance(path, str) or "\0" in path:
        return None
    resolved, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    return resolved if root in resolved.parents and resolved.is_file() else None


def _checked(path: Path | None) -> Path:
    if path is None:
        raise UserError(_GONE)
    return path
