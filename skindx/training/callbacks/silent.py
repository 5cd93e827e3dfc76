"""Callbacks that report nothing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any


class Silent:
    """Shows no bar and no epochs; messages go to `say`, by default nowhere."""

    def __init__(self, say: Callable[[str], None] = lambda line: None) -> None:
        self.line = say

    def start(self, history: Sequence[Mapping[str, Any]]) -> None:
        """There is no bar."""

    def step(self, step: int, loss: float) -> None:
        """Steps are not shown."""

    def epoch(self, history: Sequence[Mapping[str, Any]], line: str) -> None:
        """Epochs are not shown."""
