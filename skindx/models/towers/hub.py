"""A repository of the Hugging Face hub, fetched once into a folder of the cache.

`python -m skindx.models.towers.hub ORG/NAME FOLDER` is the process that fetches: no other part
reaches the hub. It takes the files by name that a tower has, configuration, card and one file of
weights, and nothing that could be run.
"""

import shutil
import sys
from pathlib import Path
from platform import node

from skindx.core.atomic_files import FolderKind, atomic_folder, write_text
from skindx.core.errors import UserError
from skindx.core.machine import cache_folder
from skindx.models.online import fetch_by
from skindx.models.towers.folder import CONFIGS, WEIGHTS
from skindx.models.towers.licence import CARD

REVISION = "revision.txt"
"""The hub's commit, in the folder of what was fetched."""
_TOWER = FolderKind("a fetched network", REVISION, ("*",))

_LIMIT_S = 3600


def hub_folder(repository: str) -> Path:
    """Return the folder of a repository ORG/NAME, fetched if it is not there. Raises UserError."""
    folder = cache_folder() / "towers" / repository.replace("/", "--")
    if not any((folder / name).is_file() for name in CONFIGS):
        _fetch(repository, folder)
    return folder


def _fetch(repository: str, folder: Path) -> None:
    reason = fetch_by("skindx.models.towers.hub", repository, str(folder), limit_s=_LIMIT_S)
    if not any((folder / name).is_file() for name in CONFIGS):
        raise UserError(
            f"{repository} is not on this machine and could not be fetched "
            f"({reason}); connect to a network once, or run these two lines where "
            f"there is one:\n  hf download {repository} --local-dir {folder.name}\n"
            f"  scp -r {folder.name} {node() or 'THIS-MACHINE'}:{folder.parent}/"
        )


def main(arguments: list[str]) -> int:
    """Fetch a repository into a folder: there whole, or not at all."""
    from huggingface_hub import HfApi, hf_hub_download

    repository, folder = arguments[0], Path(arguments[1])
    info = HfApi().model_info(repository)
    there = {sibling.rfilename for sibling in info.siblings or ()}
    config = next((name for name in CONFIGS if name in there), None)
    if config is None:
        print(f"it has neither {' nor '.join(CONFIGS)}", file=sys.stderr)
        return 1
    weights = next((name for name in WEIGHTS[CONFIGS[config]] if name in there), None)
    wanted = [config, *([weights] if weights else []), *([CARD] if CARD in there else [])]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_folder(folder, _TOWER) as fresh:
        for name in wanted:
            found = hf_hub_download(repository, name, revision=info.sha)
            shutil.copyfile(found, fresh / name)
        write_text(fresh / REVISION, f"{info.sha}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
