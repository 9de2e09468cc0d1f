"""Faults that are told to the user in one line, each with its exit code."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AnalysisError(Exception):
    """The work cannot be done: an empty store, no completed trial, an unreachable server. Exit code 1."""

    exit_code = 1


class InputError(AnalysisError):
    """What was asked for is wrong: an unknown study or metric, a store that is not there. Exit code 2."""

    exit_code = 2


def unknown(kind: str, got: str, allowed: Iterable[str], shown: int = 8) -> InputError:
    """`unknown study 'quikstart'; did you mean 'quickstart'? There are: ...`."""
    names = list(dict.fromkeys(allowed))
    close = difflib.get_close_matches(got, names, n=1, cutoff=0.5)
    hint = f"; did you mean '{close[0]}'?" if close else "."
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return InputError(f"unknown {kind} '{got}'{hint} There are: {', '.join(names[:shown]) or 'none'}{more}")
