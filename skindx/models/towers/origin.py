"""Origin of a tower's weights, and the terms of their licence."""

from typing import Literal

from pydantic import Field

from skindx.core.settings_base import Settings
from skindx.data.licence import parse_licence

_SHOWN = 200


class TowerOrigin(Settings):
    """What a bundle records of third-party weights; no address in it is ever opened."""

    name: str = Field(max_length=_SHOWN)
    """Of the hub's repository or of the folder."""
    format: Literal["timm", "open_clip"]
    licence: str = Field("", max_length=_SHOWN)
    """As the card says it; empty where it names none."""
    licence_url: str = Field("", max_length=_SHOWN)
    revision: str = Field("", max_length=64)
    """The hub's commit."""
    weights_sha256: str = Field("", max_length=64)
    """Of the file of weights as it was given; empty where the member started from random ones."""

    @property
    def restricted(self) -> bool:
        """True for a licence that forbids commercial use or changed copies."""
        known = parse_licence(self.licence)
        if known.id != "unknown":
            return known.non_commercial or not known.may_adapt
        words = self.licence.casefold().replace("_", "-").split("-")
        return bool({"nc", "nd", "noncommercial", "research"} & set(words))


def origin_lines(origins: list[TowerOrigin]) -> list[str]:
    """Return the lines of a model card on towers, those of restricted licences in NOTICE form."""
    lines = []
    for origin in dict.fromkeys(origins):
        licence = origin.licence or "not named; ask who made them"
        lines.append(f"- weights of {origin.name}: licence {licence}")
    notices = [origin for origin in dict.fromkeys(origins) if origin.restricted]
    if notices:
        lines += ["", "## NOTICE", ""]
    for origin in notices:
        known = parse_licence(origin.licence)
        url = known.url or origin.licence_url
        forbids = " and ".join(
            [
                *(["commercial use"] if known.non_commercial or known.id == "unknown" else []),
                *([] if known.may_adapt and known.id != "unknown" else ["sharing changed copies"]),
            ]
        )
        commit = f" (commit {origin.revision})" if origin.revision else ""
        lines += [
            f"This bundle contains weights of {origin.name}{commit}, licensed under "
            f"{origin.licence}{f' <{url}>' if url else ''}, which may forbid {forbids}. Anyone who "
            "passes the bundle on has to keep to that licence; `skindx bundle detach` writes an "
            "archive without weights that were left as they are.",
            "",
        ]
    return lines
