"""Peers, each in an environment of its own: `ENVIRONMENT/bin/python peers.py PEER FOLDER ANSWER`.

This file imports nothing but the standard library and the peer: a peer's environment has no skindx,
and the package never imports a peer. Some peers may be used for research only; see their licences.
"""

import json
import resource
import sys
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

IMAGES = "images"
MOST = 200_000
"""So many pairs are written at most; the nearest first."""

Said = dict[str, list[Any]]


def imagededup_phash(folder: Path) -> Said:
    """Perceptual hash; accepted within its default of 10 bits, ranked within 14."""
    from imagededup.methods import PHash

    found = PHash(verbose=False).find_duplicates(
        image_dir=str(folder / IMAGES),
        max_distance_threshold=14,
        scores=True,
        num_enc_workers=0,
        num_dist_workers=0,
    )
    return {"pairs": _once(found, lambda distance: (-float(distance), distance <= 10))}


def imagededup_cnn(folder: Path) -> Said:
    """MobileNetV3 features; accepted from its default cosine of 0.9 on, ranked from 0.8 on."""
    from imagededup.methods import CNN

    found = CNN(verbose=False).find_duplicates(
        image_dir=str(folder / IMAGES),
        min_similarity_threshold=0.8,
        scores=True,
        num_enc_workers=0,
        num_sim_workers=1,
    )
    return {"pairs": _once(found, lambda cosine: (float(cosine), bool(cosine >= 0.9)))}


def cleanvision(folder: Path) -> Said:
    """Equal wavelet hashes; an image belongs the less the worse its worst issue's score is."""
    from cleanvision import Imagelab

    lab = Imagelab(data_path=str(folder / IMAGES))
    lab.find_issues(n_jobs=1, verbose=False)
    pairs = []
    for issue, score in (("exact_duplicates", 2.0), ("near_duplicates", 1.0)):
        for same in lab.info[issue]["sets"]:
            names = sorted(Path(path).name for path in same)
            pairs += [(one, other, score, True) for one, other in combinations(names, 2)]
    scores = [column for column in lab.issues.columns if column.endswith("_score")]
    scores = [column for column in scores if "duplicates" not in column]
    worst = lab.issues[scores].min(axis=1)
    off_topic = [(Path(path).name, 1 - float(score)) for path, score in worst.items()]
    return {"pairs": pairs, "off_topic": off_topic}


def selfclean(folder: Path) -> Said:
    """Distances in features that it learns by itself, or of given weights; its own cleaning."""
    import numpy as np

    names, issues = _selfclean_issues(folder)
    near, strange = issues["near_duplicates"], issues["off_topic_samples"]
    # Its cut-off counts from the first distance above nought.
    equal = int((np.asarray(near["scores"]) <= 0).sum())
    accepted = {*range(equal), *(equal + np.asarray(near["auto_issues"])).tolist()}
    ranked = zip(near["indices"][:MOST].tolist(), near["scores"][:MOST].tolist(), strict=True)
    pairs = [
        (names[int(i)], names[int(j)], -float(score), rank in accepted)
        for rank, ((i, j), score) in enumerate(ranked)
    ]
    ranks = zip(strange["indices"].tolist(), strange["scores"].tolist(), strict=True)
    off_topic = [(names[int(i)], -float(score)) for i, score in ranks]
    features = ["on the features of mobilenetv2_100"] if _weights().is_file() else []
    return {"pairs": pairs, "off_topic": off_topic, "notes": features}


def _weights() -> Path:
    """Weights that stand in for those that SelfClean would download."""
    return Path(sys.prefix) / "mobilenetv2_100.pth"


def _selfclean_issues(folder: Path) -> tuple[list[str], Any]:
    if not _weights().is_file():
        from selfclean import SelfClean

        issues = SelfClean(auto_cleaning=True).run_on_image_folder(
            folder, num_workers=0, work_dir=mkdtemp(), issues_to_detect=_selfclean_wanted()
        )
        return [Path(path).name for path in issues.meta_data_dict["path"]], issues
    import numpy as np
    import timm
    import torch
    from PIL import Image
    from selfclean.cleaner.selfclean_cleaner import SelfCleanCleaner

    model = timm.create_model("mobilenetv2_100", pad_type="same", bn_eps=1e-3)
    model.load_state_dict(torch.load(_weights(), weights_only=True))
    model.reset_classifier(0)
    model.eval()
    paths, rows = sorted((folder / IMAGES).iterdir()), []
    with torch.inference_mode():
        for path in paths:
            pixels = np.asarray(Image.open(path).convert("RGB").resize((224, 224)))
            image = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1)[None]
            rows.append(model((image - 127.5) / 127.5)[0].numpy())
    space = np.stack(rows)
    space /= np.linalg.norm(space, axis=1, keepdims=True)
    cleaner = SelfCleanCleaner(memmap=False, auto_cleaning=True)
    cleaner.fit(emb_space=space, labels=np.zeros(len(space), int), class_labels=["images"])
    return [path.name for path in paths], cleaner.predict(_selfclean_wanted())


def _selfclean_wanted() -> list[Any]:
    from selfclean.cleaner.issue_manager import IssueTypes

    return [IssueTypes.NEAR_DUPLICATES, IssueTypes.OFF_TOPIC_SAMPLES]


def fastdup(folder: Path) -> Said:
    """Nearest neighbours of its own features; accepted from its default of 0.96 on."""
    import fastdup as library

    found = library.create(work_dir=mkdtemp(), input_dir=str(folder / IMAGES))
    found.run(threshold=0.8, nearest_neighbors_k=10, cc_threshold=0.96, num_threads=1)
    likeness = found.similarity()
    columns = ("filename_from", "filename_to", "distance")
    first, second, score = (likeness[column].tolist() for column in columns)
    pairs = [
        (Path(one).name, Path(other).name, float(near), near >= 0.96)
        for one, other, near in zip(first, second, score, strict=True)
    ]
    outliers = found.outliers()
    rows = zip(outliers["filename_outlier"], outliers["distance"], strict=True)
    return {"pairs": pairs, "off_topic": [(Path(path).name, -float(near)) for path, near in rows]}


PEERS = {
    "imagededup_phash": (imagededup_phash, "imagededup"),
    "imagededup_cnn": (imagededup_cnn, "imagededup"),
    "cleanvision": (cleanvision, "cleanvision"),
    "selfclean": (selfclean, "selfclean"),
    "fastdup": (fastdup, "fastdup"),
}
"""Peer -> what asks it, and its distribution, which also names its environment."""


def _once(found: Any, read: Any) -> list[Any]:
    """Turn {name: [(name, score), ...]} into pairs; each stands once."""
    pairs = {}
    for first, near in found.items():
        for second, score in near:
            pairs[tuple(sorted((first, second)))] = read(score)
    nearest = sorted(((*pair, *said) for pair, said in pairs.items()), key=lambda row: -row[2])
    return nearest[:MOST]


def memory_mb() -> float:
    """Return the largest resident size of this process, and of its largest child."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    own_kb = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return (own_kb + resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) / 1024


def main(arguments: list[str]) -> int:
    """Ask a peer about a folder, and write its answer."""
    name, folder, file = arguments
    ask, distribution = PEERS[name]
    said = ask(Path(folder).resolve())
    named = " ".join([version(distribution), *said.get("notes", [])])
    answer = {**said, "memory_mb": memory_mb(), "version": named}
    Path(file).write_text(json.dumps(answer, default=float), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
