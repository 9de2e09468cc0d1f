"""How a command line answers wrong input, signals, and the loss of where it prints."""

from __future__ import annotations

import contextlib
import errno
import functools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click


def user_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input is a line (or one per mistake) on stderr and exit code 2, a signal a line and 128 + its number."""

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
            text = "\n".join(map(str, error.problems))
        except (UserError, DataError, EncoderError) as error:
            text = str(error)
        click.echo(text, err=True)
        sys.exit(2)

    return wrapped


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """What is printed inside may be lost (a full disk, a closed pipe): how the work goes does not hang on it."""
    try:
        yield
    except OSError as error:
        from search.console.output import UNWRITTEN, let_go

        if error.errno != errno.EPIPE:
            with contextlib.suppress(OSError):  # into the same file
                print(UNWRITTEN % error.strerror, file=sys.stderr)
        let_go()
