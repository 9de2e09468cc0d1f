"""The `analysis` command. Subcommands import what is heavy when they run, so that `--help` answers at once."""

from __future__ import annotations

from typing import Any

import click

from analysis.commands.checkpoint import export, test
from analysis.commands.studies import compare, league, table
from analysis.commands.study import best, importance, optuna, plot, report
from analysis.errors import AnalysisError, InputError
from search.command_help import Group, examples
from trainables.contract.errors import DataError, EncoderError

COMMANDS = {  # in the order of use
    str(c.name): c for c in (best, table, league, importance, plot, compare, test, report, export, optuna)
}
INTERRUPTED = 130


class Commands(Group):
    """Subcommands in the order of use; a fault that a user can mend is one line and an exit code, never a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except AnalysisError as fault:
            click.echo(f"analysis: {fault}", err=True)
            ctx.exit(fault.exit_code)
        except (DataError, EncoderError) as fault:  # what a model was trained from is gone, or cannot be read
            click.echo(f"analysis: {fault}", err=True)
            ctx.exit(1)
        except OSError as fault:  # a folder that cannot be written, a full disk
            if fault.filename is None:
                raise
            click.echo(f"analysis: {fault.filename}: {fault.strerror}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)


@click.group(
    cls=Commands,
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples("analysis best", "analysis best --metric stsb_dev", "analysis report --help"),
)
@click.version_option(package_name="contrastive-search")
@click.pass_context
def main(context: click.Context) -> None:
    """Analyse finished and running studies.

    Reads MLflow; only `test` writes there, what it opened and the scores. `search config` shows your defaults.
    """
    from search.user_defaults import SettingsError, use_settings

    try:
        context.default_map = dict.fromkeys(COMMANDS, use_settings())
    except SettingsError as error:
        raise InputError(str(error)) from None
