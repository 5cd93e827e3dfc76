import os
import subprocess
import sys
from pathlib import Path

import pytest

from skindx.diagnosis.case import Case
from skindx.diagnosis.photo_checks import check_photos
from skindx_bench.harness.conditions import ProcessTree
from skindx_bench.serve.server import photo_jpeg
from skindx_bench.subjects import run_bench

# It waits with its second child, after the first one has ended.
BURN = """
import subprocess, sys, time
end = time.process_time() + 0.3
while time.process_time() < end: pass
if sys.argv[1] == "parent":
    subprocess.run([sys.executable, __file__, "ends"])
    with subprocess.Popen([sys.executable, __file__, "stays"], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        print("burnt", flush=True)
elif sys.argv[1] == "stays":
    print("burnt", flush=True)
    sys.stdin.read()
"""


def test_the_photo_passes_every_gate() -> None:
    jpeg = photo_jpeg(800, 600, 0)
    seen, refusals = check_photos(Case((jpeg,)))
    assert (list(seen), refusals) == ([0], [])
    assert jpeg == photo_jpeg(800, 600, 0)
    assert jpeg != photo_jpeg(800, 600, 1)


def test_all_processes_of_a_server_are_counted(tmp_path: Path) -> None:
    script = tmp_path / "burn.py"
    script.write_text(BURN)
    with subprocess.Popen(
        [sys.executable, script, "parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        server = ProcessTree(parent.pid)
        assert parent.stdout.readline() == "burnt\n"
        assert len(server.processes()) == 2
        assert server.cpu_s() >= 0.85
        parent.communicate()
    assert server.cpu_s() == 0
    assert ProcessTree(os.getpid()).memory_bytes() > 1 << 20


@pytest.mark.lab
@pytest.mark.long
@pytest.mark.browser
@pytest.mark.timeout(900)
def test_keys_and_notes(tmp_path: Path) -> None:
    result = run_bench("serve", tmp_path / "serve.json", smallest=True)
    assert list(result.figures) == ["direct_over_http_cpu", "page_12mp_s", "page_report_s"]
    assert all(figure.value > 0 for figure in result.figures.values())
    assert "4000 x 3000" in result.notes[0]
