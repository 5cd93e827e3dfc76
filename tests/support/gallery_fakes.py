"""A small dataset with everything that a gallery shows, and strangers' words that bite."""

import dataclasses
from pathlib import Path

from paint_images import encode, paint
from PIL import Image

from skindx.core.atomic_files import write_json
from skindx.data.decisions import Flag, write_flags
from skindx.data.layout import store_bytes
from skindx.data.manifest import Issue, Record, write_issues, write_manifest

HOSTILE = (
    '<script>document.title="owned"</script>',
    '"><img src=x onerror="document.title=\'owned\'">',
    "javascript:document.title='owned'",
    "{{ 7 * 7 }}{% for x in y %}",
    "\u202egnp.exe\u2066",
    "' onmouseover='document.title=1",
    "</dd></li></ul></main><h1>mine</h1>",
    "a\x00\x1b[31m&lt;b&gt;",
)


def gallery_dataset(folder: Path, kept: int = 12) -> Path:
    """Write a dataset of `kept` images and one dropped image of each sort."""
    records: list[Record] = []
    for number in range(kept):
        exif = Image.Exif()
        exif[0x010E] = "taken at home"
        data = encode(paint(number), exif=exif)
        sha256, path = store_bytes(folder, data, ".jpg")
        label, split = ("acne", "wart")[number % 2], ("train", "val", "test")[number % 3]
        url = f"http://atlas.example/{number}.jpg"
        records.append(
            Record(path, sha256, "0" * 16, 120, 96, label, sha256, split, source_url=url)
        )
    for number, words in enumerate(HOSTILE):
        records[number] = dataclasses.replace(
            records[number],
            label=words,
            source_url=words,
            licence=words,
            creator=words,
            attribution=words,
            caption=words,
            group=words,
        )
    first = records[0]
    smaller, _ = store_bytes(folder, encode(paint(0), quality=40), ".jpg")
    contested, _ = store_bytes(folder, encode(paint(900)), ".jpg")
    damaged, _ = store_bytes(folder, b"\xff\xd8\xff\xe0 damaged", ".jpg")
    issues = [
        Issue("smaller.jpg", smaller, "acne", "near-duplicate", "shows the same", first.sha256),
        Issue("a.jpg", contested, "acne", "conflicting-duplicate", "acne and wart"),
        Issue("b.jpg", contested, "wart", "conflicting-duplicate", "acne and wart"),
        Issue("http://atlas.example/gone.jpg", "", "wart", "dead-link", "The server answered 404."),
        Issue("damaged.jpg", damaged, "wart", "damaged", "broken"),
        Issue(HOSTILE[2], "", HOSTILE[0], "bad-url", HOSTILE[1]),
    ]
    write_manifest(folder, records)
    write_issues(folder, issues)
    flags = [Flag(records[-1].sha256, "face", 0.75, HOSTILE[1]), Flag(contested, "text", 0.5)]
    write_flags(folder, [*flags, Flag(records[-2].sha256, "face", 0.9)], ["face", "text"])
    funnel = [
        {"label": HOSTILE[1], "named": 40, "fetched": 40, "lost": {"damaged": 30, HOSTILE[0]: 10}},
        {"label": "acne", "named": 9, "fetched": 8, "screened": 7, "distinct": 6, "kept": 6},
    ]
    none = {"screened": 0, "distinct": 0, "kept": 0, "lost": {}}
    refused = {"kind": "refused", "reason": "the dataset has no such image", "count": 2}
    boxes = {"file": HOSTILE[0], "named": 9, "joined": 7, "boxes": 8}
    boxes["findings"] = [{**refused, "first": [HOSTILE[1], "b.jpg"]}]
    write_json(folder / "summary.json", {"funnel": [none | row for row in funnel], "boxes": boxes})
    (folder / "decisions.csv").write_text(
        f"sha256,verdict,by\n{records[-2].sha256},withhold,<b>me</b>\n"
    )
    return folder
