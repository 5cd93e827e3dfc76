"""Kinds of another distribution, a toy for each family, and a program that is run beside them."""

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TOYS = '''
"""Kinds from outside, one a family."""
from typing import ClassVar, Literal
from pydantic import Field
from skindx.comm.exchange_settings import ExchangeSettings
from skindx.core.cost.pricing import StepSchedule, Strategy, after_backward
from skindx.core.settings_base import Settings
from skindx.training.config.parallel_form import ParallelSettings

class ToyExchange(ExchangeSettings):
    """Sends a tenth of everything (Doe 2020, arXiv 2001.00001)."""
    kind: Literal["toy"] = "toy"
    tenths: int = Field(1, ge=1, le=10)
    code: ClassVar[str] = "pathlib:PurePath"

    def schedule(self, load, network, rule=""):
        price = network.price("all_reduce")
        size = self.tenths * load.size_bytes // 10
        return StepSchedule((after_backward(load, size, price(size)),), spread=price.spread)

class ToyForm(Strategy):
    """Splits something, and sends nothing."""
    name = "toyform"
    parallel = True

    def schedule(self, load, network):
        return StepSchedule()

    def fragment(self):
        return {"engine": {"parallel": {"kind": "toyform"}}}

class ToyParallel(ParallelSettings):
    """Splits something."""
    kind: Literal["toyform"] = "toyform"
    price: ClassVar = ToyForm

class Anything(Settings):
    """Does whatever it says."""
    kind: Literal["anything"] = "anything"
'''


def ask_beside_toys(folder: Path, groups: Iterable[str], code: str) -> Any:
    """Install the toys in `folder`, a kind a group; return what `code` prints last, as JSON."""
    (folder / "toys.py").write_text(TOYS)
    info = folder / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    points = dict.fromkeys(groups, "anything = toys:Anything") | TOY_POINTS
    text = "\n".join(f"[{group}]\n{lines}" for group, lines in points.items())
    (info / "entry_points.txt").write_text(text)
    code = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


TOY_POINTS = {
    "skindx.exchanges": "toy = toys:ToyExchange\nbroken = no_module:X",
    "skindx.parallel_forms": "toyform = toys:ToyParallel",
}
"""Group -> its entry points, where the kind is more than a name."""
