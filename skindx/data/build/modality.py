"""The modality of a source whose table states it line by line."""

import re

from skindx.data.origin import Modality
from skindx.data.recipe import BuildSettings
from skindx.data.sources.columns import cell, read_table
from skindx.data.sources.files import FilesSource
from skindx.data.sources.table import TableSource

_DERMOSCOPIC = re.compile(r"derm(at)?os[ck]op|epilumin")
_CLINICAL = re.compile(r"clinic|klinisch|close.?up|overview|macro|camera|phone|photo|tbp")


def with_modalities(settings: BuildSettings) -> BuildSettings:
    """Return the settings with the modality that tables with a column `modality` state.

    What a recipe says of a source wins. Raises UserError for a table that cannot be read.
    """
    sources = tuple(
        source.model_copy(update={"modality": _stated(source)})
        if isinstance(source, FilesSource | TableSource)
        and source.columns.modality
        and not source.modality
        else source
        for source in settings.sources
    )
    return settings.model_copy(update={"sources": sources})


def _stated(source: FilesSource | TableSource) -> Modality:
    """Return what all lines together say; "" where a line says nothing that is known."""
    column = source.columns.modality
    words = {cell(line.get(column)).casefold() for line in read_table(source.path, source.columns)}
    kinds = {modality_of(text) for text in words}
    if not kinds or "" in kinds:
        return ""
    return kinds.pop() if len(kinds) == 1 else "mixed"


def modality_of(text: str) -> Modality:
    """Return the modality that a cell names, such as the ISIC archive's `image_type`."""
    dermoscopic, clinical = _DERMOSCOPIC.search(text), _CLINICAL.search(text)
    if dermoscopic and clinical:
        return "mixed"
    return "dermoscopic" if dermoscopic else "clinical" if clinical else ""
