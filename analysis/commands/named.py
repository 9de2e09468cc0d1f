"""The study a command is about, given as its argument or by --study."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from analysis.commands.common import STUDY
from analysis.errors import InputError


def named(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds `[STUDY]` and `--study`; the command gets one `study`."""

    @functools.wraps(command)
    def wrapped(*args: Any, positional: str | None, study: str | None, **kwargs: Any) -> Any:
        if positional and study and positional != study:
            raise InputError(f"two studies named, {positional} and {study}; expected one")
        return command(*args, study=study or positional, **kwargs)

    return click.argument("positional", metavar="[STUDY]", required=False)(STUDY(wrapped))
