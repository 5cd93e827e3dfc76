"""Scans as encrypted rows, and rows as scans again."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from skindx.casebook.keys import Keys
from skindx.casebook.scan import KeptScan
from skindx.casebook.sealing import owner_code, seal, unseal


def sealed_scan(
    keys: Keys, scan: KeptScan, files: Mapping[str, bytes]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Encrypt a scan whose key is in `keys`; return its columns and those of its files."""
    key = keys.cases[scan.id]
    card = {
        "owner": scan.owner,
        "patient": scan.patient,
        "view": scan.view,
        "taken": scan.taken.astimezone(UTC).isoformat(),
        "lesions": scan.lesions,
        "photos": scan.photos,
        "consent": scan.consent,
        "consented": scan.consented.astimezone(UTC).isoformat(),
    }

    def sealed(value: Any, part: str) -> bytes:
        return seal(key, json.dumps(value).encode(), keys.book, scan.id, part)

    row = {
        "id": scan.id,
        "owner": owner_code(keys.owners, scan.owner),
        "card": sealed(card, "scan card"),
        "names": sealed(list(files), "scan names"),
    }
    contents = [
        {
            "scan_id": scan.id,
            "position": place,
            "content": seal(key, content, keys.book, scan.id, f"scan file {place}"),
        }
        for place, content in enumerate(files.values())
    ]
    return row, contents


def read_card(keys: Keys, scan: str, card: bytes) -> KeptScan:
    """Return a scan without its files. Raises UserError for a damaged row."""
    held = json.loads(unseal(keys.cases[scan], card, keys.book, scan, "scan card"))
    times = {name: datetime.fromisoformat(held[name]) for name in ("taken", "consented")}
    kept = KeptScan(id=scan, **(held | times))
    return replace(kept, lesions=int(kept.lesions), photos=int(kept.photos))


def read_names(keys: Keys, scan: str, names: bytes) -> list[str]:
    """Return the names of a scan's files, in their order."""
    held = json.loads(unseal(keys.cases[scan], names, keys.book, scan, "scan names"))
    return [str(name) for name in held]


def read_file(keys: Keys, scan: str, position: int, content: bytes) -> bytes:
    """Return a file's bytes. Raises UserError for a damaged one."""
    return unseal(keys.cases[scan], content, keys.book, scan, f"scan file {position}")
