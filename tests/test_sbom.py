"""The software bill of materials holds what the lock pins."""

import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

from jsonschema import Draft7Validator
from referencing import Registry
from referencing.jsonschema import DRAFT7

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
    assert all(component["licenses"] for component in bill["components"])
    for component in bill["components"]:
        del component["hashes"][1:]  # one shows what all have
    _schema().validate(bill)
    del bill["components"][0]["name"]
    assert not _schema().is_valid(bill)


def _schema() -> Draft7Validator:
    """Return CycloneDX's own schema of version 1.6, with those that it refers to."""
    folder = files("cyclonedx.schema._res")
    main, *others = (
        json.loads((folder / f"{name}.SNAPSHOT.schema.json").read_text(encoding="utf-8"))
        for name in ("bom-1.6", "spdx", "jsf-0.82")
    )
    named = (one["$id"].replace(".schema", ".SNAPSHOT.schema") for one in others)
    resources = map(DRAFT7.create_resource, others)
    return Draft7Validator(
        main, registry=Registry().with_resources(zip(named, resources, strict=True))
    )


def test_the_licence_of_every_pin_is_known_and_only_one_extra_brings_the_agpl() -> None:
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE)
    listed = json.loads((ROOT / "docs/measured/licences.json").read_text("utf-8"))["packages"]
    stated = {(name, version) for name in listed for version in listed[name]["version"].split(", ")}
    assert stated == set(pinned)  # after `make lock` run `make licences`
    under = {name for name, one in listed.items() if "AGPL" in one["licence"]}
    assert under == {"nudenet", "ultralytics", "ultralytics-platform", "ultralytics-thop"}
    assert all(listed[name]["for"] == ["detect"] for name in under)
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    bound = [
        name
        for name, one in listed.items()
        if "GPL" in one["licence"] and not {"dev", "docs"}.issuperset(one["for"])
    ]
    assert all(name.removesuffix("-binary") in notice for name in bound)
