"""Runs that were made before the kit was a distribution of its own go on with it."""

from pathlib import Path
from typing import Any

import pytest

from skindx.training.checkpoint.fingerprints import fingerprint
from skindx.training.config.run import TrainSettings

MEMBER = {"name": "a", "model": "test_resnet", "preprocess": {"size": 64}}
OTHERS = {"kind": "kfac", "negligible": 0, "factor_rows": 0, "gradient_workers": 0.5}
BEFORE = {
    "kfac": (
        {"recipe": {"preconditioner": {"kind": "kfac"}}},
        "b037deb9c2867c5a980061d4f257be8a28f37a03ac0985eaef278ece397a03f8",
    ),
    "kfac with other settings": (
        {"recipe": {"preconditioner": {**OTHERS, "damping_epochs": [2, 3]}}},
        "f2b6c1cff4d168f69aefed17ec294ed43ce82888f4592fd4fe90acc3f145c1dc",
    ),
    "hop": (
        {"engine": {"schedule": "hop"}},
        "6d8ca819a46417ce7c45b6ce701a5841116fd36fd2cc953e42f66195f0537fbe",
    ),
    "hop over partitions": (
        {"engine": {"schedule": "hop", "partitions": 4, "lease_s": 20}},
        "552d3226031d226860c2306e09e31eefadae6bb0f624a121b296c6e67dda0480",
    ),
    "members": (
        {"engine": {"schedule": "members"}},
        "166a24d5d10f7727621eed36aca772e4ab301c7a4ce56845f34d12dacaa27673",
    ),
}
"""Settings, and the fingerprint of a member that earlier versions trained so."""


@pytest.mark.parametrize("name", BEFORE)
def test_a_member_keeps_the_fingerprint_of_earlier_versions(name: str, tmp_path: Path) -> None:
    raw: dict[str, Any]
    raw, expected = BEFORE[name]
    (tmp_path / "manifest.parquet").write_bytes(b"manifest")
    settings = TrainSettings.parse({"members": [MEMBER], **raw})
    assert fingerprint(settings, settings.members[0], tmp_path) == expected
