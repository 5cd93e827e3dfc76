"""Write a software bill of materials: `python .ci/sbom.py requirements.lock FILE.cdx.json`.

CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/): one component for each package that the lock
pins, with the hashes of its files, its licence and the platform that it is for. The same lock gives
the same bytes.
"""

import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

LICENCES = Path(__file__).resolve().parents[1] / "docs/measured/licences.json"
"""Written by licences.py."""

_PACKAGE = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+))?")


def main(arguments: list[str]) -> None:
    """Read the lock, write the bill."""
    lock, out = map(Path, arguments)
    text = lock.read_text(encoding="utf-8")
    project = tomllib.loads((lock.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    out.parent.mkdir(parents=True, exist_ok=True)
    bill = json.dumps(bill_of(text, project), indent=2, ensure_ascii=False)
    out.write_text(bill + "\n", encoding="utf-8")
    print(f"{out}: {len(list(components(text)))} packages")


def bill_of(lock: str, project: dict[str, Any]) -> dict[str, Any]:
    """Return the bill of a lock's text."""
    metadata: dict[str, Any] = {
        "component": {
            "type": "application",
            "bom-ref": project["name"],
            "name": project["name"],
            "licenses": [{"license": {"id": project["license"]}}],
        }
    }
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        moment = datetime.fromtimestamp(int(epoch), UTC)
        metadata["timestamp"] = moment.isoformat().replace("+00:00", "Z")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, lock)}",
        "version": 1,
        "metadata": metadata,
        "components": list(components(lock)),
    }


def components(lock: str) -> Iterator[dict[str, Any]]:
    """Return one component for each pinned package; a package may have a version a platform."""
    licences = json.loads(LICENCES.read_text(encoding="utf-8"))["packages"]
    for entry in re.sub(r"\\\n\s*", "", lock).splitlines():
        found = _PACKAGE.match(entry)
        if not found:
            continue
        name, version, marker = found.group("name", "version", "marker")
        purl = f"pkg:pypi/{name}@{version}"
        component = {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version,
            "licenses": [_licence(licences[name]["licence"])],
            "purl": purl,
            "hashes": [
                {"alg": "SHA-256", "content": digest}
                for digest in re.findall(r"--hash=sha256:([0-9a-f]{64})", entry)
            ],
        }
        if marker:
            needed = marker.partition("--hash")[0].strip()
            component["properties"] = [{"name": "python:marker", "value": needed}]
        yield component


def _licence(text: str) -> dict[str, Any]:
    """Return an SPDX expression as one, anything else as a name."""
    spdx = not re.search(r"[;,]|^BSD$", text)
    return {"expression": text} if spdx else {"license": {"name": text}}


if __name__ == "__main__":
    main(sys.argv[1:])
