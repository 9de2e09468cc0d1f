"""A checked search space: what is searched, what is fixed, how, on what."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from search.space.encoder_key import written_encoder
from search.space.nodes import Node
from search.space.optuna_class import BESIDE, PRUNER, SAMPLER, OptunaClass
from search.space.params import Param
from search.space.sections import Data, Metric, Pruner, Resources, Search
from trainables.contract import formats
from trainables.contract.config import RunConfig, hyperparameters
from trainables.contract.declaration import TRANSFORMER, Declaration, EncoderFamily, Preset
from trainables.contract.formats import stamp
from trainables.contract.registry import OTHERS, SHIPPED, Plugin, declared
from trainables.contract.trial import TrialSpec, at_width, metric_parts, retrieval_measure
from trainables.data.retrieval import dev_metrics

TRAIN_KEYS = (
    "max_examples", "epochs", "eval_examples", "eval_steps", "precision", "micro_batch", "checkpoint_seconds",
)  # fmt: skip
# Hyperparameters and keys that studies of earlier versions lack.
LATER_KEYS = {
    "data": ("evaluations", "prompts", "mine"),
    "metric": ("holdout",),
    "search": ("start",),
    "train": ("micro_batch",),
}
LATER = (
    "lora.rank", "lora.alpha", "lora.dropout", "lora.targets", "freeze", "layer_decay", "checkpointing", "sets",
    "set_weights", "include_prompt",
)  # fmt: skip
NO_PRESET = "none"
WRITTEN_BY = "written_by"  # in a stored space: its format
PAPER = "paper"
_OTHER = object()  # stands for every value that no condition names


def written(code: Plugin) -> str | dict[str, str]:
    """A plugin or a script in a resolved space, which needs the file no more."""
    return {"file": code.file, "text": code.text} if code.text else code.file


def changed_file_notes(files: Iterable[Plugin]) -> list[str]:
    """One line for each plugin or script whose file is there and has another content than the study keeps."""
    lines = []
    for plugin in files:
        try:
            same = Path(plugin.file).read_text(encoding="utf-8") == plugin.text
        except (OSError, ValueError):
            continue  # gone: the study has its own copy
        if not same:
            lines.append(f"{plugin.file} has changed since the study began, which goes on with its own copy")
    return lines


@dataclass(frozen=True, kw_only=True)
class Space:
    """One space file, checked and complete. Made by `load_space`, never directly.

    Attributes:
        params: what is searched, in an order in which conditions come before what depends on them.
        constants: hyperparameters the file fixes (`params` scalars and the `train` section).
        rows: the `points` section: listed points, each a mapping of some of `params`.
        preset: name of one of the method's presets, or None; of a script the values of its author's setting.
        smoke: changes that `smoke()` makes on top of its own, as plain YAML data.
        plugins: the files that bring its method or evaluations, whole.
        script: what trains, where the method is a script.
        classes: a "sampler" or "pruner" that is given as a class, or with arguments.
        unloaded: what the space itself shows of a method whose code was not run; None where it was, or is ours.
        source: the file it came from, for messages.
    """

    name: str
    method: str
    encoder: str
    preset: str | Mapping[str, Any] | None
    data: Data
    metric: Metric
    params: Mapping[str, Param]
    constants: Mapping[str, Any]
    rows: tuple[Mapping[str, Any], ...] = ()
    search: Search = field(default_factory=Search)
    pruner: Pruner = field(default_factory=Pruner)
    resources: Resources = field(default_factory=Resources)
    smoke: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[Plugin, ...] = ()
    script: Plugin | None = None
    classes: Mapping[str, OptunaClass] = field(default_factory=dict)
    unloaded: Declaration | None = None
    source: str = ""

    @property
    def declaration(self) -> Declaration:
        """Of its method."""
        return self.unloaded or declared(self.method)

    @cached_property
    def base(self) -> Mapping[str, Any]:
        """Every hyperparameter's value where nothing is searched: default, then preset, then constant."""
        return self.declaration.values(self.preset) | dict(self.constants)

    def values(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """All hyperparameters of a trial at this point, in the order of the method's configuration."""
        return {**self.base, **point}

    def trial_spec(self, params: Mapping[str, Any], folder: str, **fields: Any) -> TrialSpec:
        """A trial with these hyperparameters. fields: of `TrialSpec`, what the study decides: seed and resources."""
        return TrialSpec(
            method=self.method,
            encoder=self.encoder,
            data=asdict(self.data),
            metric=self.metric.name,
            mode="max" if self.metric.mode == "max" else "min",
            holdout=self.metric.holdout,
            params=params,
            folder=folder,
            plugins=self.plugins,
            script=self.script,
            **fields,
        )

    def active(self, name: str, point: Mapping[str, Any]) -> bool:
        """Whether a parameter exists at this point, given what its conditions name.

        A condition on a parameter that is itself inactive does not hold; one on a constant is checked against it.
        """
        return all(
            (point.get(other, _OTHER) if other in self.params else self.base[other]) in allowed
            for other, allowed in self.params[name].when.items()
        )

    @property
    def code(self) -> list[Plugin]:
        """Every file or module that it runs beside ours."""
        own = [one.code for one in self.classes.values() if one.code]
        return [*self.plugins, *([self.script] if self.script else []), *own]

    @property
    def what(self) -> str:
        """What is trained on which encoder, in words: `simcse on bert-base-uncased`, `script train.py`."""
        trained = f"{self.method} {os.path.basename(self.script.file)}" if self.script else self.method
        return f"{trained} on {self.encoder}" if self.encoder else trained

    @property
    def known_metric(self) -> bool:
        """Whether what selects is made of correlations of the dev sets: their seed noise was published (`SEED_SD`),
        that of retrieval measures was not."""
        own = {metric for name in self.data.dev or () for metric in dev_metrics(name) if not retrieval_measure(metric)}
        return own.issuperset(at_width(part)[0] for part in metric_parts(self.metric.name))

    @property
    def is_grid(self) -> bool:
        return self.search.sampler == "grid"

    def points(self) -> Iterator[dict[str, Any]]:
        """Every point of a countable space, once each: listed rows times the product of the other parameters.

        The first parameter of the file varies slowest.

        Raises: ValueError when a parameter is continuous.
        """
        if uncountable := [p.name for p in self.params.values() if p.count() is None]:
            raise ValueError(f"{', '.join(uncountable)}: continuous, so the points cannot be listed")
        for row in self.rows or ({},):
            yield from self._product([p for p in self.params.values() if not p.listed], dict(row))

    def cardinality(self) -> int | None:
        """How many different points there are; None when a parameter is continuous.

        Counts without listing: of a parameter's values only those that conditions name are distinguished.
        """
        if any(p.count() is None for p in self.params.values()):
            return None
        free = [p for p in self.params.values() if not p.listed]
        return sum(self._count(free, dict(row)) for row in self.rows or ({},))

    def _product(self, free: Sequence[Param], point: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if not free:
            yield {name: point[name] for name in self.params if name in point}
        elif not self.active(free[0].name, point):
            yield from self._product(free[1:], point)
        else:
            for value in free[0]:
                yield from self._product(free[1:], {**point, free[0].name: value})

    def _count(self, free: Sequence[Param], point: dict[str, Any]) -> int:
        if not free:
            return 1
        first, rest = free[0], free[1:]
        if not self.active(first.name, point):
            return self._count(rest, point)
        named = {repr(v): v for p in rest for v in p.when.get(first.name, ()) if first.legal(v)}  # lists do not hash
        total = sum(self._count(rest, {**point, first.name: value}) for value in named.values())
        count = first.count()
        assert count is not None
        if others := count - len(named):
            total += others * self._count(rest, {**point, first.name: _OTHER})
        return total

    def resolved(self) -> dict[str, Any]:
        """The space with nothing left implicit, as plain YAML data; loading it gives an equal space."""
        base = self.base
        known = hyperparameters(self.declaration.config)
        fixed = {k: v for k, v in base.items() if k not in self.params and (self.script or k not in TRAIN_KEYS)}
        out: dict[str, Any] = {
            "name": self.name,
            "method": self.method,
            "script": written(self.script) if self.script else None,
            "encoder": written_encoder(self.encoder),
            "preset": dict(self.preset) if isinstance(self.preset, Mapping) else self.preset or NO_PRESET,
            "data": {**asdict(self.data), "dev": list(self.data.dev)},
            "metric": asdict(self.metric),
            "params": {name: p.written() for name, p in self.params.items() if not p.listed}
            | {k: v for k, v in fixed.items() if k not in LATER or k not in known or v != known[k].default},
            "points": [dict(row) for row in self.rows],
            "search": {**asdict(self.search), "start": list(self.search.start)},
            "pruner": asdict(self.pruner),
            "resources": asdict(self.resources),
            "train": {k: base[k] for k in TRAIN_KEYS if k not in self.params and not self.script},
            "smoke": dict(self.smoke),
            "plugins": [written(plugin) for plugin in self.plugins],
        }
        if SAMPLER in self.classes:
            out["search"][SAMPLER] = self.classes[SAMPLER].written()
        if PRUNER in self.classes:
            beside = {key: out[PRUNER][key] for key in BESIDE}
            out[PRUNER] = self.classes[PRUNER].written() | beside
        if self.script:
            out["data"] = {name: value for name, value in out["data"].items() if value}
        for section, keys in LATER_KEYS.items():
            out[section] = {k: v for k, v in out[section].items() if k not in keys or v}
        optional = ("script", "encoder", "train", "data", "points", "smoke", "plugins")
        return {key: value for key, value in out.items() if value or key not in optional}

    def to_yaml(self) -> str:
        """`resolved()` as a space file, with the format and the version that wrote it. The order of parameters is the
        order of a grid, so it is preserved."""
        return yaml.dump(
            self.resolved() | {WRITTEN_BY: stamp(formats.SPACE)},
            Dumper=_Dumper,
            sort_keys=False,
            allow_unicode=True,
            width=120,
        )


def unloaded_method(root: Node) -> Declaration | None:
    """What a stored space shows of a method that is not shipped here, whose code is not run; None for others."""
    name, preset, encoder = (node.value if (node := root.get(key)) else None for key in ("method", "preset", "encoder"))
    if not isinstance(name, str) or name in (*SHIPPED, *OTHERS):
        return None
    presets = {preset: Preset((), {}, "")} if isinstance(preset, str) else {}
    return Declaration(
        name=name, config=RunConfig, presets=presets, encoders=EncoderFamily(TRANSFORMER.what, str(encoder)),
        parser=True,
    )  # fmt: skip


class _Dumper(yaml.SafeDumper):
    """Texts of several lines (plugins) as blocks, as a person would write them."""


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _write_text)


def paper_point(space: Space) -> dict[str, Any]:
    """The published setting as a point of the space: preset or default values, moved to the nearest legal ones.

    In a space of listed points it is the row that differs from the published setting in the fewest parameters.
    """
    return _paper(space)[0]


def paper_notes(space: Space) -> dict[str, str]:
    """What `paper_point` had to change: parameter -> a line. Empty when the baseline's setting lies in the space, and
    where the code that declares the parameters was not run."""
    known = space.declaration.values(space.preset).keys() >= space.params.keys()
    return _paper(space)[1] if known else {}


def _paper(space: Space) -> tuple[dict[str, Any], dict[str, str]]:
    published = space.declaration.values(space.preset)
    point: dict[str, Any] = {}
    if space.rows:
        # A row that leaves a parameter out has the published value there.
        row: Mapping[str, Any] = min(space.rows, key=lambda r: sum(published[n] != v for n, v in r.items()))
        point = dict(row)
    for name, param in space.params.items():
        if not param.listed and space.active(name, point):
            point[name] = param.nearest(published[name])

    def origin(name: str) -> str:
        preset = space.declaration.presets.get(space.preset) if isinstance(space.preset, str) else None
        own = preset.values if preset else space.preset
        if not isinstance(own, Mapping) or name not in own:
            return f"the default {published.get(name)!r}"
        return f"the value {published[name]!r} of " + (f"preset {space.preset}" if preset else "the preset")

    notes = {
        name: f"{name}: {origin(name)} is not in the space; the baseline uses {value!r}"
        for name, value in point.items()
        if not space.params[name].legal(published[name]) or (space.params[name].listed and value != published[name])
    }
    notes |= {
        name: f"{name}: the space fixes {value!r} in place of {origin(name)}"
        for name, value in space.constants.items()
        if name not in TRAIN_KEYS and value != published.get(name, value)
    }
    return point, notes


def evaluation_notes(space: Space) -> list[str]:
    """A line where the `eval_examples` that a space gives has no effect."""
    steps = space.base.get("eval_steps")
    if steps is None or not {"eval_examples"} & {*space.constants, *space.params}:
        return []
    whose = "" if "eval_steps" in space.constants else f", of preset {space.preset},"
    return [f"eval_examples: no effect: eval_steps {steps}{whose} wins; with `eval_steps: null` it has"]
