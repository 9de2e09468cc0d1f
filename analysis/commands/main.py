"""The `analysis` command. Subcommands are loaded when called, so that `--help` answers at once."""

from __future__ import annotations

import importlib
from typing import Any

import click

from analysis.errors import AnalysisError, InputError
from trainables.contract.errors import DataError, EncoderError

# In the order of use; a subcommand is the function of its name in analysis/commands/<name>.py.
COMMANDS = ("best", "table", "league", "importance", "plot", "compare", "test", "report", "export", "optuna")
INTERRUPTED = 130


class Commands(click.Group):
    """Subcommands by name; a fault that a user can mend is one line and an exit code, never a traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 (click's)
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"analysis.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

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


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="contrastive-search")
@click.pass_context
def main(context: click.Context) -> None:
    """What finished and running studies say: rankings, verdicts, comparisons.

    Reads MLflow; only `test` writes there, what it opened and the scores. `search config` shows your defaults.
    """
    from search.user_defaults import SettingsError, use_settings

    try:
        defaults = use_settings()
    except SettingsError as error:
        raise InputError(str(error)) from None
    if "storage" in defaults:
        defaults["source"] = defaults["storage"]  # of `optuna`, whose --storage is Optuna's
    context.default_map = dict.fromkeys(COMMANDS, defaults)
