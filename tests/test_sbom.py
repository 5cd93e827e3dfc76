"""The software bill of materials holds what the lock pins."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_every_pinned_package_is_in_the_bill_with_its_hashes(tmp_path: Path) -> None:
    bills = []
    for name in ("first.cdx.json", "second.cdx.json"):
        command = [
            sys.executable,
            ROOT / ".ci/sbom.py",
            ROOT / "requirements.lock",
            tmp_path / name,
        ]
        subprocess.run(command, check=True, capture_output=True)
        bills.append((tmp_path / name).read_text(encoding="utf-8"))
    assert bills[0] == bills[1]
    bill = json.loads(bills[0])
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE)
    found = [(component["name"], component["version"]) for component in bill["components"]]
    assert found == pinned
    assert len(found) > 200
    assert len({component["bom-ref"] for component in bill["components"]}) == len(found)
    hashes = [component["hashes"] for component in bill["components"]]
    assert all(hashes)
    assert sum(map(len, hashes)) == lock.count("--hash=sha256:")
