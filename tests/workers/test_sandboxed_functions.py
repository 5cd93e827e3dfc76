"""A sandboxed process runs marked functions of skindx, and nothing else."""

import pytest

from skindx.data.publish.clean_files import cleaning
from skindx.data.screening.screen import screening
from skindx.imaging.heic import heic_decoding
from skindx.imaging.thumbnails import shrinking
from skindx.workers.process import Limits
from skindx.workers.sandbox import run_sandboxed
from skindx.workers.sandbox.functions import MakeWork, reference, resolve, sandboxed


@pytest.mark.parametrize("function", [cleaning, heic_decoding, screening, shrinking])
def test_marked_functions_are_found_by_their_reference(function: MakeWork) -> None:
    assert resolve(reference(function)) is function


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "skindx:cleaning",
        "skindx.files:write_text",  # ours, but not marked
        "skindx.data.publish.clean_files:sandboxed",
        "skindx.data.publish.clean_files:screening",
        "skindx.workers.sandbox.pool:reference.__globals__",
        "skindx.data.publish.clean_files:run_sandboxed",
        "skindx.data.publish.clean_files:subprocess",
        "../skindx.files:write_text",
        "",
    ],
)
def test_other_functions_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"names no function|not marked"):
        resolve(name)


def test_a_function_of_another_package_is_refused_although_it_is_marked() -> None:
    with pytest.raises(ValueError, match="names no function of skindx"):
        next(run_sandboxed(sandboxed(print)(lambda job: None), {}, [], Limits(1, 200), 1))  # type: ignore
