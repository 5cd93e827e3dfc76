"""The ledger: one row a URL or file, and a reason for everything that did not become a picture."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What became of one picture that a source named.

    `status` is "stored", or the reason why not as a fixed short word (dead-link, too-large,
    not-a-picture, robots, private-address …); `detail` says it in a sentence. `path` is relative
    to the dataset folder, `sha256` is of the bytes as they came; both are "" when nothing was
    stored. `group` names the patient, lesion or article where the source knows it.
    """

    url: str
    label: str
    status: str
    detail: str = ""
    sha256: str = ""
    path: str = ""
    size_bytes: int = 0
    retrieved: str = ""
    source: str = ""
    page_url: str = ""
    licence: str = ""
    creator: str = ""
    attribution: str = ""
    skin_type: int | None = None
    group: str = ""
