"""A source from another package is one class and one entry point; a broken one is one sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

TOY = '''
"""A source of two painted classes."""

from pathlib import Path
from typing import Literal

from skindx.data.ledger import LedgerRow
from skindx.data.sources.image_source import LocalSource, SourcePreview


class ToySource(LocalSource):
    """Squares of one colour."""

    kind: Literal["toy"]
    side: int = 96

    @property
    def name(self) -> str:
        return "toy"

    def preview(self) -> SourcePreview:
        return SourcePreview(["dark", "light"], ["the toy was asked"])

    def gather(self, dataset: Path) -> list[LedgerRow]:
        import io

        import numpy as np
        from PIL import Image

        rows = []
        for number in range(12):
            rng = np.random.default_rng(number)
            pixels = rng.integers(40, 220, (self.side, self.side, 3), np.uint8)
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            label = ("dark", "light")[number % 2]
            rows.append(self.stored(dataset, str(number), label, file.getvalue(), status="stored"))
        return rows
'''
ASKS = """
import json, sys
from pathlib import Path
from skindx.core.errors import UserError
from skindx.data.build.build_dataset import BuildSettings, build
from skindx.data.manifest import read_manifest

def settings(kind):
    start = {"name": "toy", "sources": [{"kind": kind}], "screen": {"not_skin": "off"}}
    return BuildSettings.load(None, start=start)

def message(kind):
    try:
        return settings(kind).sources[0].kind
    except UserError as error:
        return str(error)

out = Path(sys.argv[1])
summary = build(settings("toy"), out)
sources = sorted({record.source for record in read_manifest(out)})
print(json.dumps([sources, summary.found, list(summary.notes), message("rotten"), message("tay")]))
"""


def test_a_source_from_another_package_builds_a_dataset(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    info = packages / "toy_source-1.0.dist-info"
    info.mkdir(parents=True)
    (packages / "toy_source.py").write_text(TOY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-source\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[skindx.sources]\ntoy = toy_source:ToySource\nrotten = no_module:X\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(packages)])}
    command = [sys.executable, "-c", ASKS, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    sources, found, notes, rotten, tay = json.loads(done.stdout)
    assert sources == ["toy"]
    assert found == 12
    assert "the toy was asked" in notes
    assert "source 'rotten' comes from the package toy-source, which cannot be imported" in rotten
    assert rotten.endswith("update or uninstall toy-source.")
    assert "\n" not in rotten
    assert "atlas" in tay
    assert "toy" in tay
