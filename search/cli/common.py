"""What the `search` commands share: options, one-line errors, exit codes, output that may be lost."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from search.schema import DEFAULT_STORAGE

if TYPE_CHECKING:
    from search.running.result import StudyResult

SMOKE = "SMOKE RUN: builtin data, tiny encoder, few examples. The numbers mean nothing about the method."
STUDY = click.argument("study", required=False)
STORAGE = click.option(
    "--storage",
    default=DEFAULT_STORAGE,
    envvar="SEARCH_STORAGE",
    show_default=True,
    metavar="FOLDER|URI",
    help="where studies and mlflow.db are stored",
)
FORMAT = click.option(
    "--format", "form", type=click.Choice(["table", "json", "csv", "yaml"]), default="table", show_default=True
)
OVERRIDES = click.option(
    "--set", "overrides", multiple=True, metavar="KEY.PATH=VALUE", help="override a value of the space file; repeatable"
)
DRIVING = (
    STORAGE,
    click.option(
        "--address", metavar="ADDRESS", help="address of a running Ray cluster [RAY_ADDRESS, else a private Ray]"
    ),
    click.option("-q", "--quiet", is_flag=True, help="print only the result"),
    click.option("-v", "--verbose", is_flag=True, help="also print a line for every evaluation"),
)


def driving(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of those that run trials: storage, address, quiet, verbose."""
    for option in reversed(DRIVING):
        command = option(command)
    return command


def user_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input is a line (or one per mistake) on stderr and exit code 2 (1 where the machine is at fault), a signal
    a line and 128 + its number."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from search.running.private_ray import handled, stop_at_once
        from search.space import SpaceError
        from search.store.layout import UserError
        from trainables.contract.errors import DataError, EncoderError

        try:
            with handled(stop_at_once):
                return command(*args, **kwargs)
        except KeyboardInterrupt as stop:
            number = getattr(stop, "number", signal.SIGINT)
            how = [signal.Signals(number).name, *getattr(stop, "__notes__", ())]
            click.echo(f"interrupted by {'; '.join(how)}", err=True)
            sys.exit(128 + number)
        except SpaceError as error:
            text, code = "\n".join(map(str, error.problems)), 2
        except (UserError, DataError, EncoderError) as error:
            text, code = str(error), getattr(error, "exit_code", 2)
        click.echo(text, err=True)
        sys.exit(code)

    return wrapped


@contextlib.contextmanager
def losable() -> Iterator[None]:
    """What is printed inside may be lost (a full disk, a closed pipe): the work and its exit code do not change."""
    try:
        yield
    except OSError as error:
        from search.console.display import UNWRITTEN, print_nowhere

        if error.errno != errno.EPIPE:
            with contextlib.suppress(OSError):  # into the same file
                print(UNWRITTEN % error.strerror, file=sys.stderr)
        print_nowhere()


def say(lines: Iterable[str], err: bool = False) -> None:
    """Print lines, on a terminal broken between words."""
    from search.console.display import fitted

    for line in lines:
        click.echo(fitted(line), err=err)


def finish(result: StudyResult) -> NoReturn:
    """Print how a session of a study ended and leave with its exit code."""
    from search.running.result import closing_lines

    lines = closing_lines(result)
    with losable():
        say(lines)
    gc.freeze()  # else the interpreter collects garbage in all of Ray and MLflow at exit: a second of CPU
    sys.exit(result.exit_code)
