"""A case out of a multipart request; its photos stay in memory."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from skindx.clinic.source_photos import Named
from skindx.core.errors import UserError
from skindx.diagnosis.case import MAX_PHOTOS, Case, Patient
from skindx.diagnosis.intake import INTAKE
from skindx.diagnosis.photo_checks import MAX_BYTES
from skindx.scan.ruler import given_scale
from skindx.texts.catalogue import spoken
from skindx.ui.http.api_schemas import INCLUDES

FORM_BYTES = MAX_PHOTOS * MAX_BYTES + (1 << 20)
"""Most bytes of a request."""
SCALE = "scale_mm_per_pixel"
"""The field of a scan's form, once or for each photo; without it sizes are in pixels."""
NO_SCALE = "none"
"""Its value for a photo without one, where others have one."""
_NO_FACTS = ("patient_id", "include", "exclude", "language", "modality")
_HOW = "send multipart/form-data with 1 to 3 files named `photo`"


@dataclass(frozen=True)
class AskedCase:
    """A case, and what its form asks for beside the diagnosis."""

    case: Case
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """What FHIR leaves out: `pdf`."""
    named: Named = field(default_factory=Named)
    """Whose photos they are, for the reports."""


async def read_case(request: Request) -> AskedCase:
    """Return the case, and what beside the diagnosis is asked for. Raises UserError."""
    photos, fields = await read_form(request)
    include, exclude = (_parts(fields.pop(name, "")) for name in ("include", "exclude"))
    for part in exclude:
        if part != "pdf":
            raise UserError(f"{part[:20]!r} cannot be excluded; valid: pdf.")
    named, language = Named(fields.pop("patient_id", "")), fields.pop("language", spoken())
    modality: Any = fields.pop("modality", "")
    case = Case(photos, _patient(fields), language, modality)
    return AskedCase(case, _checked(include), exclude, named)


def _parts(value: str) -> tuple[str, ...]:
    return tuple(part for part in value.split(",") if part)


async def read_scan(request: Request) -> tuple[tuple[bytes, ...], tuple[float | None, ...]]:
    """Return the photos to scan, and the millimetres in a pixel of each, or none.

    Raises UserError.
    """
    photos, fields = await _read(request)
    _check(photos)
    for name, _ in fields:
        if name != SCALE:
            raise UserError(
                f"the form has an unknown field {name!r}; the only valid field is {SCALE}."
            )
    values = [value for _, value in fields]
    if len(values) == 1:
        values *= len(photos)
    if values and len(values) != len(photos):
        raise UserError(
            f"the form has {len(photos)} photos but {len(values)} fields {SCALE}; send one field "
            f"for all photos, or one for each photo in the same order ({NO_SCALE}: unknown)."
        )
    return photos, tuple(None if value == NO_SCALE else _scale(value) for value in values)


async def read_photo(request: Request) -> bytes:
    """Return the one photo of a form. Raises UserError."""
    photos, fields = await _read(request)
    if len(photos) != 1 or fields:
        raise UserError(
            "the form must have exactly one file named `photo` and no other field; send only "
            "that file."
        )
    _check(photos)
    return photos[0]


def _check(photos: tuple[bytes, ...]) -> None:
    Case(photos)  # which says how many may come
    for number, photo in enumerate(photos, 1):
        if len(photo) > MAX_BYTES:
            raise UserError(
                f"photo {number} has more than {MAX_BYTES >> 20} MB; send a smaller file."
            )


def _scale(value: str) -> float:
    try:
        mm_per_pixel = float(value)
    except ValueError:
        raise UserError(
            f"{SCALE} {value[:20]!r} is not a number; give the millimetres per pixel."
        ) from None
    try:
        return given_scale(mm_per_pixel).mm_per_pixel
    except UserError as error:
        raise UserError(str(error).replace("--scale", SCALE)) from None


async def read_form(request: Request) -> tuple[tuple[bytes, ...], dict[str, str]]:
    """Return the photos and the other fields of a form, held in memory. Raises UserError."""
    photos, fields = await _read(request)
    return photos, dict(fields)


async def _read(request: Request) -> tuple[tuple[bytes, ...], list[tuple[str, str]]]:
    """Return the photos and the other fields, which may come several times, in their order."""
    if not is_form(request):
        raise UserError(f"the request has no form data; {_HOW}.")
    photos: list[bytes] = []
    fields: list[tuple[str, str]] = []
    try:
        # Room for one more photo than allowed: the case itself says then how many came.
        most = {"files": MAX_PHOTOS + 1, "fields": 16, "field_bytes": 1024}
        async with parsed_form(request, _Parser, **most) as form:
            for name, value in form.multi_items():
                if isinstance(value, str):
                    if value.strip():
                        fields.append((name, value.strip()))
                elif name == "photo":
                    photos.append(await value.read())
                else:
                    raise UserError(f"a file of the form is named {name!r}; {_HOW}.")
    except (MultiPartException, KeyError) as error:
        raise UserError(f"the form cannot be read ({_reason(error)}); {_HOW}.") from None
    return tuple(photos), fields


def is_form(request: Request) -> bool:
    """Tell whether a request says that it is multipart form data."""
    return request.headers.get("content-type", "").lower().startswith("multipart/form-data")


@asynccontextmanager
async def parsed_form(
    request: Request,
    kind: type[MultiPartParser],
    *,
    files: int,
    fields: int,
    field_bytes: int = 1 << 20,
) -> AsyncIterator[FormData]:
    """Yield a form of at most so many files and fields, held in memory.

    Raises MultiPartException or KeyError for what is none.
    """
    parser = kind(request.headers, _stream(request), max_files=files, max_fields=fields)
    parser.spool_max_size = FORM_BYTES  # a larger part than this would be put on disk
    parser.max_part_size = field_bytes
    form = await parser.parse()
    try:
        yield form
    finally:
        await form.close()


class _Parser(MultiPartParser):
    """Takes a photo for a file also where its sender gives no file name."""

    def on_headers_finished(self) -> None:
        part = self._current_part
        _, options = parse_options_header(part.content_disposition)
        if options.get(b"name") == b"photo" and b"filename" not in options:
            part.content_disposition = (part.content_disposition or b"") + b'; filename="photo"'
        super().on_headers_finished()


def _patient(fields: dict[str, str]) -> Patient:
    values: dict[str, object] = {}
    for name, value in fields.items():
        if name not in INTAKE:
            raise UserError(
                f"the form has an unknown field {name!r}; valid fields are "
                f"{', '.join((*INTAKE, *_NO_FACTS))}."
            )
        if INTAKE[name].number:
            if not value.isascii() or not value.isdigit() or len(value) > 3:
                raise UserError(
                    f"{name} {value[:20]!r} is not a whole number; give a whole number, or omit "
                    "the field."
                )
            values[name] = int(value)
        else:
            values[name] = value
    return Patient.parse(values, origin="the form", expand=False)


def _checked(include: tuple[str, ...]) -> tuple[str, ...]:
    for part in include:
        if part not in INCLUDES:
            raise UserError(
                f"{part[:20]!r} cannot be included; valid values of `include` are "
                f"{', '.join(INCLUDES)}."
            )
    return include


def _reason(error: Exception) -> str:
    return error.message.rstrip(".") if isinstance(error, MultiPartException) else "no boundary"


async def _stream(request: Request) -> AsyncGenerator[bytes, None]:
    async for chunk in request.stream():
        yield chunk
