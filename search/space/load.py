"""From files to checked spaces: ready spaces by name, `extends`, overrides, groups; what `search check` prints.

And the smoke test of a space: builtin encoder and corpus, few and small trials.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from search.space.build import build
from search.space.checks import check_encoder, check_names, check_prompts, check_taken_names, notes
from search.space.clipped import check_clipped, check_sets, sample_notes
from search.space.nodes import Node, Problems, SpaceError, Where, from_plain, merge, override, read_file
from search.space.params import Param, distinct
from search.space.space import TRAIN_KEYS, WRITTEN_BY, Space, paper_notes
from search.space.unused import check_unused
from trainables.contract import formats
from trainables.contract.config import GROUPS
from trainables.contract.errors import DataError, close_to
from trainables.contract.registry import declared
from trainables.contract.trial import at_width, metric_parts
from trainables.data.catalogue import BUILTIN_LANGUAGES
from trainables.data.retrieval import BUILTIN_RETRIEVAL, dev_metrics, is_retrieval

_PACKAGE = Path(__file__).parents[1]


def ready_folder() -> Path:
    """Where the spaces of the package are: installed as `search/ready_spaces`, else in `spaces` beside `search`."""
    installed = _PACKAGE / "ready_spaces"
    return installed if installed.is_dir() else _PACKAGE.parent / "spaces"


def ready_spaces() -> list[str]:
    """Their names, such as `edacse` and `papers/edacse_table05_bert`."""
    folder = ready_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def load_space(
    given: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    find_data: bool = False,
    run_code: bool = True,
) -> Space:
    """As `search.load_space`, which users call, but without `find_data` by default: for a space that is only read, or
    will run elsewhere. Without `run_code` nothing of it is executed: anyone who can write to a shared storage may have
    put anything there.
    """
    problems = Problems()
    if isinstance(given, Mapping):
        source = "space"
        root: Node | None = _grouped(from_plain(given, Where(source)), problems)
    else:
        source = os.fspath(given)
        name = source.removesuffix(".yaml")
        if not os.path.isfile(source) and name in ready_spaces():
            source = str(ready_folder() / f"{name}.yaml")
        elif not os.path.exists(source):
            problems.lost(Where(source), "no such file" + close_to(name.removeprefix("spaces/"), ready_spaces()))
            problems.raise_if_any()
        root = _read_with_bases(source, (), problems)
    if root is None or problems.unreadable:
        raise SpaceError(problems.found)
    root = _grouped(override(_of_this_format(root, problems), overrides, problems), problems)
    if find_data:
        check_names(root, problems)
    space = build(root, source, problems, draws=find_data, run_code=run_code)
    problems.raise_if_any()
    assert space is not None
    if space.smoke and run_code:
        build_smoke(space, root.value["smoke"], problems)
        problems.raise_if_any()
    if find_data:
        for check in (check_unused, check_taken_names, check_encoder, check_prompts, check_sets, check_clipped):
            check(space, root, problems)
    problems.raise_if_any()
    return space


def space_from(plain: Mapping[str, Any]) -> Space:
    """A space from plain data, such as `Space.resolved()` read back. Raises: SpaceError without lines."""
    return load_space(plain)


def _read_with_bases(path: str, trail: tuple[str, ...], problems: Problems) -> Node | None:
    node = read_file(path, problems)
    node = None if node is None else _grouped(node, problems)
    if node is None or (given := node.get("extends")) is None:
        return node
    own = Node({key: value for key, value in node.value.items() if key != "extends"}, node.where)
    if not isinstance(given.value, str) or not given.value.strip() or "\0" in given.value:
        problems.lost(given.where, f"expected the path of a space file, got {given.plain()!r}")
        return own
    base_path = os.path.normpath(os.path.join(os.path.dirname(path), given.value))
    trail = (*trail, os.path.normpath(path))
    if base_path in trail:
        problems.lost(given.where, "in a circle: " + " -> ".join((*trail, base_path)))
    elif not os.path.isfile(base_path):
        problems.lost(given.where, f"no such file: {base_path}")
    elif (base := _read_with_bases(base_path, trail, problems)) is not None:
        nameless = {key: value for key, value in base.value.items() if key != "name"}  # a study has its own file's name
        return merge(Node(nameless, base.where), own)
    return own


def _of_this_format(root: Node, problems: Problems) -> Node:
    """The document without the format number of a stored space. Raises: SpaceError for a newer one, that alone."""
    entries = dict(root.value)
    if (stamp := entries.pop(WRITTEN_BY, None)) is not None:
        try:
            formats.check_format(stamp.plain() if isinstance(stamp.value, dict) else {}, formats.SPACE)
        except formats.NewerFormatError as error:
            problems.add(stamp.where, str(error))
            problems.raise_if_any()
    return Node(entries, root.where)


def _grouped(root: Node, problems: Problems) -> Node:
    """The document with the groups of `params`, `smoke.params` and every point taken apart: `lora: {rank: 8}` stands
    for `lora.rank`. A value given in both ways is a mistake; one of an override wins.
    """
    entries = dict(root.value)
    if "params" in entries:
        entries["params"] = _apart(entries["params"], problems)
    if (params := root.get("smoke", "params")) is not None:
        smoke = entries["smoke"]
        entries["smoke"] = Node({**smoke.value, "params": _apart(params, problems)}, smoke.where)
    if "points" in entries and isinstance(entries["points"].value, list):
        rows = [_apart(row, problems) for row in entries["points"].value]
        entries["points"] = Node(rows, entries["points"].where)
    return Node(entries, root.where)


def _apart(section: Node, problems: Problems) -> Node:
    if not isinstance(section.value, dict):
        return section
    found: dict[str, Node] = {}
    for name, node in section.value.items():
        group = node.value if name in GROUPS and isinstance(node.value, dict) else None
        parts = {name: node} if group is None else {f"{name}.{part}": v for part, v in group.items()}
        for own, value in parts.items():
            if own in found and not (value.where.override or found[own].where.override):
                problems.add(value.where, f"given twice (first in line {found[own].where.line})")
            elif own not in found or value.where.override:
                found[own] = value
    return Node(found, section.where)


SAMPLER_NAMES = {
    "gp": "Gaussian process (sampler gp)", "tpe": "tree-structured Parzen estimator (sampler tpe)",
    "qmc": "quasi-random points (sampler qmc)", "random": "random points (sampler random)",
}  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """One checked file: its space, or its problems, one a line."""

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
            points = search.trials if search.trials is None or count is None else min(search.trials, count)
            most = "any number of" if points is None else f"up to {points}" + (f" of {count}" if count else "")
            size = f"{SAMPLER_NAMES.get(search.sampler, f'sampler {search.sampler}')}, {most} points"
        seeds = f", up to {search.repeats} seeds each" if search.repeats > 1 else ""
        out = [
            f"{self.path}: {size}{seeds}",
            f"  {space.what}; selects on {space.metric.name}; pruner {space.pruner.kind}",
        ]
        out += [f"  {_preset_line(space)}"] if space.preset is not None or not space.script else []
        out += [f"  tried first: the best of {', '.join(search.start)}"] if search.start else []
        out += [f"  {describe(param)}" for param in space.params.values()]
        out += [f"  note: {note}" for note in self.notes]
        out += [f"  note: {note}" for note in paper_notes(space).values()] if search.baseline == "paper" else []
        return out


def _preset_line(space: Space) -> str:
    """Which values its baseline has, or where nothing runs as one, those that it does not give."""
    what = "baseline" if space.search.baseline == "paper" else "values that are not given"
    if space.preset is None:
        return f"{what}: the method's defaults"
    if not isinstance(space.preset, str):
        return f"{what}: the space's preset"
    preset = space.declaration.presets.get(space.preset)
    return f"{what}: preset {space.preset}" + (f", from {preset.source}" if preset and preset.source else "")


def check_spaces(paths: Iterable[str | os.PathLike[str]], overrides: Sequence[str] = ()) -> list[Checked]:
    """Check every file, and its data as far as they are on this machine; never raises for what is written in them."""
    from trainables.data.checks import check_data

    checked = []
    files = [os.fspath(path) for path in paths]
    for path in files:
        try:
            space = load_space(path, overrides, find_data=True)
            spec = {"method": space.method, "data": asdict(space.data), "metric": space.metric.name}
            left_out = check_data(spec | {"holdout": space.metric.holdout}, local_only=True)
            checked.append(
                Checked(
                    path, space, notes=(*notes(space), *sample_notes(space), *(f"data: {note}" for note in left_out))
                )
            )
        except SpaceError as error:
            checked.append(Checked(path, None, tuple(map(str, error.problems))))
        except DataError as error:
            of_which = f"{path}: " if len(files) > 1 else ""  # the lines name data files
            checked.append(Checked(path, None, tuple(of_which + line for line in str(error).splitlines())))
    return checked


def describe(param: Param) -> str:
    """A parameter in one line: `learning_rate: 1e-06 .. 5e-05, log`."""
    if param.values is not None:
        text = ", ".join(_short(v) for v in param.values)
    else:
        text = f"{_short(param.low)} .. {_short(param.high)}"
        text += ", log" if param.log else f", step {_short(param.step)}" if param.step is not None else ""
        text += f" (no step ends at {_short(param.written_high)})" if param.written_high is not None else ""
    conditions = [f"{other} is {' or '.join(_short(v) for v in values)}" for other, values in param.when.items()]
    listed = " (listed points)" if param.listed else ""
    return f"{param.name}: {text}{listed}" + (f" when {' and '.join(conditions)}" if conditions else "")


def _short(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")


TRIALS = 8
CAPS = {  # hyperparameters that set how long a step or a trial takes: (smallest, largest) value of a smoke trial
    "batch_size": (16, 64), "sample_size": (100, 2000), "max_length": (16, 64), "filters": (8, 16), "epochs": (1, 4),
    "warmup_epochs": (1, 2), "dimensions": (8, 64), "matryoshka": (1, 64),  # of these the builtin encoder has no more
}  # fmt: skip
EXAMPLES, EVAL_EXAMPLES = 2000, 500


def smoke(space: Space) -> Space:
    """The space scaled to a minute or two on two CPU cores, on the builtin encoder and corpus.

    Same method, parameters and sampler; the file's `smoke` section has the last word. Its numbers show that things run,
    and nothing about the papers.
    """
    problems, changes = Problems(), from_plain(space.smoke, Where(space.source))
    built = build_smoke(space, changes, problems)
    problems.raise_if_any()
    assert built is not None
    check_taken_names(built, changes, problems)  # it has other dev sets
    problems.raise_if_any()
    return built


def build_smoke(space: Space, changes: Node, problems: Problems) -> Space | None:
    """The smoke test of a space under the changes that its file makes; None only when problems were added."""
    return build(merge(from_plain(scaled_down(space), changes.where), changes), space.source, problems)


def scaled_down(space: Space) -> dict[str, Any]:
    """The resolved space, changed; not yet checked.

    The dev sets are replaced by the builtin one, so a metric of theirs becomes `builtin_dev`; where all are retrieval
    sets, by the builtin one of those.
    """
    method = declared(space.method)
    small = _few_rows(space if method.scripted else _capped(space))
    out = copy.deepcopy(small.resolved())
    out.pop("smoke", None)
    repeats = min(space.search.repeats, 2)
    trials = None if space.is_grid else max(2, min(space.search.trials or TRIALS, TRIALS) // repeats)
    ends = dict.fromkeys(("time", "device_hours", "patience", "concurrent", "budget", "examples"))
    out["search"] |= {"trials": trials, "repeats": repeats, **ends}
    out["pruner"] |= {"warmup": None, "min_rung": None}
    out["resources"] = {"gpus": 0, "cpus": 1, "workers": 1}
    if method.scripted:  # only the file's `smoke` section can shorten its trials
        out["search"]["baseline"] = out["preset"] = "none"  # it may not lie in fewer points
        return out
    out["encoder"] = method.encoders.builtin
    language = space.data.language if space.data.language in BUILTIN_LANGUAGES else "en"
    parser = "builtin" if method.parser else None
    dev = BUILTIN_RETRIEVAL[language] if all(map(is_retrieval, space.data.dev)) else "builtin"
    out["data"] |= {"train": "builtin", "dev": [dev], "columns": None, "language": language, "parser": parser}
    of_sets = {metric for dev_set in space.data.dev for metric in dev_metrics(dev_set)}
    if of_sets & {
        at_width(part)[0] for part in metric_parts(space.metric.name)
    }:  # evaluations from outside stay what they are
        out["metric"]["name"] = dev_metrics(dev)[0]
    short = {"max_examples": EXAMPLES, "eval_examples": EVAL_EXAMPLES, "eval_steps": None, "precision": "fp32"}
    for name, value in (short | dict(method.smoke)).items():
        if name not in small.params:  # what is searched stays searched
            out["train" if name in TRAIN_KEYS else "params"][name] = value
    return out


def _capped(space: Space) -> Space:
    """No value above `CAPS`, in constants, ranges, lists, listed points and conditions alike."""
    shrink = {name: _shrinker(name, space.params.get(name)) for name in CAPS}

    def small(name: str, value: Any) -> Any:
        if isinstance(value, list) and name in shrink:
            return list(distinct(shrink[name](one) for one in value))
        return shrink[name](value) if name in shrink and value is not None else value

    constants = {name: small(name, value) for name, value in space.values({}).items() if name not in space.params}
    if "sample_size" in constants and constants["sample_size"] is None:
        constants["sample_size"] = CAPS["sample_size"][1]
    params: dict[str, Param] = {}
    for name, param in space.params.items():
        when = {other: distinct(small(other, v) for v in values) for other, values in param.when.items()}
        if param.values is not None:
            param = replace(param, values=distinct(small(name, v) for v in param.values))
        elif param.high is not None and param.high != small(name, param.high):
            param = Param(name=name, kind="choice", values=distinct(small(name, v) for v in param.bounds))
        params[name] = replace(param, when=when)
    rows = distinct({name: small(name, value) for name, value in row.items()} for row in space.rows)
    return replace(space, params=params, constants=constants, rows=rows)


def _shrinker(name: str, param: Param | None) -> Callable[[float], float]:
    """How the values of a hyperparameter shrink: cut at the largest, or in proportion where a cut leaves one value."""
    least, most = CAPS[name]
    values = [v for v in param.typical if isinstance(v, (int, float))] if param else []
    if len(values) > 1 and min(values) >= most:
        factor = most / max(values)
        return lambda value: max(least, round(value * factor))
    return lambda value: min(value, most)


def _few_rows(space: Space) -> Space:
    """Of a grid about `TRIALS` points: first rows and first values, and every value that a condition names."""
    if not space.is_grid:
        return space
    named = {(o, repr(v)) for p in space.params.values() for o, values in p.when.items() for v in values}

    def shortened(lengths: dict[str, int]) -> Space:
        params = dict(space.params)
        for name, length in lengths.items():
            few = [v for i, v in enumerate(params[name]) if i < length or (name, repr(v)) in named]
            params[name] = Param(name=name, kind="grid", values=tuple(few), when=params[name].when)
        return replace(space, params=params, rows=space.rows[:TRIALS])

    lengths = {name: 1 for name, param in space.params.items() if not param.listed}
    growing = list(lengths)
    while growing:
        for name in list(growing):
            longer = lengths | {name: lengths[name] + 1}
            if lengths[name] < (space.params[name].count() or 0) and (shortened(longer).cardinality() or 0) <= TRIALS:
                lengths = longer
            else:
                growing.remove(name)
    return shortened(lengths)
