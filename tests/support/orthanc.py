"""A real PACS of a test: Orthanc with its DICOMweb plugin on loopback, with storage of its own."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from skindx.core.machine import free_port
from skindx.data.sources.dicomweb import DicomWebClient, DicomWebServer

USER, PASSWORD, VARIABLE = "clinic", "orthanc of a test", "SKINDX_TEST_PACS"
_PLUGINS = ("/usr/share/orthanc/plugins", "/usr/lib/orthanc")


@dataclass(frozen=True)
class Orthanc:
    """A running server; `url` is its DICOMweb address."""

    url: str
    port: int
    dicom_port: int

    def ask(self, path: str, accept: str = "application/dicom+json") -> httpx.Response:
        """Return the answer to a DICOMweb request."""
        return httpx.get(
            self.url + path, headers={"Accept": accept}, auth=(USER, PASSWORD), timeout=30
        )

    def fetch(self, study: str, series: str, instance: str) -> bytes:
        """Return one file as the server keeps it."""
        login = {"user": USER, "secret": f"env:{VARIABLE}"}
        ids = {"study_uid": study, "series_uid": series, "instance_uid": instance}
        with DicomWebClient(DicomWebServer.parse({"url": self.url, **login})) as client:
            return client.instance(ids)

    def store(self, files: Sequence[Path]) -> None:
        """Send files by C-STORE, as a camera does."""
        program = tool("storescu")
        command = [program, "127.0.0.1", str(self.dicom_port), *map(str, files)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def stow(self, files: Sequence[Path]) -> None:
        """Send files by STOW-RS, as a web application does."""
        parts = [
            b"--part\r\nContent-Type: application/dicom\r\n\r\n" + file.read_bytes() + b"\r\n"
            for file in files
        ]
        done = httpx.post(
            self.url + "/studies",
            content=b"".join(parts) + b"--part--\r\n",
            headers={
                "Content-Type": 'multipart/related; type="application/dicom"; boundary=part',
                "Accept": "application/dicom+json",
            },
            auth=(USER, PASSWORD),
            timeout=60,
        )
        assert done.status_code == 200, done.text


def tool(name: str) -> str:
    """Return a program of dcmtk, dicom3tools or Orthanc; the test skips where there is none."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"{name} is not there: `make clinic` installs it and lets these tests run")
    return program


@contextmanager
def orthanc(folder: Path) -> Iterator[Orthanc]:
    """Run Orthanc until the block ends. Skips where it, or its DICOMweb plugin, is not there."""
    program = tool("Orthanc")
    plugins = [file for where in _PLUGINS for file in Path(where).glob("libOrthancDicomWeb.so*")]
    if not plugins:
        pytest.skip("Orthanc has no DICOMweb plugin: `make clinic` installs orthanc-dicomweb")
    port, dicom_port = free_port(), free_port()
    settings = {
        "StorageDirectory": str(folder / "storage"),
        "IndexDirectory": str(folder / "storage"),
        "HttpPort": port,
        "DicomPort": dicom_port,
        "RemoteAccessAllowed": False,
        "AuthenticationEnabled": True,
        "RegisteredUsers": {USER: PASSWORD},
        "DicomAlwaysAllowStore": True,
        "Plugins": [str(plugins[0])],
        "DicomWeb": {"Enable": True, "Root": "/dicom-web/"},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([program, folder / "settings.json"], stdout=log, stderr=log)
    server = Orthanc(f"http://127.0.0.1:{port}/dicom-web", port, dicom_port)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                server.ask("/studies").raise_for_status()
                break
            except httpx.TransportError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
        yield server
    finally:
        process.kill()  # its storage is a test's
        process.wait(timeout=30)
