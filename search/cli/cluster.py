"""Commands for clusters: `--cluster FILE` on the study commands, and follow, stop, backup."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from search.cli.errors import user_errors
from search.store.layout import UserError

if TYPE_CHECKING:
    from search.remote.jobs import Job

CLUSTER_ONLY = ("cluster", "allow_mismatch", "carry")
"""Options that are about the way to the cluster and mean nothing there."""

NEEDED = click.option("--cluster", required=True, metavar="FILE", help="the cluster file of `ray up`")


def on_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a study command (run, resume, confirm) `--cluster FILE`: the same study as a Ray job on that cluster."""

    @click.option("--cluster", metavar="FILE", help="run on this `ray up` cluster, follow from here")
    @click.option("--carry", multiple=True, metavar="PATH", help="with --cluster: send this file or folder along")
    @click.option("--allow-mismatch", is_flag=True, help="with --cluster: other versions there are only said")
    @functools.wraps(command)
    def wrapped(*args: Any, cluster: str | None, carry: tuple[str, ...], allow_mismatch: bool, **kwargs: Any) -> Any:
        if not cluster:
            return command(*args, **kwargs)

        @user_errors
        def remotely() -> int:
            from search.remote.jobs import submit_and_follow

            job = _job(click.get_current_context(), carry)
            return submit_and_follow(cluster, job, click.echo, allow_mismatch=allow_mismatch)

        return sys.exit(remotely())

    return wrapped


def at_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a quick command (status, list) `--cluster FILE`: run it on the head over ssh."""

    @click.option("--cluster", metavar="FILE", help="of the studies on this `ray up` cluster")
    @functools.wraps(command)
    def wrapped(*args: Any, cluster: str | None, **kwargs: Any) -> Any:
        if not cluster:
            return command(*args, **kwargs)

        @user_errors
        def remotely() -> int:
            from search.remote.jobs import remote_command

            context = click.get_current_context()
            return remote_command(cluster, str(context.info_name), typed_arguments(context, CLUSTER_ONLY))

        return sys.exit(remotely())

    return wrapped


def typed_arguments(context: click.Context, without: tuple[str, ...] = ()) -> list[str]:
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


def started_from(overrides: Sequence[str], start: Sequence[str]) -> list[str]:
    """What `--set` says of a new study's space, with the studies of `--from`.

    Raises: UserError where both name some.
    """
    if start and any(override.startswith("search.start=") for override in overrides):
        raise UserError("--from and --set search.start: give one of them")
    return [*overrides, *([f"search.start={json.dumps(start)}"] if start else [])]


def _job(context: click.Context, carry: tuple[str, ...]) -> Job:
    """What the command that is being run asks of the cluster. A new study's space is read and checked here."""
    from search.remote.jobs import Job

    given = context.params
    verb = str(context.info_name)
    storage = given["storage"] if context.get_parameter_source("storage").name == "COMMANDLINE" else None  # type: ignore[union-attr]  # storage is an option of every study command
    if verb != "run":
        arguments = typed_arguments(context, (*CLUSTER_ONLY, "storage", "study", "address"))
        return Job(verb=verb, arguments=arguments, study=given["study"], storage=storage, carry=carry)
    from search.space import load_space
    from search.space import smoke as smoke_space

    space = load_space(given["space"], started_from(given["overrides"], given["start"]))
    if given["smoke"]:
        space = smoke_space(space)
        click.echo("SMOKE RUN: builtin data, tiny encoder, few examples. The numbers mean nothing about the method.")
    said = tuple(f"--{word}" for word in ("quiet", "verbose") if given[word])
    return Job(verb=verb, arguments=said, space=space, study=given["name"], storage=storage, carry=carry)


@click.group()
def cluster() -> None:
    """Cluster files."""


@cluster.command()
@click.argument("file")
@user_errors
def check(file: str) -> None:
    """What FILE, the cluster file of `ray up`, still lacks: a line each. Asks no cloud."""
    from search.remote.cluster_file import cluster_faults, version_faults

    faults = cluster_faults(file) + version_faults(file)
    for fault in faults:
        click.echo(str(fault), err=True)
    if not faults:
        click.echo(f"{file}: complete")
    sys.exit(2 if faults else 0)


@cluster.command()
@click.option("--storage", default="runs", envvar="SEARCH_STORAGE", show_default=True, metavar="FOLDER|URI")
@user_errors
def idle(storage: str) -> None:
    """On the head, before Ray is restarted: exit code 1 and a line that names them while studies run here."""
    from search.store.journal import running_here
    from search.store.layout import absolute

    if running := running_here(absolute(storage)):
        names = ", ".join(running)
        click.echo(
            f"Ray is not restarted: studies run here ({names}). `search stop` pauses them; then `ray up` again",
            err=True,
        )
        sys.exit(1)


@click.command()
@click.argument("job", required=False)
@NEEDED
@user_errors
def follow(job: str | None, cluster: str) -> None:
    """Follow JOB (the newest one by default) on a cluster; Ctrl-C leaves it running."""
    from search.remote.jobs import follow_job

    sys.exit(follow_job(cluster, job, click.echo))


@click.command()
@click.argument("study", required=False)
@click.option("--cluster", metavar="FILE", help="the study of a job (its name in place of STUDY) on this cluster")
@click.option("--storage", default="runs", envvar="SEARCH_STORAGE", show_default=True, metavar="URI")
@user_errors
def stop(study: str | None, cluster: str | None, storage: str) -> None:
    """Pause STUDY (the newest one by default): its trials save their state, `search resume` goes on."""
    if not cluster:
        from search.running.remove import stop_study

        name = stop_study(storage, study)
        click.echo(f"study {name} pauses within seconds; go on with `search resume {name}`")
        return
    from search.remote.jobs import stop_job

    job = study
    click.echo(f"job {stop_job(cluster, job)} pauses its study; go on with `search resume --cluster {cluster}`")


@click.command()
@click.option("--cluster", metavar="FILE", help="back up the head of this cluster")
@click.option("--storage", default="runs", envvar="SEARCH_STORAGE", show_default=True, metavar="URI")
@user_errors
def backup(cluster: str | None, storage: str) -> None:
    """Copy the head's MLflow database to the storage, so that nothing of the last minute is missing after `ray down`.
    The head does it by itself twice a minute, and a new head fetches it."""
    if cluster:
        from search.remote.jobs import remote_command

        given = click.get_current_context().get_parameter_source("storage")
        explicit = given is click.core.ParameterSource.COMMANDLINE
        sys.exit(remote_command(cluster, "backup", ["--storage", storage] if explicit else []))
    from search.remote.backup import backup as copy

    click.echo(f"MLflow's database is in {copy(storage)}")
