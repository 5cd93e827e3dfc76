"""Python runs this at start wherever this folder is on PYTHONPATH: skindx-methods is hidden."""

import importlib.metadata
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from importlib.metadata import Distribution
from typing import Any

_everything = importlib.metadata.distributions


class _NoKit(MetaPathFinder):
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] == "skindx_methods":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _others(**context: Any) -> Iterator[Distribution]:
    return (one for one in _everything(**context) if one.name != "skindx-methods")


importlib.metadata.distributions = _others  # type: ignore[assignment]
sys.meta_path.insert(0, _NoKit())
