"""Serve a bundle: private uploads, no outside host, known names only."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skindx.core.atomic_files import private_folder
from skindx.core.errors import UserError
from skindx.core.machine import go_offline, require_extra
from skindx.core.text import printable
from skindx.diagnosis.bundle_statement import bundle_version
from skindx.models.bundle.bundle import Bundle, given_prevalence, open_bundle
from skindx.models.bundle.use_limits import read_examples
from skindx.models.shipped_detector import open_shipped
from skindx.models.urgent_risk import check_level
from skindx.monitor.monitor_file import MonitorFile
from skindx.monitor.photo_numbers import PhotoNumbers
from skindx.texts.catalogue import AUTO, LANGUAGE, checked_language
from skindx.ui.http.browser_rules import is_loopback
from skindx.ui.page_basics import check_free, hide_messages, stoppable, uploads_folder

if TYPE_CHECKING:
    from skindx.casebook.casebook import Casebook

SCANS = "skindx-scans-"
"""Begins the name of the private folder of a server's scans."""
_MODULES = ("fastapi", "gradio", "multipart", "prometheus_client", "uvicorn")


def serve(
    bundle: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 7860,
    workers: int | None = None,
    login: Path | None = None,
    casebook: str | None = None,
    casebook_key: Path | None = None,
    proxy: str | None = None,
    root_path: str = "",
    allowed_hosts: Sequence[str] = (),
    per_address: int | None = None,
    miss_rate: float | None = None,
    prevalence: Path | None = None,
    access_log: bool = False,
    frames: Sequence[str] = (),
    expect: str | None = None,
    keep_scans_min: float | None = None,
    monitor: Path | None = None,
    language: str = LANGUAGE,
    detector: Path | None = None,
) -> None:
    """Serve page and interface until Ctrl+C or SIGTERM.

    `proxy` are the addresses whose X-Forwarded-For, -Proto, -Host and -Prefix are believed,
    `root_path` is the folder under which a proxy shows the page, such as "/skin",
    `allowed_hosts` the names beside `host` and localhost that requests may be for, `per_address`
    the most connections of one address, `frames` the sites that may show the page in a frame,
    `casebook_key` the case book's key file, `expect` the digest of the only bundle to serve,
    `miss_rate` the level of the urgent risk that decides which answers are urgent,
    `prevalence` a file of the mix of diseases that shown probabilities hold for,
    `keep_scans_min` the minutes for which the result of a scan is kept, and `monitor` the file of
    numbers by which drift is noticed. `language` is that of pages and answers; "auto": that of each
    browser. `detector` is the folder of one that scans in the place of the bundle's. Raises
    UserError for a language that is not there, a monitor file of another bundle, a bundle that is
    not whole, another one or without that level, for an address that is taken or wrong, for a case
    book that others could open without a login, for a missing extra, and for a folder of examples
    beside the bundle that is not what its list says.
    """
    from skindx.ui.http.server import checked_root

    root = checked_root(root_path)
    checked_language(language, AUTO)
    go_offline()
    if casebook is not None and login is None:
        _check_private(host, proxy)
    check_free(host, port)
    loaded = open_bundle(bundle, expect)
    check_level(loaded.spec.urgent_risk, miss_rate, loaded.taxonomy.classes)
    given_prevalence(loaded, prevalence)
    examples = read_examples(loaded.path)
    shipped = open_shipped(detector) if detector else None
    if monitor is not None:
        MonitorFile.create(monitor, PhotoNumbers(loaded, loaded.ood()), bundle_version(loaded))
    require_extra("serve", *_MODULES, purpose="the server")
    from skindx.ui.app import Wiring, build_app
    from skindx.ui.http.answer_forms import settle
    from skindx.ui.http.server import ConnectionTimeouts, Listening, run
    from skindx.ui.http.users import Users
    from skindx.ui.scans.scan_job import ScanServing
    from skindx.workers.worker_pool import PoolSettings

    settings = PoolSettings.parse({} if workers is None else {"workers": workers}, "--workers")
    users = Users(login) if login else None
    limits = {} if per_address is None else {"per_address": per_address}
    timeouts = ConnectionTimeouts(**limits)
    if access_log:
        _show_access()
    serving: dict[str, Any] = {} if keep_scans_min is None else {"keep_s": 60 * keep_scans_min}
    scan_serving = ScanServing.parse(serving, "--keep-scans")
    with uploads_folder() as uploads, private_folder(SCANS) as scans, stoppable():
        book = _casebook(casebook, casebook_key)
        wiring = Wiring(
            uploads,
            settings,
            users,
            book,
            frames,
            expect,
            host,
            allowed_hosts,
            timeouts.per_address,
            miss_rate,
            scans,
            scan_serving,
            prevalence,
            monitor,
            examples,
            language,
            shipped,
        )
        greeting = _greeting(host, port, loaded, logged_in=users is not None)
        if book is not None:
            if users is None:
                greeting += (
                    " Everyone who can open the page sees the cases of the case book; for logins, "
                    "run `skindx user add users.json NAME` and add --login users.json."
                )
            greeting += f" Back up the key file {book.keys.path} apart from the case book."
        if proxy is not None and not allowed_hosts:
            greeting += " Requests for the proxy's own name are refused without --allowed-host."
        hide_messages()  # from here on people send what no log may hold
        listening = Listening(host, port, proxy, timeouts, root)
        app = build_app(loaded, wiring)
        settle()
        run(app, listening, lambda: print(greeting, flush=True))


def _greeting(host: str, port: int, bundle: Bundle, *, logged_in: bool) -> str:
    shown = f"[{host}]" if ":" in host else host
    reach = ""
    if not is_loopback(host):
        who = "who has a login" if logged_in else "who reaches this machine"
        reach = f" Everyone {who} can use it."
        if logged_in:
            reach += " Put a proxy with TLS before it: passwords travel in the clear otherwise."
    answers = f" It answers by {printable(bundle.spec.name)}, digest {bundle.digests}."
    if bundle.warning:
        answers += f" {bundle.warning}"
    return f"skindx is at http://{shown}:{port}/ (Ctrl+C stops it).{reach}{answers}"


def _check_private(host: str, proxy: str | None) -> None:
    """Raise UserError where others than the users of this machine could open the case book."""
    if is_loopback(host) and proxy is None:
        return
    where = "behind a proxy" if is_loopback(host) else f"on {host}"
    raise UserError(
        f"anyone who reaches this server could read the case book {where}; require a login with "
        "--login FILE (create the file with `skindx user add`), or listen on 127.0.0.1 without "
        "--proxy."
    )


def _casebook(where: str | None, keys: Path | None) -> "Casebook | None":
    if where is None:
        return None
    require_extra("serve", "sqlalchemy", "cryptography", purpose="a case book")
    from skindx.casebook.casebook import Casebook

    return Casebook.open(where, keys=keys)


def _show_access() -> None:
    access = logging.getLogger("skindx.access")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    access.addHandler(handler)
    access.setLevel(logging.INFO)
    access.propagate = False
