"""Commands about places: `--cluster FILE` of the study commands, `follow`, `stop`, `cluster`, and the pages of `ui`."""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from search.cli.common import SMOKE, STORAGE, STUDY, losable, user_errors
from search.command_help import Command, Group, examples
from search.schema import masked, recorded_uri, tracking_uri
from search.store.layout import UserError

if TYPE_CHECKING:
    from search.remote.jobs import Job
    from search.space import Space

LIVE_PORT = 5050  # wanted; another one is taken if it is in use


def on_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a study command (run, resume, confirm) `--cluster FILE`: the same study as a Ray job on that cluster."""

    @click.option("--cluster", metavar="FILE", help="run on this `ray up` cluster")
    @click.option(
        "--carry", multiple=True, metavar="PATH", help="with --cluster: also upload this file or folder; repeatable"
    )
    @click.option(
        "--allow-mismatch", is_flag=True, help="with --cluster: warn instead of failing on a version mismatch"
    )
    @functools.wraps(command)
    def wrapped(cluster: str | None, carry: tuple[str, ...], allow_mismatch: bool, **given: Any) -> Any:
        if not cluster:
            return command(**given)

        @user_errors
        def remotely() -> int:
            from search.remote.jobs import submit_and_follow

            job = _job(click.get_current_context(), carry)
            return submit_and_follow(cluster, job, click.echo, allow_mismatch=allow_mismatch)

        return sys.exit(remotely())

    return wrapped


def at_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a quick command (status, list, logs) `--cluster FILE`: run it on the head over ssh."""

    @click.option("--cluster", metavar="FILE", help="read studies of this `ray up` cluster")
    @functools.wraps(command)
    def wrapped(cluster: str | None, **given: Any) -> Any:
        if not cluster or given.get("spaces"):  # the ready spaces are those of this machine
            return command(**given)

        @user_errors
        def remotely() -> int:
            from search.remote.jobs import remote_command

            context = click.get_current_context()
            return remote_command(cluster, [str(context.info_name), *typed_arguments(context, ("cluster",))])

        return sys.exit(remotely())

    return wrapped


def typed_arguments(context: click.Context, without: Sequence[str]) -> list[str]:
    """The arguments of a command as its user typed them, defaults left out, options first."""
    options: list[str] = []
    operands: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in without or context.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        values = value if isinstance(value, (tuple, list)) else (value,)
        if isinstance(parameter, click.Argument):
            operands += [str(v) for v in values]
        elif getattr(parameter, "is_flag", False):
            options.append(parameter.opts[-1])
        else:
            options += [f"{parameter.opts[-1]}={v}" for v in values]
    return options + operands


def read_space(name: str, overrides: Sequence[str], start: Sequence[str], smoke: bool, find_data: bool) -> Space:
    """The space of a new study.

    Args: start: the studies of `--from`.
    Raises: UserError where `--set` names some, too; SpaceError.
    """
    from search import space

    if start and any(override.startswith("search.start=") for override in overrides):
        raise UserError("--from and --set search.start: give one of them")
    changes = [*overrides, *([f"search.start={json.dumps(start)}"] if start else [])]
    loaded = space.load_space(name, changes, find_data=find_data)
    if not smoke:
        return loaded
    with losable():
        click.echo(SMOKE)
    return space.smoke(loaded)


def _job(context: click.Context, carry: tuple[str, ...]) -> Job:
    """The job of the current command; a new study's space is read and checked here."""
    from search.remote.jobs import Job

    given, verb = context.params, str(context.info_name)
    sent = ("cluster", "carry", "allow_mismatch", "address")
    if verb != "run":
        options = typed_arguments(context, (*sent, "study"))
        return Job(verb=verb, options=options, study=given["study"], carry=carry)
    options = typed_arguments(context, (*sent, "space", "overrides", "start", "smoke", "name"))
    space = read_space(given["space"], given["overrides"], given["start"], given["smoke"], find_data=not given["smoke"])
    return Job(verb=verb, options=options, space=space, study=given["name"], carry=carry)


@click.group(cls=Group)
def cluster() -> None:
    """Check a cluster file, or whether Ray may be restarted."""


@cluster.command(epilog=examples("search cluster check cluster.yaml"))
@click.argument("file")
@user_errors
def check(file: str) -> None:
    """Check a cluster file before `ray up`.

    Prints a line for each value that is missing. Sends no request to a cloud.
    """
    from search.remote.cluster import cluster_faults

    faults = cluster_faults(file)
    for fault in faults:
        click.echo(fault, err=True)
    if not faults:
        click.echo(f"{file}: complete")
    sys.exit(2 if faults else 0)


@cluster.command(epilog=examples("search cluster idle && ray stop"))
@STORAGE
@user_errors
def idle(storage: str) -> None:
    """Check on the head node that no study runs.

    Exit code 1 and a line with their names while studies run: then Ray must not be restarted.
    """
    from search.store.journal import running_here
    from search.store.layout import absolute

    if running := running_here(absolute(storage)):
        why = f"studies run here ({', '.join(running)})"
        click.echo(f"Ray is not restarted: {why}. `search stop` pauses them; then `ray up` again", err=True)
        sys.exit(1)


@click.command(cls=Command, epilog=examples("search follow --cluster cluster.yaml"))
@click.argument("job", required=False)
@click.option("--cluster", required=True, metavar="FILE", help="cluster file of `ray up`")
@user_errors
def follow(job: str | None, cluster: str) -> None:
    """Follow a job on a cluster.

    JOB defaults to the newest one. Ctrl-C detaches; the job keeps running.
    """
    from search.remote.jobs import follow_job

    sys.exit(follow_job(cluster, job, click.echo))


@click.command(cls=Command, epilog=examples("search stop", "search stop --cluster cluster.yaml"))
@STUDY
@click.option("--cluster", metavar="FILE", help="stop a job on this cluster; STUDY is its name or its study's")
@STORAGE
@user_errors
def stop(study: str | None, cluster: str | None, storage: str) -> None:
    """Pause a study; `search resume` continues it.

    STUDY defaults to the newest one. Its trials save their states first.
    """
    if cluster:
        from search.remote.jobs import stop_job

        job, name = stop_job(cluster, study)
        where = f"{name} --cluster" if name else "--cluster"
        click.echo(f"job {job} pauses its study; go on with `search resume {where} {shlex.quote(cluster)}`")
        return
    from search.running.remove import stop_study
    from search.store.layout import absolute, storage_option

    name = stop_study(storage, study)
    where = f"{name}{storage_option(absolute(storage))}"
    click.echo(f"study {name} pauses within seconds; go on with `search resume {where}`")


@click.command(cls=Command, epilog=examples("search ui", "search ui --cluster cluster.yaml"))
@STUDY
@STORAGE
@click.option(
    "--port",
    default=5000,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="port of MLflow; another one if it is in use",
)
@click.option("--cluster", metavar="FILE", help="pages of this `ray up` cluster, through a tunnel")
@click.option("--detach", is_flag=True, help="return and leave the server running (on a head node)")
@user_errors
def ui(study: str | None, storage: str, port: int, cluster: str | None, detach: bool) -> None:
    """Serve MLflow and the live page of a study.

    STUDY defaults to the newest one. Both pages stay open until Ctrl-C.
    """
    if cluster:
        _through_tunnel(cluster, port)
        return
    from search.remote.servers import serve_mlflow

    with contextlib.ExitStack() as running:
        live = False if detach else _live_page(study, storage, running)  # first: it is there at once
        click.echo("starting MLflow: some seconds")
        server = serve_mlflow(storage, port, detach)
        if not detach:
            running.callback(server.close)
        click.echo(f"MLflow: {server.url}")
        _print_views(server.url, study)
        if live or (server.process is not None and not detach):
            _wait()


def _live_page(study: str | None, storage: str, running: contextlib.ExitStack) -> bool:
    """Serve the live page where there is a study. Returns: whether there is."""
    from search.console.live_page import LivePage
    from search.remote.cluster import free_port
    from search.store.layout import absolute, find_study, studies

    where = absolute(storage)
    if study is not None:
        name = find_study(where, study).study  # raises where there is no such study
        if (other := recorded_uri(where, name)) not in ("", masked(tracking_uri(storage=where))):
            click.echo(f"note: study {name} was tracked at {other}: MLFLOW_TRACKING_URI={other} shows it")
    if not studies(where):
        return False
    live = LivePage(storage, study, free_port(LIVE_PORT))
    running.callback(live.close)
    click.echo(f"live page: {live.url}")
    return True


def _through_tunnel(cluster: str, port: int) -> None:
    from search.remote.cluster import DASHBOARD, MLFLOW, Tunnel, find_head

    with Tunnel(find_head(cluster), {MLFLOW: port, DASHBOARD: DASHBOARD}) as way:
        way.ensure()
        mlflow = f"http://127.0.0.1:{way.ports[MLFLOW]}"
        click.echo(f"MLflow:        {mlflow}")
        click.echo(f"Ray dashboard: http://127.0.0.1:{way.ports[DASHBOARD]} (token: ~/.ray/auth_token)")
        click.echo(f"analysis:      export MLFLOW_TRACKING_URI={mlflow}")
        _print_views(mlflow)
        _wait(way.ensure)


SHOWN_LINKS = 12


def _print_views(url: str, study: str | None = None) -> None:
    """The links to the views of a study, or of the newest ones."""
    from search.tracking.mlflow_store import view_links

    try:
        links = view_links(url)
    except Exception:  # MLflow raises what it likes: where it wants a login, behind a tunnel that is not up yet
        links = []
    of_study = [link for link in links if link[0].startswith(f"{study}: ")]
    for name, address in of_study or links[:SHOWN_LINKS]:
        click.echo(f"  {name}\n    {address}")
    if links:  # what no address can do: the front page and the list of experiments open the other product
        click.echo("  on other pages of MLflow, switch from GenAI to Model training at the top left")


def _wait(keep: Callable[[], None] = lambda: None) -> None:
    """Until Ctrl-C or SIGTERM; `keep` is called now and then."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    click.echo("Ctrl-C ends this.")
    while not ended.wait(5.0):
        keep()
