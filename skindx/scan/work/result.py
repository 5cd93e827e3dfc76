"""From the answers of all tasks to lesions: boxes joined across tiles, failures counted."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skindx.core.errors import UserError
from skindx.scan.join import Found, join
from skindx.scan.lesion import Lesion, ScannedPhoto
from skindx.scan.lesion_file import read_lesions
from skindx.scan.photo.pixels import PixelStore
from skindx.scan.work.folder import Plan, WorkFolder
from skindx.scan.work.tasks import ScanTask

Answers = Mapping[str, Any]
"""What workers answered, by the keys of the tasks."""


class UnscannableError(UserError):
    """A photo that no scan can search, as its tiles show: nothing of it is kept."""


FILLED = 0.5
"""A single lesion whose longer side is this share of the photo's shorter one fills it."""


def joined_boxes(
    folder: WorkFolder,
    plan: Plan,
    answers: Answers,
    failed: Sequence[ScanTask],
    labels: Sequence[str],
) -> list[dict[str, Any]]:
    """Return, for each photo, its lesions' boxes and the counts of its tiles.

    `answers` and the `failed` single tiles have every tile once. Raises UnscannableError for a
    photo without skin, and for one that a lesion fills.
    """
    return [
        _joined(folder, plan, photo, answers=answers, failed=failed, labels=labels)
        for photo in range(len(plan.photos))
    ]


def _joined(
    folder: WorkFolder,
    plan: Plan,
    photo: int,
    *,
    answers: Answers,
    failed: Sequence[ScanTask],
    labels: Sequence[str],
) -> dict[str, Any]:
    store = folder.store(photo)
    name = str(store.facts["name"])
    total = sum(len(grid.patches) for grid in folder.grids(plan, photo))
    own = [answer for key, answer in answers.items() if ScanTask.of(key).photo == photo]
    lost = [_named(folder, plan, task) for task in failed if task.photo == photo]
    skipped = sum(answer["skipped"] for answer in own)
    if skipped == total:
        raise UnscannableError(
            f"{name} shows no skin in any of its {total} tiles; give a colour photo in which "
            "skin can be seen."
        )
    if skipped + len(lost) == total:
        raise UnscannableError(
            f"{name}: all of its tiles with skin ended their workers; see that the bundle and the "
            "machine are sound, and run the command again with another --out."
        )
    rows = np.array([row for answer in own for row in answer["rows"]], np.float64)
    boxes_K4, scores_K, labels_K = join(Found.of(rows), plan.settings.least_side)
    _refuse_filled(name, store, boxes_K4)
    boxes = [
        [*map(float, box), float(score), labels[int(label)]]
        for box, score, label in zip(boxes_K4, scores_K, labels_K, strict=True)
    ]
    return {"boxes": boxes, "tiles": total, "skipped": skipped, "failed": lost}


def _refuse_filled(name: str, store: PixelStore, boxes_K4: Any) -> None:
    if len(boxes_K4) == 1 and (boxes_K4[0, 2:] - boxes_K4[0, :2]).max() >= FILLED * min(
        store.size()
    ):
        raise UnscannableError(
            f"one lesion fills {name}; a scan is for wide photos, use `skindx diagnose` for "
            "this one."
        )


def _named(folder: WorkFolder, plan: Plan, task: ScanTask) -> dict[str, Any]:
    """Say where a tile that failed lies, in pixels of the whole photo."""
    grid, store = folder.grid(plan, task.photo, task.level), folder.store(task.photo)
    (left, top), (factor, dx, dy) = grid.place(task.first), store.to_full(task.level)
    place = [factor * left + dx, factor * top + dy, factor * grid.tile]
    return {"scale": task.level, "tile": task.first, "left_top_side": place}


def scanned_photos(
    folder: WorkFolder, plan: Plan, lesion_tasks: Sequence[ScanTask]
) -> list[ScannedPhoto]:
    """Return all photos with their lesions, from the files in the work folder alone.

    This is where the results of a scan come from; `lesion_tasks` are those that are done.
    """
    photos: list[ScannedPhoto] = []
    for photo, counted in enumerate(folder.read_boxes()):
        store = folder.store(photo)
        lesions: list[Lesion] = []
        for task in sorted(lesion_tasks, key=lambda task: task.first):
            if task.photo == photo:
                lesions += read_lesions(folder.answer(task.key))
        width, height = store.size()
        photos.append(
            ScannedPhoto(
                name=str(store.facts["name"]),
                sha256=str(store.facts["sha256"]),
                width=width,
                height=height,
                tiles=counted["tiles"],
                tiles_without_skin=counted["skipped"],
                failed_tiles=len(counted["failed"]),
                lesions=tuple(lesions),
            )
        )
    return photos


def problems(folder: WorkFolder, undiagnosed: Sequence[ScanTask]) -> list[str]:
    """Return a sentence for each tile and lesion that the scan had to leave out."""
    said: list[str] = []
    for photo, counted in enumerate(folder.read_boxes()):
        name = str(folder.store(photo).facts["name"])
        for failed in counted["failed"]:
            left, top, side = failed["left_top_side"]
            said.append(
                f"{name}: tile {failed['tile']} of scale {failed['scale']}, {side:.0f} pixels wide "
                f"at ({left:.0f}, {top:.0f}), ended its workers and was left out; lesions in it "
                "may be missing."
            )
        for task in undiagnosed:
            if task.photo == photo:
                x1, y1, x2, y2 = counted["boxes"][task.first][:4]
                said.append(
                    f"{name}: the lesion at ({x1:.0f}, {y1:.0f}) to ({x2:.0f}, {y2:.0f}) ended its "
                    "workers and has no diagnosis."
                )
    return said
