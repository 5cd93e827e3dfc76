"""What the tests of a published folder share: how it is asked for and how it is read."""

import tarfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from paint_images import encode, paint
from small_dataset import SmallDataset, free_dataset

from skindx.data.answer_log import DECISIONS
from skindx.data.decisions import Flag, write_flags
from skindx.data.publish.publish_formats import FORMATS, Format
from skindx.data.publish.publish_settings import PublishSettings

OPEN = PublishSettings(contact="down@example.org", unaudited=True)
formats = pytest.mark.parametrize("form", FORMATS)


def settings(form: Format = "hub", **said: Any) -> PublishSettings:
    return OPEN.model_copy(update={"format": form, **said})


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def everything_in(folder: Path) -> bytes:
    """Return all bytes of a folder, and what is compressed in its tables once more in the open."""
    parts = []
    for name, data in files_of(folder).items():
        parts.append(data)
        if name.endswith(".parquet"):
            for row in pq.read_table(folder / name).to_pylist():
                parts += [row["image"]["bytes"]] if "image" in row else []
                parts.append(repr({k: v for k, v in row.items() if k != "image"}).encode())
    return b"\n".join(parts)


def images_in(folder: Path, form: Format) -> dict[str, bytes]:
    """Return the published bytes by file name, read as a user of the format would."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".tar":
            with tarfile.open(path) as tar:
                for member in tar:
                    found[member.name] = tar.extractfile(member).read()
        elif path.suffix == ".parquet" and path.parent.name == "data":
            for row in pq.read_table(path).to_pylist():
                found[row["image"]["path"]] = row["image"]["bytes"]
        elif form in ("imagefolder", "fiftyone") and path.suffix in (".jpg", ".png", ".webp"):
            found[path.name] = path.read_bytes()
    return {
        name: data
        for name, data in found.items()
        if len(Path(name).stem) == 64 and not name.endswith((".json", ".cls"))
    }


Free = tuple[SmallDataset, dict[Format, Path]]


WITHHELD = {
    "licence-unknown": {"licence": ""},
    "licence-reserved": {"licence": "All rights reserved"},
    "licence-no-derivatives": {"licence": "CC BY-NC-ND 4.0"},
    "attribution-missing": {"licence": "CC BY 4.0", "creator": " ", "attribution": ""},
    "reviewed": {},
    "review-pending": {},
}


def with_withheld(folder: Path) -> tuple[Path, dict[str, str], set[str]]:
    """Return a dataset, the reason of each image that must stay, and those that may go."""
    small = free_dataset(folder)
    free = {record.sha256 for record in small.records}
    reasons = {
        small.add(
            encode(paint(100 + number), quality=88, comment=f"secret {reason}"), **said
        ): reason
        for number, (reason, said) in enumerate(WITHHELD.items())
    }
    removed = small.add(encode(paint(200), "PNG"), ".png")
    kept_by_a_person = small.add(encode(paint(201)))
    dataset = small.write()
    by_reason = {reason: sha256 for sha256, reason in reasons.items()}
    pending = by_reason["review-pending"]
    flags = [Flag(pending, "face", 0.9), Flag(pending, "text", 0.6)]
    flags += [Flag(kept_by_a_person, "intimate", 0.8), Flag(min(free), "quality", 1.0)]
    write_flags(dataset, flags, ["face", "text", "intimate", "quality"])
    (dataset / DECISIONS).write_text(
        "sha256,verdict,by,when,note\n"
        f"{by_reason['reviewed']},withhold,Dr. No,,the nurse's name is on it\n"
        f"{removed},remove,,,\n{kept_by_a_person},keep,,,\n"
    )
    return dataset, {**reasons, removed: "reviewed"}, free | {kept_by_a_person}
