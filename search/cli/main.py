"""The `search` command: parse, call one library function, print. Heavy imports happen inside the commands."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from search.cli.cluster import at_cluster, backup, cluster, follow, on_cluster, started_from, stop
from search.cli.config import config, defaults
from search.cli.errors import unheard, user_errors
from search.cli.ui import ui

if TYPE_CHECKING:
    from search.running.result import StudyResult

STORAGE = click.option(
    "--storage",
    default="runs",
    envvar="SEARCH_STORAGE",
    show_default=True,
    metavar="FOLDER|URI",
    help="where studies and mlflow.db lie",
)
FORMAT = click.option("--format", "form", type=click.Choice(["table", "json", "csv", "yaml"]), default="table")
OVERRIDES = click.option(
    "--set", "overrides", multiple=True, metavar="KEY.PATH=VALUE", help="change any leaf of the space file"
)
ADDRESS = click.option(
    "--address", metavar="ADDRESS", help="of a running Ray cluster [RAY_ADDRESS, else a private Ray]"
)

QUIET = click.option("-q", "--quiet", is_flag=True, help="say only how it ended, nothing while it runs")
VERBOSE = click.option("-v", "--verbose", is_flag=True, help="also a line for every evaluation")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="contrastive-search")
@click.pass_context
def main(context: click.Context) -> None:
    """Hyperparameter search for contrastive sentence-representation learning on Ray."""
    if context.invoked_subcommand != "config":  # which shows them
        context.default_map = dict.fromkeys(main.commands, defaults())


@main.command()
@on_cluster
@click.argument("space", metavar="SPACE")
@OVERRIDES
@STORAGE
@ADDRESS
@click.option("--name", metavar="STUDY", help="name of the study [the space's name, numbered]")
@click.option("--from", "start", multiple=True, metavar="STUDY", help="try its best points first; repeatable")
@click.option("--smoke", is_flag=True, help="on builtin data and encoder, scaled to a couple of minutes on two cores")
@QUIET
@VERBOSE
@user_errors
def run(
    space: str,
    overrides: Sequence[str],
    storage: str,
    address: str | None,
    name: str | None,
    start: Sequence[str],
    smoke: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Start a study over SPACE, a file or a ready space (search list --spaces), and run it to its end."""
    if not quiet:
        with unheard():
            click.echo(f"reading {space}")  # before anything is loaded: Python and libraries take their seconds
    from search import api
    from search.space import load_space

    loaded = load_space(space, started_from(overrides, start), find_data=not smoke)
    if smoke:
        loaded = api.smoke(loaded)
        with unheard():
            click.echo(
                "SMOKE RUN: builtin data, tiny encoder, few examples. The numbers mean nothing about the method."
            )
    finish(api.run(loaded, storage, name=name, address=address, quiet=quiet, verbose=verbose))


@main.command()
@on_cluster
@click.argument("study", required=False)
@OVERRIDES
@STORAGE
@ADDRESS
@click.option(
    "--retry-failed",
    is_flag=False,
    flag_value="outside",
    metavar="[KIND]",
    help="run failed trials of KIND again [those whose cause lies outside the point: data, disk, process, device]",
)
@click.option("--salvage", is_flag=True, help="set damaged lines of the journal aside and go on from what is left")
@QUIET
@VERBOSE
@user_errors
def resume(
    study: str | None,
    overrides: Sequence[str],
    storage: str,
    address: str | None,
    retry_failed: str | None,
    salvage: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Go on with STUDY (the newest one by default): after Ctrl-C, a crash, a power cut, or with a larger budget."""
    from search import api

    result = api.resume(
        study,
        storage,
        overrides=overrides,
        retry_failed=retry_failed,
        salvage_journal=salvage,
        address=address,
        quiet=quiet,
        verbose=verbose,
    )
    finish(result)


@main.command()
@on_cluster
@click.argument("study", required=False)
@click.option("--trials", type=click.IntRange(1), help="at most, in all [20]")
@click.option("--top", type=click.IntRange(1), help="a fixed plan instead: so many of the best points [3]")
@click.option("--seeds", type=click.IntRange(1), help="of the fixed plan: fresh seeds for each [5]")
@click.option("--forecast", is_flag=True, help="run nothing: which gain the fixed plan could show, its cost")
@STORAGE
@ADDRESS
@QUIET
@VERBOSE
@user_errors
def confirm(
    study: str | None,
    trials: int | None,
    top: int | None,
    seeds: int | None,
    forecast: bool,
    storage: str,
    address: str | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Run STUDY's best points and its baseline again on fresh seeds, one at a time where they decide most."""
    if forecast:
        from search.running.runner import SEEDS, TOP, confirming

        plan = confirming(trials, top, seeds)
        _forecast_confirming(study, plan.get("top", TOP), plan.get("seeds", SEEDS), storage)
        if "trials" in plan:
            most = plan["trials"]
            say([f"That is --top {TOP} --seeds {SEEDS}; without them at most {most} trials go where they decide most."])
        return
    from search import api

    finish(
        api.confirm(study, storage, trials=trials, top=top, seeds=seeds, address=address, quiet=quiet, verbose=verbose)
    )


def _forecast_confirming(study: str | None, top: int, seeds: int, storage: str) -> None:
    """Print what `confirm` could show; the noise it rests on is the analysis's to tell."""
    import analysis
    from analysis.errors import AnalysisError, InputError
    from analysis.writing.forecast_text import forecast_lines
    from search.store.layout import UserError

    try:
        results = analysis.read(study, storage=storage)
        lines = forecast_lines(results.forecast(top, seeds), results.study)
    except (AnalysisError, InputError) as error:
        raise UserError(str(error)) from None
    say(lines)


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="SPACE...")
@OVERRIDES
@click.option("--forecast", is_flag=True, help="run a few steps and state device-hours, disk and money")
@click.option("--price", type=click.FloatRange(0), metavar="PER_HOUR", help="price of a device-hour, for the forecast")
@user_errors
def check(files: Sequence[str], overrides: Sequence[str], forecast: bool, price: float | None) -> None:
    """Validate space files and say what they hold; no Ray, no GPU."""
    from search.space import check_spaces

    checked = check_spaces(files, overrides)
    for item in checked:
        say(item.lines(), err=item.space is None)
        if forecast and item.space is not None:
            from search.running.forecast import forecast_lines
            from search.running.preflight import preflight

            preflight(item.space)  # its notes are among the lines above
            say(f"  {line}" for line in forecast_lines(item.space, price))
    sys.exit(2 if any(item.space is None for item in checked) else 0)


@main.command()
def schema() -> None:
    """Print the JSON schema of space files, for editors: search schema > space.schema.json."""
    from search.space.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))


def say(lines: Iterable[str], err: bool = False) -> None:
    """Print lines, on a terminal broken between words."""
    from search.console.output import fitted

    for line in lines:
        click.echo(fitted(line), err=err)


def finish(result: StudyResult) -> None:
    """Print how a life of a study ended and leave with its exit code."""
    from search.running.result import closing_lines

    lines = closing_lines(result)
    with unheard():
        say(lines)
    gc.freeze()  # else the interpreter, on its way out, looks for garbage in all of Ray and MLflow: a second of CPU
    sys.exit(result.exit_code)


@main.command()
@at_cluster
@click.argument("study", required=False)
@STORAGE
@FORMAT
@user_errors
def status(study: str | None, storage: str, form: str) -> None:
    """Progress, best so far, failures by kind, rate and time left of STUDY (the newest one by default)."""
    from search.console.status import print_status

    print_status(storage, study, form)


@main.command()
@at_cluster
@click.argument("study", required=False)
@click.argument("trial", required=False)
@STORAGE
@user_errors
def logs(study: str | None, trial: str | None, storage: str) -> None:
    """What TRIAL of STUDY (or every trial that has something to say) printed and warned, and how it failed."""
    from search.console.logs import log_lines

    click.echo("\n".join(log_lines(storage, study, trial)))


@main.command()
@click.argument("study")
@STORAGE
@click.option("--yes", is_flag=True, help="do not ask")
@user_errors
def delete(study: str, storage: str, yes: bool) -> None:
    """Delete STUDY: its folder with all checkpoints, its runs and artifacts in MLflow."""
    from search.running.remove import deletable, delete_study

    folder, what = deletable(storage, study)
    click.echo(what)
    if not yes and not click.confirm("Delete all of it?"):
        click.echo("nothing was deleted")
        sys.exit(1)
    runs = delete_study(folder)
    click.echo(f"{folder.study} is deleted; {runs} runs are marked deleted in MLflow (`mlflow gc` frees their rows)")


@main.command(name="list")
@at_cluster
@STORAGE
@FORMAT
@click.option("--spaces", is_flag=True, help="the names of the ready spaces instead")
@user_errors
def list_studies(storage: str, form: str, spaces: bool) -> None:
    """All studies of a storage."""
    if spaces:
        from search.space.ready import ready_spaces

        click.echo("\n".join(ready_spaces()))
        return
    from search.console.status import print_studies

    print_studies(storage, form)


for command in (ui, follow, stop, backup, cluster, config):
    main.add_command(command)
