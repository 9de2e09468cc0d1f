"""What `search check` says about space files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from search.space.encoder_fit import encoder_notes
from search.space.load import load_space
from search.space.params import Param
from search.space.problems import SpaceError
from search.space.prompt_fit import prompt_notes
from search.space.sample_fit import sample_notes
from search.space.space import Space, paper_notes
from trainables.contract.errors import DataError


@dataclass(frozen=True)
class Checked:
    """One checked file: its space, or the lines that say what is wrong."""

    path: str
    space: Space | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # about its encoder, and what of its data will be left out

    def lines(self) -> list[str]:
        """For people: the problems, or what the space holds, one fact a line."""
        if self.space is None:
            return list(self.problems)
        space, search = self.space, self.space.search
        count = space.cardinality()
        if space.is_grid:
            size = f"{count} point{'' if count == 1 else 's'}, exact grid"
        else:
            trials = search.trials if search.trials is None or count is None else min(search.trials, count)
            size = f"{search.sampler}, {trials or 'any number of'} trials"
            size += f" of {count} points" if count is not None else ", continuous"
        seeds = f" x {search.repeats} seeds" if search.repeats > 1 else ""
        preset = f", preset {space.preset}" if isinstance(space.preset, str) else ""
        out = [
            f"{self.path}: {size}{seeds}",
            f"  {space.what}{preset}; selects on {space.metric.name}; pruner {space.pruner.kind}",
        ]
        out += [f"  tried first: the best of {', '.join(search.start)}"] if search.start else []
        out += [f"  {describe(param)}" for param in space.params.values()]
        out += [f"  note: {note}" for note in self.notes]
        out += [f"  note: {note}" for note in paper_notes(space)] if search.baseline == "paper" else []
        return out


def check_spaces(paths: Iterable[str | os.PathLike[str]], overrides: Sequence[str] = ()) -> list[Checked]:
    """Check every file, and its data as far as they are on this machine; never raises for what is written in them."""
    checked = []
    files = [os.fspath(path) for path in paths]
    for path in files:
        try:
            space = load_space(path, overrides, find_data=True)
            notes = (*encoder_notes(space), *prompt_notes(space), *sample_notes(space), *data_notes(space))
            checked.append(Checked(path, space, notes=notes))
        except SpaceError as error:
            checked.append(Checked(path, None, tuple(map(str, error.problems))))
        except DataError as error:
            of_which = f"{path}: " if len(files) > 1 else ""  # the lines name data files
            checked.append(Checked(path, None, tuple(of_which + line for line in str(error).splitlines())))
    return checked


def data_notes(space: Space) -> list[str]:
    """What of a space's data will be left out. Raises: DataError with all that is wrong with them."""
    from trainables.data.checks import check_data

    spec = {
        "method": space.method,
        "data": asdict(space.data),
        "metric": space.metric.name,
        "holdout": space.metric.holdout,
    }
    return [f"data: {note}" for note in check_data(spec, local_only=True)]


def describe(param: Param) -> str:
    """A parameter in one line: `learning_rate: 1e-06 .. 5e-05, log`."""
    if param.values is not None:
        text = ", ".join(_short(v) for v in param.values)
    else:
        text = f"{_short(param.low)} .. {_short(param.high)}"
        text += ", log" if param.log else f", step {_short(param.step)}" if param.step is not None else ""
    conditions = [f"{other} is {' or '.join(_short(v) for v in values)}" for other, values in param.when.items()]
    listed = " (listed points)" if param.listed else ""
    return f"{param.name}: {text}{listed}" + (f" when {' and '.join(conditions)}" if conditions else "")


def _short(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")
