"""From files to checked spaces: ready spaces by name, `extends`, overrides, groups; and what `search check` prints."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from search.space import local_checks as local
from search.space.build import build
from search.space.conditions import check_unused
from search.space.nodes import Node, Problems, SpaceError, Where, from_plain, merge, override, read_file
from search.space.params import Param
from search.space.scale import build_smoke
from search.space.space import Space, paper_notes
from trainables.contract.config import GROUPS
from trainables.contract.errors import DataError, close_to

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
    given: str | os.PathLike[str] | Mapping[str, Any], overrides: Sequence[str] = (), *, find_data: bool = False
) -> Space:
    """Read and check a space.

    Args:
        given: a YAML file (`extends: other.yaml` in it is relative to it), the name of a ready space, or what such a
            file holds as plain data.
        overrides: `key.path=value` strings, applied in turn after `extends`.
        find_data: also report named data sets that this machine would not find, what an encoder whose files are on
            this machine would ignore, evaluations of a name that is taken, and points drawn of the space that the
            method would refuse; a space that is only read, or will run elsewhere, does without.
    Raises: SpaceError listing every mistake as `file:line: key: message` or `--set key: message`.
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
    root = _grouped(override(root, overrides, problems), problems)
    if find_data:
        local.check_names(root, problems)
    space = build(root, source, problems, draws=find_data)
    problems.raise_if_any()
    assert space is not None
    if space.smoke:
        build_smoke(space, root.value["smoke"], problems)
        problems.raise_if_any()
    if find_data:
        check_unused(space, root, problems)
        local.check_all(space, root, problems)
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
            checked.append(Checked(path, space, notes=(*local.notes(space), *data_notes(space))))
        except SpaceError as error:
            checked.append(Checked(path, None, tuple(map(str, error.problems))))
        except DataError as error:
            of_which = f"{path}: " if len(files) > 1 else ""  # the lines name data files
            checked.append(Checked(path, None, tuple(of_which + line for line in str(error).splitlines())))
    return checked


def data_notes(space: Space) -> list[str]:
    """What of a space's data will be left out. Raises: DataError with all that is wrong with them."""
    from trainables.data.checks import check_data

    spec: dict[str, Any] = {"method": space.method, "data": asdict(space.data), "metric": space.metric.name}
    spec["holdout"] = space.metric.holdout
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
