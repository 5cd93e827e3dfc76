"""Equal codes as one node: the answer is that of all pairs, the memory is not."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import skindx
from skindx.core.errors import UserError
from skindx.data.copies import hash_links
from skindx.data.copies.deduplicate import Cleaned, LabelledImage, deduplicate, distinct
from skindx.data.copies.hash_links import near_links, turned_pairs_within
from skindx.data.ledger import LedgerRow
from skindx.data.screening.screen import Screened
from skindx.data.splits.groups import GroupKeys, GroupSettings, group_names
from skindx.imaging.hashes import GRID


def turned_codes(bits_GG: NDArray[np.bool_]) -> NDArray[np.uint64]:
    """Return codes_O: a grid of bits in the eight orientations."""
    grids = [
        grid[:: 1 - 2 * v, :: 1 - 2 * h]
        for grid in (bits_GG, bits_GG.T)
        for v in (0, 1)
        for h in (0, 1)
    ]
    return np.packbits(np.stack(grids).reshape(8, 64), axis=-1).view(">u8")[:, 0].astype(np.uint64)


@st.composite
def worlds(draw: st.DrawFn) -> list[LabelledImage]:
    """Draw images of few different codes, some of them turned or nearly the same."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    bases = [rng.random((GRID, GRID)) < 0.5 for _ in range(2)]
    variants = []
    for base in bases:
        for flips in (0, 2, 3):
            other = base.copy()
            other.reshape(-1)[rng.choice(64, flips, replace=False)] ^= True
            variants += [other, np.rot90(other)]
    images = []
    rows = st.tuples(st.integers(0, 11), st.sampled_from("aab"), st.integers(50, 52))
    for n, (variant, label, drawn) in enumerate(draw(st.lists(rows, min_size=1, max_size=14))):
        sha = f"{draw(st.integers(0, 30)):02d}-{variant}"
        row = LedgerRow(url=f"u{n}", label=label, status="stored", sha256=sha, size_bytes=9)
        codes = turned_codes(np.ascontiguousarray(variants[variant]))[None]
        # The same bytes are one image of one size.
        side = next((p.screened.width for p in images if p.row.sha256 == sha), drawn)
        images.append(LabelledImage(row, label, Screened(None, "", side, side, codes)))
    return images


def plainly(images: list[LabelledImage], radius: int) -> tuple[Cleaned, dict[str, str]]:
    """Do it with a link for every pair, as if there were no equal codes."""
    every = distinct(images)
    codes = np.stack([same[0].screened.codes_KO for same in every])
    links = np.stack(turned_pairs_within(codes, radius), axis=1, dtype=np.int64)
    names = group_names(every, links, GroupKeys(GroupSettings()), radius)
    return deduplicate(every, links, radius), names


@given(worlds(), st.integers(0, 5))
def test_equal_codes_as_one_give_the_same_dataset(images: list[LabelledImage], radius: int) -> None:
    every = distinct(images)
    links = near_links(np.stack([same[0].screened.codes_KO for same in every]), radius)
    cleaned = deduplicate(every, links, radius)
    names = group_names(every, links, GroupKeys(GroupSettings()), radius)
    expected, expected_names = plainly(images, radius)
    assert cleaned == expected
    assert names == expected_names


MANY = """
import resource, sys
import numpy as np
import skindx.data.copies.candidate_kernels
from skindx.data.copies.deduplicate import LabelledImage
from skindx.data.copies.deduplicate import deduplicate, distinct
from skindx.data.splits.groups import GroupKeys, GroupSettings, group_names
from skindx.data.copies.hash_links import near_links
from skindx.data.ledger import LedgerRow
from skindx.data.screening.screen import Screened

codes = np.random.default_rng(0).integers(0, 2**64, (3, 2, 8), dtype=np.uint64)
black = Screened(None, "", 9, 9, np.zeros((2, 8), np.uint64))
pictures = [
    LabelledImage(LedgerRow(f"u{n}", "ab"[n % 2], "stored", sha256=f"{n:064d}"), "ab"[n % 2], black)
    for n in range(20_000)
]
pictures += [
    LabelledImage(
        LedgerRow(f"v{n}", "a", "stored", sha256=f"v{n}"), "a", Screened(None, "", 9, 9, code)
    )
    for n, code in enumerate(codes)
]
near_links(np.zeros((2, 2, 8), np.uint64), 6)  # compiled before memory is limited
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 300_000_000, used + 300_000_000))
every = distinct(pictures)
links = near_links(np.stack([same[0].screened.codes_KO for same in every]), 6)
cleaned = deduplicate(every, links, 4)
names = group_names(every, links, GroupKeys(GroupSettings()), 6)
print(len(links), len(cleaned.kept), cleaned.near_conflicts, len(set(names.values())))
"""


def test_twenty_thousand_equal_images_fit_into_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MANY],
        cwd=Path(skindx.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    # Half of the black ones have the other label: 10,000 x 10,000 pairs contradict each other.
    assert (done.returncode, done.stdout) == (0, "19999 3 100000000 4\n"), done.stderr


def test_too_many_near_pairs_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hash_links, "MOST_PAIRS", 100)
    codes = np.arange(16, dtype=np.uint64)
    assert len(hash_links.pairs_within(codes[:14], 4)[0]) == 91
    with pytest.raises(UserError, match=r"more than 100 pairs of the 16 .*lower `dedup\.radius"):
        hash_links.pairs_within(codes, 4)
