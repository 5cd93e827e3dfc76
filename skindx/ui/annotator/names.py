"""Labels as a reviewer reads them: the names of the dataset's taxonomy, never two the same."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from skindx.core.errors import UserError
from skindx.data.box import Box
from skindx.taxonomy import load_taxonomy

TAXONOMY = "taxonomy.yaml"


class Names:
    """The name of each label of a dataset, and the label of each name."""

    def __init__(self, labels: Iterable[str], known: dict[str, str]) -> None:
        """Take names by label from `known`; a label without one is its own words.

        Where two labels have the same name, the label follows it in brackets.
        """
        plain = {label: known.get(label) or _words(label) for label in labels}
        names = list(plain.values())
        self._names = {
            label: f"{name} ({label})" if names.count(name) > 1 else name
            for label, name in plain.items()
        }
        self._labels = {name: label for label, name in self._names.items()}

    @classmethod
    def of(cls, dataset: Path, labels: Iterable[str]) -> "Names":
        """Return the names of a dataset's labels, as far as its taxonomy has them."""
        try:
            classes = load_taxonomy(dataset / TAXONOMY).classes
        except UserError:  # built by other means, or before a taxonomy was stored beside it
            classes = ()
        return cls(labels, {skin_class.key: skin_class.name for skin_class in classes})

    @property
    def all(self) -> tuple[str, ...]:
        """The names, in the order of the labels."""
        return tuple(self._labels)

    def name(self, label: str) -> str:
        """Return the name of a label; an unknown one is its own words."""
        return self._names.get(label) or _words(label)

    def shown(self, boxes: Iterable[Box]) -> tuple[Box, ...]:
        """Return boxes with names for labels."""
        return tuple(dataclasses.replace(box, label=self.name(box.label)) for box in boxes)

    def stored(self, boxes: Iterable[Box]) -> tuple[Box, ...]:
        """Return boxes with labels for names; an unknown name stays, for the review to refuse."""
        return tuple(
            dataclasses.replace(box, label=self._labels.get(box.label, box.label)) for box in boxes
        )


def _words(label: str) -> str:
    words = label.replace("_", " ").strip() or label
    return words[:1].upper() + words[1:]
