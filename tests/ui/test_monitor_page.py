"""A monitored server: photos become numbers in the file, a page and Prometheus' names."""

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
from fastapi import FastAPI
from skin_photo import skin_photo

from skindx.core.errors import UserError
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.diagnosis.case import Case, Patient
from skindx.models.bundle.bundle import open_bundle
from skindx.models.class_calibration import ClassCalibration
from skindx.monitor import monitor_file
from skindx.monitor.drift_detector import DriftDetector
from skindx.monitor.monitor_file import MonitorFile
from skindx.monitor.photo_numbers import PhotoNumbers
from skindx.ui.app import _add_monitor
from skindx.ui.diagnosis_pool import load_bundle
from skindx.ui.http.server_metrics import Metrics
from skindx.ui.serve import serve
from skindx.workers.worker_pool import PoolStatus


def get(app: FastAPI, path: str) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            return await client.get(path)

    return asyncio.run(asked())


def test_a_served_photo_becomes_numbers_alone(
    whole_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for setting in ("torch.set_num_threads", "cv2.setNumThreads"):
        monkeypatch.setattr(setting, lambda threads: None)
    monkeypatch.setattr(monitor_file, "LEAST", 30)
    fit = DriftDetector.fit
    monkeypatch.setattr(DriftDetector, "fit", lambda *given: fit(*given, run_length=100, runs=30))
    bundle = open_bundle(whole_bundle)
    version, file = bundle_version(bundle), tmp_path / "monitor.db"
    answer_many = load_bundle(bundle.path, version, monitor=file)
    photos = [skin_photo(seed=seed) for seed in range(5)]
    cases = [
        Case((photos[0], photos[1]), Patient(age=83)),
        Case((b"no photo",)),
        *(Case((photo,)) for photo in photos[2:]),
    ]
    answers = answer_many(cases)
    state = MonitorFile(file).read()
    assert state.levels.photos == 4  # the first photo of each case that the networks saw
    assert len(state.reference) == 40

    # The calibration images and a photo go through the same function.
    numbers, ensemble = PhotoNumbers(bundle, bundle.ood()), bundle.ensemble()
    random = np.random.default_rng(0)
    painted = [random.integers(0, 256, (70, 90, 3), dtype=np.uint8) for _ in range(80)]
    output = ensemble.predict_with_features(painted[40:])
    served_NK = numbers.of_photos(ensemble, painted[40:], output, range(40))
    reference_NK, why = numbers.reference()
    assert reference_NK is not None, why
    np.testing.assert_allclose(served_NK, reference_NK, atol=0.05)
    classes = len(bundle.taxonomy.keys)
    np.testing.assert_allclose(served_NK[:, -classes:], output.probabilities_NC, atol=1e-5)
    by_class = ClassCalibration(slope=1.2, biases=tuple(np.linspace(-1, 1, classes).tolist()))
    spec = bundle.spec.model_copy(update={"class_calibration": by_class})
    calibrated, served = replace(bundle, spec=spec), replace(ensemble, class_calibration=by_class)
    p_NC = served.predict_with_features(painted[40:42]).probabilities_NC
    moved_NK = PhotoNumbers(calibrated, bundle.ood()).of_photos(
        served, painted[40:42], served.predict_with_features(painted[40:42]), range(2)
    )
    np.testing.assert_allclose(moved_NK[:, -classes:], p_NC, atol=1e-5)

    held = b"".join(part.read_bytes() for part in tmp_path.glob("monitor.db*"))
    for photo in photos:
        assert photo[200:216] not in held
    for answer in answers:
        if not isinstance(answer, UserError):
            assert answer.diagnosis.photos[0].sha256.encode() not in held
    with sqlite3.connect(file) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(photos)")]
    assert columns == ["number", "day", "numbers"]
    assert len(state.day) == len("2026-01-31")

    app = FastAPI()
    _add_monitor(app, MonitorFile(file))
    page = get(app, "/v1/monitor")
    assert page.status_code == 200
    assert page.text.count("<svg") == len(state.head.streams)
    assert "No alarm" in page.text
    metrics = Metrics(bundle, version, lambda: PoolStatus(1, 1, 0, 1, 0, ""))
    metrics.monitor = MonitorFile(file)
    text = metrics.text().decode()
    assert "skindx_monitor_photos 4.0" in text
    assert 'skindx_monitor_level{stream="sharpness",way="fall"}' in text
    assert 'skindx_monitor_alarms{shift="camera"} 0.0' in text

    other_file = tmp_path / "other.db"
    MonitorFile.create(other_file, PhotoNumbers(bundle, bundle.ood()), "f" * 64)
    with pytest.raises(UserError, match="monitor file of another bundle"):
        serve(bundle.path, port=8999, monitor=other_file)
    file.unlink()
    assert get(app, "/v1/monitor").status_code == 503
    assert "skindx_monitor_photos 4.0" in metrics.text().decode()
    assert type(answer_many(cases[-1:])[0]) is type(answers[-1])  # an answer does not need it
