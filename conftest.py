import atexit
import contextlib
import fcntl
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from command_line import Skindx
    from served import Served

# Networks this small gain nothing from threads, and threads that wait keep the cores from the other
# processes of a test. Read when torch is loaded, which is later, and by every process from here.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Where a test asks for threads, those that wait leave the cores to the other tests.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Cold imports and a loaded machine make single examples slow; the test's own timeout bounds them.
settings.register_profile("skindx", deadline=None, max_examples=15)
settings.register_profile("long", settings.get_profile("skindx"), max_examples=200)
settings.load_profile("skindx")

BEGAN_S = pytest.StashKey[float]()
BROWSES = ("tests/ui/test_browser", "tests/ui/test_review_page", "tests/ui/test_serve.py")
"""Files that share chromium, the page with made-up answers, or the real server."""


# Thousands of tests and all that they import stay until the end: the collector would look through
# them again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """Leave what was imported out of every later collection."""
    gc.freeze()
    gc.enable()
    # The interpreter takes down at its end what was left out, and not sooner: pytest collects five
    # times before.
    atexit.register(gc.unfreeze)


def pytest_configure() -> None:
    """Let every process of every test keep bytecode and heed Ctrl-C, also where it is told not to.

    `make install` compiles the packages; without the rest each new process compiles our modules.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # A shell lets what it starts in the background ignore Ctrl-C, and children inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the files that train or open a browser first: at the end come short ones."""
    trains, browses = (
        {item.path for item in items if item.get_closest_marker(mark)}
        for mark in ("distributed", "browser")
    )
    items.sort(key=lambda item: (item.path not in trains, item.path not in browses))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give one worker all files that share a browser or a server: each is started once."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class BesideTheBrowser(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file: str = super()._split_scope(nodeid)
            return "browser" if file.startswith(BROWSES) else file

    return BesideTheBrowser(config, log)


def _processor_s() -> float:
    """Return the seconds of this process, of those that have ended and of those below it."""
    times = os.times()
    spent_s = times.user + times.system + times.children_user + times.children_system
    return spent_s + sum(_living_ticks(Path("/proc/self"))) / os.sysconf("SC_CLK_TCK")


def _living_ticks(process: Path) -> Iterator[int]:
    """Yield the ticks of all living processes below one; nothing where there is no /proc."""
    for task in process.glob("task/*/children"):
        with contextlib.suppress(OSError, IndexError):  # it has just ended
            for child in task.read_text().split():
                stat = Path("/proc", child, "stat").read_text().rpartition(")")[2].split()
                yield sum(map(int, stat[11:15]))  # of itself and of its ended children
                yield from _living_ticks(Path("/proc", child))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Note the seconds of processor time of a test and of the processes that ended in it.

    What a fixture costs counts for the test that needs it first; JUnit's file has the figure.
    """
    item.stash[BEGAN_S] = _processor_s()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.when == "teardown":
        spent_s = _processor_s() - item.stash[BEGAN_S]
        item.user_properties.append(("processor_s", round(spent_s, 3)))


@pytest.fixture(scope="session")
def real() -> Path:
    """Return the folder of real images, or skip: they are never part of the project."""
    where = os.environ.get("SKINDX_REAL", "")
    if not where or not Path(where).is_dir():
        pytest.skip("SKINDX_REAL does not point at a folder of real images")
    return Path(where)


@pytest.fixture(scope="session")
def device() -> str:
    """Return the device of the tests marked `gpu`: cuda, or cpu where that stands in."""
    import torch

    wanted = os.environ.get("SKINDX_GPU", "")
    if wanted == "fake":
        return "cpu"
    if not torch.cuda.is_available():
        reported = f"torch {torch.__version__} sees no GPU; SKINDX_GPU=fake lets the CPU stand in"
        if wanted == "cuda":
            pytest.fail(reported)
        pytest.skip(reported)
    return "cuda"


@pytest.fixture
def skindx(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> "Skindx":
    """Return a function that runs a command line in this process: (exit code, stdout, stderr)."""
    from command_line import running

    return running(monkeypatch, capsys)


@pytest.fixture(scope="session", autouse=True)
def warm() -> Iterator[None]:
    """Let trainings of this process start their launchers from the ranks' server.

    Crawls start from one that has imported Scrapy, and an image is described once.
    """
    from described_once import described_once
    from warm_launcher import warm_launchers
    from warm_modules import warm_crawls

    with warm_launchers(), warm_crawls(), described_once():
        yield


@pytest.fixture(scope="module")
def without_fingerprints() -> Iterator[None]:
    """Pack bundles without what recognises copies, where a test looks elsewhere: it is SIFT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skindx.training.ensembles.ready_ensemble.described", lambda *_: iter(()))
        yield


@pytest.fixture(scope="session", autouse=True)
def hasty() -> Iterator[None]:
    """Let no file wait until it is on the disk: a test ends processes, and never the machine."""
    with patch.object(os, "fsync", lambda descriptor: None):
        yield


def _made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a path that the first worker to need it has made for all; do not change it."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    made = folder / name
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(made)
    return made


@pytest.fixture(scope="session")
def tiny_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of two small networks and a detector, untrained; do not change it."""

    def pack(path: Path) -> None:
        from tiny_bundle import pack_tiny

        pack_tiny(path, detector=True)

    return _made_once(tmp_path_factory, "tiny", pack)


@pytest.fixture(scope="session")
def whole_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle that has all parts but a detector; do not change it."""

    def pack(path: Path) -> None:
        from tiny_bundle import pack_whole

        pack_whole(path)

    return _made_once(tmp_path_factory, "whole", pack)


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bundle of two small networks with both exports at fp32; do not change it."""

    def export(path: Path) -> None:
        from exporting import export_dataset
        from tiny_bundle import pack_tiny

        from skindx.models.exports.bundle_export import export_bundle

        data = export_dataset(tmp_path_factory.mktemp("exported-data"))
        pack_tiny(path)
        for to in ("onnx", "openvino"):
            export_bundle(path, to, "fp32", data)

    return _made_once(tmp_path_factory, "exported", export)


@pytest.fixture(scope="session")
def served(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Served"]:
    """Serve the tiny bundle in a process of its own, under the network guard."""
    from served import serving

    folder = tmp_path_factory.mktemp("served")
    # Proxies of tests are believed.
    with serving(tiny_bundle, folder, proxy="127.0.0.1", workers=1) as page:
        yield page


@pytest.fixture(scope="session")
def small_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset folder of 3 classes x 30 images with boxes, in four splits."""
    from shapes_dataset import write_shapes

    return write_shapes(tmp_path_factory.mktemp("small") / "data")
