"""How a command line answers wrong input."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import click


def user_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrong input is one line (or one per mistake) on stderr and exit code 2, never a traceback."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from search.errors import UserError
        from search.space import SpaceError
        from trainables.encoder_path import EncoderError
        from trainables.sources import DataError

        try:
            return command(*args, **kwargs)
        except SpaceError as error:
            text = "\n".join(map(str, error.problems))
        except (UserError, DataError, EncoderError) as error:
            text = str(error)
        click.echo(text, err=True)
        sys.exit(2)

    return wrapped
