"""`skindx serve`, `monitor` and `user`: page and interface, their drift, who may use them."""

from pathlib import Path
from typing import Annotated

import typer

from skindx.cli.options import BundlePath, CasebookKey, Detector, Expect, MissRate, Prevalence


def serve(
    bundle: BundlePath,
    *,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 opens it to your network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 7860,
    workers: Annotated[
        int | None, typer.Option(help="Processes that diagnose; default: one a core.")
    ] = None,
    login: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Require a login of FILE's users (skindx user add)."),
    ] = None,
    casebook: Annotated[
        str | None,
        typer.Option(metavar="PATH_OR_URL", help="Keep cases, with consent, in this database."),
    ] = None,
    casebook_key: CasebookKey = None,
    proxy: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="The proxy whose X-Forwarded-* headers are trusted."),
    ] = None,
    root_path: Annotated[
        str,
        typer.Option(
            metavar="/FOLDER", help="Where the proxy shows the page; default: by its header."
        ),
    ] = "",
    expect: Expect = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Host name of this server in browsers, such as that of the proxy; may be "
            "repeated. Requests for names other than this, --host and localhost are refused.",
        ),
    ] = None,
    per_address: Annotated[
        int | None,
        typer.Option(min=4, help="Most connections of one address at the same time; default: 100."),
    ] = None,
    miss_rate: MissRate = None,
    prevalence: Prevalence = None,
    keep_scans: Annotated[
        float | None,
        typer.Option(metavar="MINUTES", help="Keep the result of a scan so long; default: 30."),
    ] = None,
    detector: Detector = None,
    monitor: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Watch for drift: FILE keeps numbers, and no photo."),
    ] = None,
    language: Annotated[
        str,
        typer.Option(
            metavar="CODE",
            help="Language of page and answers: en, es, or auto: that of each browser.",
        ),
    ] = "en",
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log requests, without file names and queries.")
    ] = False,
) -> None:
    """Serve the diagnosis page and its HTTP interface; photos are not kept.

    /docs describes the interface. For TLS, put a proxy in front and name it with --proxy.

    Example: skindx serve runs/demo/bundle

    An installed one, see skindx models: skindx serve ham10000

    With logins, behind a proxy on the same machine: skindx user add users.json anna, then
    skindx serve runs/demo/bundle --login users.json --proxy 127.0.0.1
    --allowed-host skin.example.org
    """
    from skindx.ui.serve import serve as run

    run(
        bundle,
        host=host,
        port=port,
        workers=workers,
        login=login,
        casebook=casebook,
        casebook_key=casebook_key,
        proxy=proxy,
        root_path=root_path,
        allowed_hosts=allowed_host or (),
        per_address=per_address,
        miss_rate=miss_rate,
        prevalence=prevalence,
        keep_scans_min=keep_scans,
        monitor=monitor,
        language=language,
        detector=detector,
        access_log=access_log,
        expect=expect,
    )


def monitor(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File of `skindx serve --monitor`.")],
    *,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Make the recent photos the reference; forget the alarms."),
    ] = False,
) -> None:
    """Print what a server's monitor noticed: each alarm, since when, and what to do.

    Example: skindx monitor runs/monitor.db
    """
    from skindx.monitor.monitor_file import MonitorFile, summary

    opened = MonitorFile(file)
    if accept:
        print(f"{opened.accept()} recent photos are the reference now.")
    print("\n".join(summary(opened.read())))


user = typer.Typer(no_args_is_help=True, help="Manage the users of `skindx serve --login FILE`.")
_File = Annotated[Path, typer.Argument(metavar="FILE", help="The file of users.")]


@user.command()
def add(
    file: _File, name: Annotated[str, typer.Argument(help="Letters, digits and . _ @ -")]
) -> None:
    """Add a user, or change a password; it prompts for the password.

    Example: skindx user add users.json anna
    """
    from skindx.ui.http.users import add_user

    password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    add_user(file, name, password)
    print(f"{name} may log in with `skindx serve BUNDLE --login {file}`.")


@user.command()
def remove(file: _File, name: Annotated[str, typer.Argument(help="User to remove.")]) -> None:
    """Remove a user; a running server ends their sessions.

    Example: skindx user remove users.json anna
    """
    from skindx.ui.http.users import remove_user

    remove_user(file, name)
    print(f"{name} can no longer log in.")
