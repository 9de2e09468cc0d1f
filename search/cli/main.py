"""The `search` command: parse, call one library function, print. Heavy imports happen inside the commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from search.cli.cluster import at_cluster, cluster, follow, on_cluster, read_space, stop, ui
from search.cli.common import FORMAT, OVERRIDES, STORAGE, STUDY, driving, finish, losable, say, user_errors
from search.command_help import Group, examples
from search.schema import DEFAULT_STORAGE, masked, tracking_uri
from search.user_defaults import SETTINGS, SettingsError, settings, settings_file, use_settings

VARIABLES = {"storage": "SEARCH_STORAGE", "tracking_uri": "MLFLOW_TRACKING_URI"}


SECTIONS = {
    "Search": ("init", "check", "run", "confirm"),
    "Watch and control": ("status", "logs", "ui", "follow", "stop", "resume"),
    "Manage": ("list", "delete", "track", "cluster", "config", "schema"),
}


@click.group(
    cls=Group,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("search run spaces/quickstart.yaml", "search status", "search run --help"),
)
@click.version_option(package_name="contrastive-search")
@click.pass_context
def main(context: click.Context) -> None:
    """Search hyperparameters of contrastive sentence encoders on Ray."""
    if context.invoked_subcommand == "config":  # which shows the user's defaults
        return
    try:
        context.default_map = dict.fromkeys(main.commands, use_settings())
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


@main.command(
    epilog=examples(
        "search run spaces/quickstart.yaml",
        "search run questions.yaml --set search.trials=30",
        "search run questions.yaml --cluster cluster.yaml",
    )
)
@on_cluster
@click.argument("space", metavar="SPACE")
@OVERRIDES
@click.option("--name", metavar="STUDY", help="name of the study [the space's name, numbered]")
@click.option(
    "--from", "start", multiple=True, metavar="STUDY", help="first try the best points of this study; repeatable"
)
@click.option("--smoke", is_flag=True, help="test run on builtin data and encoder; two minutes on two cores")
@driving
@user_errors
def run(
    space: str,
    overrides: Sequence[str],
    name: str | None,
    start: Sequence[str],
    smoke: bool,
    storage: str,
    quiet: bool,
    **options: Any,
) -> None:
    """Start a study and run it to its end.

    SPACE is a file or the name of a ready space (`search list --spaces`).
    """
    if not quiet:
        with losable():
            click.echo(f"reading {space}")  # before anything is loaded: Python and libraries take their seconds
    from search import api

    loaded = read_space(space, overrides, start, smoke, find_data=not smoke)
    finish(api.run(loaded, storage, name=name, quiet=quiet, **options))


@main.command(epilog=examples("search resume", "search resume questions-1 --set search.trials=60"))
@on_cluster
@STUDY
@OVERRIDES
@click.option(
    "--retry-failed",
    is_flag=False,
    flag_value="outside",
    metavar="[KIND]",
    help="also retry failed trials of KIND [causes outside the point: data, disk, process, device]",
)
@click.option(
    "--salvage",
    "salvage_journal",
    is_flag=True,
    help="move damaged lines of the journal aside and continue with the rest",
)
@driving
@user_errors
def resume(study: str | None, storage: str, **options: Any) -> None:
    """Resume a study after an interruption, or with a larger budget.

    STUDY defaults to the newest one. Running trials continue from their last checkpoint.
    """
    from search import api

    finish(api.resume(study, storage, **options))


@main.command(epilog=examples("search confirm", "search confirm questions-1 --top 3 --seeds 5 --forecast"))
@on_cluster
@STUDY
@click.option("--trials", type=click.IntRange(1), help="maximum number of trials [20]")
@click.option("--top", type=click.IntRange(1), help="fixed plan instead: number of best points beside the baseline [3]")
@click.option("--seeds", type=click.IntRange(1), help="of the fixed plan: fresh seeds per point [5]")
@click.option("--forecast", is_flag=True, help="only print the detectable gain and the cost of the fixed plan")
@driving
@user_errors
def confirm(
    study: str | None,
    trials: int | None,
    top: int | None,
    seeds: int | None,
    forecast: bool,
    storage: str,
    **options: Any,
) -> None:
    """Run the best points and the baseline again on fresh seeds.

    STUDY defaults to the newest one. Each trial goes to the point whose result is most likely to change the answer.
    """
    if not forecast:
        from search import api

        finish(api.confirm(study, storage, trials=trials, top=top, seeds=seeds, **options))
    import analysis
    from analysis.errors import AnalysisError, InputError
    from analysis.writing.answer import forecast_lines
    from search.running.runner import SEEDS, TOP, confirming
    from search.store.layout import UserError, absolute, find_study

    plan = confirming(trials, top, seeds)
    study = study or find_study(absolute(storage), None).study
    try:  # from the seed noise that the analysis measures
        results = analysis.read(study, storage=storage)
        say(forecast_lines(results.forecast(plan.get("top", TOP), plan.get("seeds", SEEDS)), results.study))
    except (AnalysisError, InputError) as error:
        raise UserError(str(error)) from None
    if "trials" in plan:
        most = plan["trials"]
        say(
            [
                f"This forecast is of a fixed plan (--top {TOP} --seeds {SEEDS}). Without these options,"
                f" `search confirm` runs at most {most} trials and chooses the point of each."
            ]
        )


@main.command(
    epilog=examples(
        "search init questions.csv",
        "search init questions.csv --dev ./my_beir --encoder BAAI/bge-small-en-v1.5",
    )
)
@click.argument("data", metavar="DATA")
@click.option("--dev", multiple=True, metavar="FILE|FOLDER", help="scored pairs or BEIR's layout [held out of DATA]")
@click.option("--encoder", metavar="NAME|FOLDER", help="what to tune [sentence-transformers/all-MiniLM-L6-v2]")
@click.option("--column", "columns", multiple=True, metavar="ROLE=COLUMN", help="what a column of DATA is; repeatable")
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="the space file [named after DATA]")
@user_errors
def init(data: str, dev: Sequence[str], encoder: str | None, columns: Sequence[str], out: Path | None) -> None:
    """Write a space file for your own data.

    DATA is a file or folder of pairs, triplets, scored pairs or sentences. Without --dev a tenth of the rows is held
    out as dev set and a tenth as test set.
    """
    from search.running.forecast import estimate_line
    from search.space.from_data import ENCODER, space_from_data
    from search.store.layout import UserError

    if wrong := next((c for c in columns if "=" not in c), None):
        raise UserError(f"--column: expected ROLE=COLUMN, such as anchor=question, got {wrong!r}")
    given = dict(column.split("=", 1) for column in columns)
    say(space_from_data(data, dev, encoder or ENCODER, given, out, estimate_line).lines)


@main.command(epilog=examples("search check spaces/*.yaml", "search check questions.yaml --forecast --price 2.5"))
@click.argument("files", nargs=-1, required=True, metavar="SPACE...")
@OVERRIDES
@click.option("--forecast", is_flag=True, help="run a few steps and print device-hours, disk and money")
@click.option("--price", type=click.FloatRange(0), metavar="PER_HOUR", help="price of a device-hour, for the forecast")
@user_errors
def check(files: Sequence[str], overrides: Sequence[str], forecast: bool, price: float | None) -> None:
    """Validate space files and print their contents.

    Needs no Ray and no GPU. Exit code 2 if a file has a mistake.
    """
    from search.space import check_spaces

    checked = check_spaces(files, overrides)
    for item in checked:
        say(item.lines(), err=item.space is None)
        if forecast and item.space is not None:
            from search.running.forecast import forecast_lines
            from search.running.preflight import preflight

            preflight(item.space)  # its notes are among the lines above
            say(["  forecast: running a few steps to measure the cost"])
            say(f"  {line}" for line in forecast_lines(item.space, price))
    sys.exit(2 if any(item.space is None for item in checked) else 0)


@main.command(epilog=examples("search schema > space.schema.json"))
def schema() -> None:
    """Print the JSON schema of space files, for editors."""
    from search.space.json_schema import json_schema

    click.echo(json.dumps(json_schema(), indent=1, ensure_ascii=False))


@main.command(epilog=examples("search status", "search status questions-1 --format json"))
@at_cluster
@STUDY
@STORAGE
@FORMAT
@user_errors
def status(study: str | None, storage: str, form: str) -> None:
    """Show progress, best trial, failures and time left of a study.

    STUDY defaults to the newest one.
    """
    from search.console.status import print_status

    print_status(storage, study, form)


@main.command(epilog=examples("search track questions-1"))
@at_cluster
@STUDY
@STORAGE
@user_errors
def track(study: str | None, storage: str) -> None:
    """Write a study from its journal to MLflow.

    STUDY defaults to the newest one. This restores a lost or empty tracking store.
    """
    from search.console.status import track_study

    click.echo(f"study {track_study(storage, study)} is in MLflow")


@main.command(epilog=examples("search logs questions-1", "search logs questions-1 t0007"))
@at_cluster
@STUDY
@click.argument("trial", required=False)
@STORAGE
@user_errors
def logs(study: str | None, trial: str | None, storage: str) -> None:
    """Show the output, warnings and errors of trials.

    STUDY defaults to the newest one, TRIAL to every trial with a log.
    """
    from search.console.status import log_lines

    click.echo("\n".join(log_lines(storage, study, trial)))


@main.command(epilog=examples("search delete questions-1"))
@click.argument("study")
@STORAGE
@click.option("--yes", is_flag=True, help="skip the confirmation")
@user_errors
def delete(study: str, storage: str, yes: bool) -> None:
    """Delete a study with its checkpoints and MLflow runs."""
    from search.running.remove import deletable, delete_study

    folder, what = deletable(storage, study)
    click.echo(what)
    if not yes and not click.confirm("Delete all of it?"):
        click.echo("nothing was deleted")
        sys.exit(1)
    runs = delete_study(folder)
    click.echo(f"{folder.study} is deleted; {runs} runs are marked deleted in MLflow (`mlflow gc` frees their rows)")


@main.command(name="list", epilog=examples("search list", "search list --spaces"))
@at_cluster
@STORAGE
@FORMAT
@click.option("--spaces", is_flag=True, help="list the ready spaces instead")
@user_errors
def list_studies(storage: str, form: str, spaces: bool) -> None:
    """List the studies of a storage, or the ready spaces."""
    if spaces:
        from search.space.load import ready_spaces

        click.echo("\n".join(ready_spaces()))
        return
    from search.console.status import print_studies

    print_studies(storage, form)


@main.command(epilog=examples("search config", "search config --clear-cache"))
@click.option("--clear-cache", is_flag=True, help="delete cached tokens, parses and scores of encoders")
def config(clear_cache: bool) -> None:
    """Show your defaults and where each one is set.

    The file (TOML) has up to three keys, all strings: storage (folder or URI), tracking_uri and cluster (a file). An
    option wins over an environment variable, and that over the file; `--cluster ""` means no cluster.
    """
    path = settings_file()
    try:
        found = settings()
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    values = {key: _origin(key, found) for key in SETTINGS}
    if values["tracking_uri"][1] == "default":
        values["tracking_uri"] = (tracking_uri(storage=values["storage"][0]), "in the storage")
    click.echo(f"{path}{'' if os.path.exists(path) else ' (not there)'}")
    for key, (value, origin) in values.items():
        click.echo(f"{key:<14}{masked(value or 'none')}  ({origin})")
    from trainables.data.eviction import CACHE_BYTES, clear, entries
    from trainables.data.tokens import cache_dir

    folder = cache_dir()
    size = sum(stat.st_size for _, stat in entries(folder))
    click.echo(f"{'cache':<14}{folder}  ({size / 1e9:.2f} GB of at most {CACHE_BYTES / 1e9:.0f})")
    if clear_cache:
        clear(folder)
        click.echo(f"{size / 1e9:.2f} GB of the cache are deleted")


def _origin(key: str, found: dict[str, str]) -> tuple[str, str]:
    """A setting's value and where it comes from."""
    variable = VARIABLES.get(key, "")
    if value := os.environ.get(variable):
        return value, variable
    if key in found:
        return found[key], "the file"
    return DEFAULT_STORAGE if key == "storage" else "", "default"


for command in (ui, follow, stop, cluster):
    main.add_command(command)
