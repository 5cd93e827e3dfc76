"""Write the licence of every pinned package: `python .ci/licences.py [FOLDER OF WHEELS]`.

It reads the metadata of what is installed, of wheels for other platforms in a folder, and of
docs/measured/licences.json, which it writes, for a package whose pin has not changed. A pin whose
licence is nowhere stated ends it with exit code 1.
"""

import json
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_string
from email.message import Message
from importlib import metadata
from pathlib import Path

from lock_part import LOCK, ROOT, entries, needed

OUT = ROOT / "docs/measured/licences.json"

_BY_HAND = {
    "av": "BSD-3-Clause; its wheel holds FFmpeg with x264 and x265, GPL-2.0-or-later",
    "axe-playwright-python": "MIT; with axe-core, MPL-2.0",
    "cuda-toolkit": "LicenseRef-NVIDIA-Proprietary",
    "docutils": "public domain, BSD-2-Clause, Python-2.0; a file for Emacs is GPL-3.0-or-later",
    "google-re2": "BSD-3-Clause; its wheel holds Abseil, Apache-2.0",
    "mlcroissant": "Apache-2.0",
    "nudenet": "AGPL-3.0-only; its metadata says MIT, see NOTICE",
    "opencv-python-headless": "Apache-2.0; its wheel holds FFmpeg, LGPL-2.1-or-later",
    "pillow-heif": "BSD-3-Clause; its wheel holds x265, GPL-2.0-or-later, see NOTICE",
    "pypydispatcher": "BSD-3-Clause",
}
"""What metadata does not state, or states wrongly."""

_SPDX = (
    (r"agpl|affero", "AGPL-3.0-only"),
    (r"lesser general public|lgpl", "LGPL-3.0-or-later"),
    (r"mpl-2.0 and mit", "MPL-2.0 AND MIT"),
    (r"mpl|mozilla", "MPL-2.0"),
    (r"mit or apache|apache.*mit|mit.*apache", "MIT OR Apache-2.0"),
    (r"apache", "Apache-2.0"),
    (r"nvidia", "LicenseRef-NVIDIA-Proprietary"),
    (r"psf|python software|matplotlib", "PSF-2.0"),
    (r"2-clause|freebsd|simplified", "BSD-2-Clause"),
    (r"bsd.?3|3-clause|new bsd|modified bsd", "BSD-3-Clause"),
    (r"bsd", "BSD"),
    (r"isc", "ISC"),
    (r"mit", "MIT"),
)
"""Pattern in what a package says of its licence -> SPDX identifier; the first one that matches."""


def main(folders: list[str]) -> int:
    """Write the table; return the exit code."""
    lock = LOCK.read_text(encoding="utf-8")
    stated = {_name(one["Name"]): one for one in _of_other_platforms(folders)}
    stated |= {_name(one.metadata["Name"]): one.metadata for one in metadata.distributions()}
    earlier = json.loads(OUT.read_text("utf-8"))["packages"] if OUT.exists() else {}
    by_extra = {extra: needed(lock, [extra]) for extra in _extras()}
    core, packages = needed(lock, []), {}
    for name, text in entries(lock):
        version = re.split(r"==|[\s;]", text)[1]
        kept = earlier.get(name, {})
        licence = _BY_HAND.get(name) or (
            licence_of(stated[name])
            if name in stated
            else kept.get("licence")
            if version in kept.get("version", "").split(", ")
            else None
        )
        extras = ["core"] if name in core else [one for one in by_extra if name in by_extra[one]]
        if name in packages:  # another version, for another platform or Python
            version = f"{packages[name]['version']}, {version}"
        packages[name] = {"version": version, "licence": licence, "for": extras}
    if unknown := [name for name, one in packages.items() if not one["licence"]]:
        print(f"no licence is known of {', '.join(unknown)}; give a folder of their wheels.")
        return 1
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in packages.items()]
    OUT.write_text('{"packages": {\n' + ",\n".join(lines) + "\n}}\n", "utf-8")  # a line a package
    print(f"{OUT.relative_to(ROOT)}: {len(packages)} packages")
    return 0


def licence_of(package: Message) -> str | None:
    """Return the licence that a package's metadata names, as an SPDX identifier if it has one."""
    if expression := package.get("License-Expression"):
        return str(expression)
    named = [line for line in package.get_all("Classifier") or () if line.startswith("License ::")]
    first = str(package.get("License") or "").strip().partition("\n")[0]
    # A classifier may stand for several licences, and a text begins with its copyright.
    for text in (first, *(line.rpartition("::")[2] for line in named)):
        for pattern, spdx in _SPDX:
            if re.search(pattern, text.lower()) and not (spdx == "BSD" and text is first and named):
                return spdx
    return None


def _extras() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [name for name in project["optional-dependencies"] if name not in ("all", "app")]


def _of_other_platforms(folders: list[str]) -> Iterator[Message]:
    for wheel in (path for folder in folders for path in Path(folder).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            yield message_from_string(archive.read(file).decode("utf-8"))


def _name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
