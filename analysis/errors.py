"""Errors that the user sees as one line, each with its exit code."""

from __future__ import annotations

from collections.abc import Iterable

from trainables.contract.errors import close_to


class AnalysisError(Exception):
    """The work cannot be done: an empty store, no completed trial, an unreachable server. Exit code 1."""

    exit_code = 1


class InputError(AnalysisError):
    """The input is wrong: an unknown study or metric, a store that is not there. Exit code 2."""

    exit_code = 2


class NoTrialsError(AnalysisError):
    """A study has no trials to read: it has just begun, was interrupted before its first, or a newer version wrote it.
    Exit code 1."""


def unknown(kind: str, got: str, allowed: Iterable[str], shown: int = 8) -> InputError:
    """`unknown study 'quikstart'; did you mean 'quickstart'? There are: ...`."""
    names = list(dict.fromkeys(allowed))
    hint = close_to(got, names, cutoff=0.5) or "."
    more = f", and {len(names) - shown} more" if len(names) > shown else ""
    return InputError(f"unknown {kind} '{got}'{hint} There are: {', '.join(names[:shown]) or 'none'}{more}")
