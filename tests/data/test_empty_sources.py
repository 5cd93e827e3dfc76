"""A source that gives nothing: alone it is an error and leaves nothing, beside others a note."""

from pathlib import Path

import pytest
from local_site import LocalSite
from paint_images import paint, save

from skindx.core.errors import UserError
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.manifest import read_issues


def test_a_private_address_is_explained_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for number in range(6):
        for shift, label in enumerate(("acne", "wart")):
            save(tmp_path / "in" / label / f"{number}.jpg", paint(100 * shift + number))
    out = tmp_path / "made" / "out"
    with LocalSite() as site:
        private = {"kind": "atlas", "start": f"{site.origin}/"}
        folder = {"kind": "folder", "path": str(tmp_path / "in")}
        said = rf"The start page {site.origin}/.*name it in fetch\.allow_private"
        alone = BuildSettings.parse({"name": "x", "sources": [private]})
        with pytest.raises(UserError, match=said):
            build(alone, out)
        assert not out.exists()
        out.mkdir()
        both = {"name": "x", "workers": 1, "sources": [private, folder]}
        summary = build(BuildSettings.parse(both), out)
        assert site.asked == []
    assert summary.kept == 12
    (note,) = [note for note in summary.notes if "allow_private" in note]
    assert note in summary.lines()
    assert {issue.reason for issue in read_issues(out)} == {"empty-source", "private-address"}
