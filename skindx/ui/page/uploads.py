"""Uploaded files: only from the upload folder, read within limits, gone with the answer."""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from skindx.core.errors import UserError
from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import Refused, read_photo, small_view
from skindx.diagnosis.record import CaseAnswer
from skindx.imaging.decode import decode
from skindx.imaging.formats import photo_format
from skindx.ui.html import data_url

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


def shown_by_server(case: Case, answer: CaseAnswer) -> dict[int, str]:
    """Return small photos of a case's HEIC photos, as addresses, by their place in it.

    Most browsers cannot show HEIC. The photos are made of what the page shows of the photos.
    """
    small = {
        place: small_view(photo, decode(view.jpeg))
        for place, (photo, view) in enumerate(zip(case.photos, answer.views, strict=True))
        if photo_format(photo[:16]) == "HEIC"  # before the view is decoded for nothing
    }
    return {place: data_url(jpeg, "image/jpeg") for place, jpeg in small.items()}


def shown_of_refused(error: Refused) -> dict[int, str]:
    """Return the same of the photos that were refused."""
    small = {refusal.photo: refusal.shown for refusal in error.refusals if refusal.shown}
    return {place: data_url(jpeg, "image/jpeg") for place, jpeg in small.items()}


def upload_folder() -> Path:
    """Return where Gradio puts uploads."""
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
