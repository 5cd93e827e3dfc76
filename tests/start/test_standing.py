"""`skindx` without a verb: each state of a run, and the command that comes next."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from command_line import Skindx

from skindx.core.machine import free_port
from skindx.start.standing import CONFIG, JOBS, RECIPE, standing_of, where_it_stands

NOBODY = 9  # discard: no page answers there


def touch(path: Path, text: str = "{}") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def lines(run: Path, port: int = NOBODY) -> dict[str, str]:
    pairs = (line.strip().split(" ", 1) for line in standing_of(run, run.parent, port))
    return {name.rstrip(":"): text[0].strip() if text else "" for name, *text in pairs}


def test_a_run_stands_one_step_further_after_each_command(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    touch(run / RECIPE)
    touch(run / CONFIG)
    assert lines(run)["Next"] == "skindx build 'my run/recipe.yaml' --out 'my run/data'"
    touch(run / "data/ledger.jsonl")
    assert lines(run)["dataset"] == "its build was not finished"
    touch(run / "data/manifest.parquet")
    touch(run / "data/summary.json", '{"kept": 1200, "splits": {"a": {}, "b": {}}}')
    stands = lines(run)
    assert stands["dataset"] == "1,200 images of 2 classes"
    assert stands["training"] == "not begun"
    train = "skindx train 'my run/data' --config 'my run/{}' --out 'my run'"
    assert stands["Next"] == train.format("config.yaml")
    touch(run / "train.yaml", "members: [{name: a}, {name: b}]")
    touch(run / "members/a/member.json")
    touch(run / "members/b/history.csv", "epoch\n1\n")
    stands = lines(run)
    assert stands["training"] == "1 of 2 members trained, b is not finished"
    assert stands["Next"] == train.format("train.yaml")
    index = touch(run / "bundle/bundle.json", '{"name": "x"}')
    stands = lines(run)
    assert stands["training"] == "done, 2 members"
    assert stands["bundle"].endswith(hashlib.sha256(index.read_bytes()).hexdigest()[:16])
    assert stands["Next"] == "skindx evaluate 'my run/bundle' 'my run/data'"
    balanced = {"value": 0.5, "low": 0.25, "high": 0.75}
    figures = {"ensemble": {"balanced_accuracy": balanced}, "pictures": 40}
    touch(run / "evaluation/metrics.json", json.dumps(figures))
    assert lines(run)["evaluation"] == "none of this bundle yet"  # of the one before it
    touch(run / "bundle/metrics.json")
    stands = lines(run)
    assert stands["evaluation"] == "balanced accuracy 50.0 % [25.0, 75.0] on 40 images"
    assert stands["page"] == f"not served on port {NOBODY}"
    assert stands["Next"] == "skindx serve 'my run/bundle'"


@pytest.mark.parametrize("same", [True, False])
def test_a_page_counts_only_if_it_answers_with_this_bundle(tmp_path: Path, same: bool) -> None:
    index = touch(tmp_path / "run/bundle/bundle.json", '{"name": "x"}')
    digest = hashlib.sha256(index.read_bytes()).hexdigest() if same else "f" * 64

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"digest": digest}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    port = free_port()
    server = HTTPServer(("127.0.0.1", port), Health)
    answering = threading.Thread(target=server.handle_request)
    answering.start()
    stands = lines(tmp_path / "run", port)
    answering.join()
    server.server_close()
    assert ("answers at" in stands["page"]) == same
    assert stands["Next"].startswith("open http" if same else "skindx evaluate")


@pytest.mark.parametrize("where", [".", "data", "bundle", ".."])
def test_the_run_is_seen_from_inside_and_from_beside(tmp_path: Path, where: str) -> None:
    run = tmp_path / "runs/mine"
    touch(run / "data/manifest.parquet")
    touch(run / "bundle/bundle.json")
    here = (run / where).resolve()
    printed = "\n".join(where_it_stands(here, NOBODY))
    bundle = {".": "bundle", "data": "../bundle", "bundle": ".", "..": "mine/bundle"}[where]
    assert f"Next: skindx evaluate {bundle} " in printed


def test_damaged_files_and_strange_names_are_no_error(tmp_path: Path) -> None:
    run = tmp_path / "evil\x1b[31m"
    touch(run / "data/manifest.parquet")
    touch(run / "data/summary.json", '{"kept": "many"')
    touch(run / "train.yaml", "members: 7")
    touch(run / "bundle/bundle.json", "\0")
    touch(run / "evaluation/metrics.json", "[1]")
    printed = "\n".join(where_it_stands(tmp_path, NOBODY))
    assert "\x1b" not in printed
    assert "built" in printed


def test_elsewhere_the_three_jobs_are_named(
    skindx: Skindx, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, err = skindx()
    assert (code, err) == (0, "")
    assert [command for _, command in JOBS if command not in printed] == []
    assert "skindx demo" in printed


def test_a_run_of_the_version_before_is_read() -> None:
    fixture = Path(__file__).parents[1] / "fixtures/v0_2/whole"
    stands = lines(fixture)
    assert stands["training"].startswith("done, ")
    assert stands["evaluation"].startswith("balanced accuracy ")
    assert stands["Next"].startswith("skindx serve ")
