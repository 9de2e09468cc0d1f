"""`search ui`: MLflow with the saved views, here or through a tunnel to a cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from http.client import HTTPException

import click

from search.cli.errors import user_errors

LIVE_PORT = 5050  # wanted; another one is taken if it is in use


@click.command()
@click.argument("study", required=False)
@click.option("--storage", default="runs", envvar="SEARCH_STORAGE", show_default=True, metavar="FOLDER|URI")
@click.option(
    "--port",
    default=5000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="wanted; another one is taken if it is in use, or for 0",
)
@click.option("--cluster", metavar="FILE", help="the pages of this `ray up` cluster, through a tunnel")
@click.option("--detach", is_flag=True, help="leave the server running and return (the head of a cluster)")
@user_errors
def ui(study: str | None, storage: str, port: int, cluster: str | None, detach: bool) -> None:
    """Open the pages people look at: MLflow with views ready to read; a page that follows STUDY (or the newest) while
    it runs; optuna-dashboard."""
    if cluster:
        _through_tunnel(cluster, port)
        return
    from search.remote.servers import serve_mlflow

    server = dashboard = live = None
    try:
        live = None if detach else _live_page(study, storage)  # first: it is there at once
        click.echo("starting MLflow: some seconds")
        server = serve_mlflow(storage, port, detach)
        click.echo(f"MLflow: {server.url}")
        _say_views(server.url)
        if detach:
            return
        dashboard = _dashboard(study, storage)
        if live is not None or dashboard is not None or server.process is not None:
            _wait()
    finally:
        for running in (live, dashboard, None if detach else server):
            if running is not None:
                running.close()


def _live_page(study: str | None, storage: str):  # type: ignore[no-untyped-def]  # LivePage is imported late
    from search.console.live_page import LivePage
    from search.remote.tunnel import free_port
    from search.store.layout import absolute, studies

    if not studies(absolute(storage)):
        return None
    live = LivePage(storage, study, free_port(LIVE_PORT))
    click.echo(f"live page: {live.url}")
    return live


def _dashboard(study: str | None, storage: str):  # type: ignore[no-untyped-def]  # ui.Server is imported late
    from search.remote.servers import serve_optuna
    from search.store.bucket import pull
    from search.store.layout import StorageError, absolute, find_study

    try:
        folder = find_study(absolute(storage), study)
    except StorageError:
        if study is not None:
            raise
        return None
    pull(folder)
    dashboard = serve_optuna(folder, 8080)
    if dashboard is not None:
        click.echo(f"optuna-dashboard of {folder.study}: {dashboard.url}/dashboard/studies/0")  # its only one
    else:
        click.echo('optuna-dashboard: not installed; pip install "contrastive-search[dashboard]"')
    return dashboard


def _through_tunnel(cluster: str, port: int) -> None:
    from search.remote.tunnel import DASHBOARD, MLFLOW, Tunnel, find_head, free_port

    way = Tunnel(find_head(cluster), {MLFLOW: free_port(port), DASHBOARD: free_port(DASHBOARD)})
    try:
        way.ensure()
        mlflow = f"http://127.0.0.1:{way.ports[MLFLOW]}"
        click.echo(f"MLflow:        {mlflow}")
        click.echo(f"Ray dashboard: http://127.0.0.1:{way.ports[DASHBOARD]} (asks for the token in ~/.ray/auth_token)")
        click.echo(f"analysis:      export MLFLOW_TRACKING_URI={mlflow}")
        _say_views(mlflow)
        _wait(way.ensure)
    finally:
        way.close()


def _say_views(url: str) -> None:
    from search.remote.servers import SHOWN, experiments_of, view_links

    try:
        links = list(view_links(url, experiments_of(url)).items())
    except (OSError, HTTPException, ValueError):  # it wants a login, is not there yet behind a tunnel, or is no MLflow
        links = []
    for name, address in links[:SHOWN]:
        click.echo(f"  {name}\n    {address}")
    if links:  # what no address can do: the front page and the list of experiments open the other product
        click.echo("  elsewhere in MLflow: switch from GenAI to Model training, top left")


def _wait(keep: Callable[[], None] = lambda: None) -> None:
    """Until Ctrl-C or SIGTERM; `keep` is called now and then."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    click.echo("Ctrl-C ends this.")
    while not ended.wait(5.0):
        keep()
