"""Scans as encrypted rows, and rows as scans again."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from skindx.casebook.keys import Keys
from skindx.casebook.scan import KeptScan
from skindx.casebook.sealing import Binding, damaged, owner_code


def sealed_scan(
    keys: Keys, scan: KeptScan, files: Mapping[str, bytes]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Encrypt a scan whose key is in `keys`; return its columns and those of its files."""
    key, owner = keys.cases[scan.id], owner_code(keys.owners, scan.owner)
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
    binding = Binding(keys.book, scan.id, owner)
    bound = _bound(keys, scan)
    row = {
        "id": scan.id,
        "owner": owner,
        "card": binding.seal(key, json.dumps(card).encode(), "scan card"),
        "names": bound.seal(key, json.dumps(list(files)).encode(), "scan names"),
    }
    contents = [
        {
            "scan_id": scan.id,
            "position": place,
            "content": bound.seal(key, content, _file(place)),
        }
        for place, content in enumerate(files.values())
    ]
    return row, contents


def read_card(keys: Keys, scan: str, owner: str, card: bytes) -> KeptScan:
    """Return a scan without its files; `owner` is the code in its row.

    Raises UserError for a damaged row, and for one whose owner was changed.
    """
    binding = Binding(keys.book, scan, owner)
    held = json.loads(binding.unseal(keys.cases[scan], card, "scan card"))
    if owner_code(keys.owners, held["owner"]) != owner:
        raise damaged(f"case {scan}")
    return kept_scan(scan, held)


def kept_scan(scan: str, held: dict[str, Any]) -> KeptScan:
    """Return a scan from what its decrypted card holds."""
    times = {name: datetime.fromisoformat(held[name]) for name in ("taken", "consented")}
    kept = KeptScan(id=scan, **(held | times))
    return replace(kept, lesions=int(kept.lesions), photos=int(kept.photos))


def read_names(keys: Keys, scan: KeptScan, names: bytes) -> list[str]:
    """Return the names of a scan's files, in their order. Raises UserError for a damaged row."""
    held = _bound(keys, scan).unseal(keys.cases[scan.id], names, "scan names")
    return [str(name) for name in json.loads(held)]


def read_file(keys: Keys, scan: KeptScan, position: int, content: bytes) -> bytes:
    """Return a file's bytes. Raises UserError for a damaged one."""
    return _bound(keys, scan).unseal(keys.cases[scan.id], content, _file(position))


def _bound(keys: Keys, scan: KeptScan) -> Binding:
    """Return what the parts of a scan are bound to that are read after its card."""
    owner = owner_code(keys.owners, scan.owner)
    consents = json.dumps([scan.consent, scan.consented.astimezone(UTC).isoformat()])
    return Binding(keys.book, scan.id, owner, consents=consents)


def _file(position: int) -> str:
    return f"scan file {position}"
