"""The format of a space file as a JSON schema: editors complete and explain keys and mark mistakes while one types.

It says less than `search check`, which knows which keys fit together: a file that the schema accepts may still be
wrong, one that is right is accepted (every shipped space is, by test).
"""

from __future__ import annotations

from typing import Any

from search.space.params import KINDS
from search.space.sections import LANGUAGE, Pruner, Resources, Search
from search.space.space import TRAIN_KEYS
from trainables.contract.config import GROUPS, Hyperparameter, hyperparameters
from trainables.contract.declaration import Declaration
from trainables.contract.registry import declared, method_names, trial_kinds
from trainables.data.tokens import PROMPTS

Schema = dict[str, Any]
TYPES = {"float": "number", "int": "integer", "bool": "boolean", "str": "string"}
TEXT: Schema = {"type": "string", "minLength": 1}
TEXTS: Schema = {"type": "array", "items": TEXT}
ANYTHING: Schema = {"type": "object"}
HOLDOUT = "share of the dev pairs that do not select, reported beside as <set>_held_dev"


def json_schema() -> Schema:
    """JSON schema (draft 2020-12) of space files for the methods that are known here."""
    declarations: list[Declaration] = [declared(name) for name in method_names()]
    known: dict[str, list[Hyperparameter]] = {}  # methods may take different values under one name
    for declaration in declarations:
        for name, knob in hyperparameters(declaration.config).items():
            if knob not in known.setdefault(name, []):
                known[name].append(knob)
    presets = sorted({preset for declaration in declarations for preset in declaration.presets} | {"none"})
    properties: Schema = {
        "name": {**TEXT, "description": "of the space; studies are numbered after it [the file's name]"},
        "method": {"description": "what is trained; a plugin's name too", **_hinted(trial_kinds())},
        "script": {
            "description": "of method script: a Python file beside this one with train(config, report), or "
            "module:function",
            "anyOf": [TEXT, _object({"file": TEXT, "text": TEXT})],
        },
        "encoder": {**TEXT, "description": "hub id (id@revision), local folder, builtin:tiny; or word vectors"},
        "preset": {
            "description": "a paper's setting as the base; of a script its author's, as a mapping",
            "type": ["string", "object", "null"],
            "examples": presets,
        },
        "extends": {**TEXT, "description": "another space file, relative to this one, that this one changes"},
        "data": _data(),
        "metric": _object(
            {
                "name": {**TEXT, "description": "<set>_dev or mean(a_dev,b_dev)"},
                "mode": {"enum": ["max", "min"]},
                "holdout": {"type": "number", "minimum": 0, "exclusiveMaximum": 1, "description": HOLDOUT},
            }
        ),
        "params": {
            "type": "object",
            "description": "a bare value is a constant; {float: [low, high]}, {int: ...}, {choice: [...]} are searched",
            "properties": {**(params := _params(known)), **_groups(params)},
        },
        "points": {"type": "array", "items": ANYTHING, "description": "listed points, instead of their product"},
        "search": _section(Search),
        "pruner": _section(Pruner),
        "resources": _section(Resources),
        "train": _object({name: _value(known[name][0]) for name in TRAIN_KEYS if name in known}),
        "smoke": {**ANYTHING, "description": "changes that --smoke makes on top of its own"},
        "plugins": {**TEXTS, "description": "Python files, relative to this one, with methods or evaluations"},
    }
    names = sorted({*known, *GROUPS} - set(TRAIN_KEYS))
    strict = {"properties": {"params": {"propertyNames": {"enum": names}}}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Search space",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        # A plugin's method has parameters of its own, and so has a script.
        "if": {"not": {"anyOf": [{"required": ["plugins"]}, {"required": ["script"]}]}},
        "then": strict,
    }


def _hinted(words: Any) -> Schema:
    return {"type": "string", "examples": sorted(words)}


def _data() -> Schema:
    texts_or_one = {"anyOf": [TEXT, TEXTS]}
    return _object(
        {
            "train": {**TEXT, "description": "a named corpus or a file"},
            "dev": {**texts_or_one, "description": "named pair sets or files; they select"},
            "language": {"type": "string", "pattern": f"^{LANGUAGE.pattern}$", "description": "its code: en, zh, de"},
            "parser": {"type": ["string", "null"], "description": "spaCy pipeline of a method that parses"},
            "columns": {"type": ["object", "null"], "description": "our column name: the file's"},
            "evaluations": {
                "anyOf": [TEXTS, {"type": ["object", "null"]}],
                "description": "from outside: names, or name: folder of its data",
            },
            "prompts": {
                "anyOf": [_object({name: {"type": "string"} for name in PROMPTS}), {"type": "null"}],
                "description": "text before every query (sentences, anchors, dev pairs) and every document",
            },
        }
    )


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _section(settings: type[Any]) -> Schema:
    doc = (settings.__doc__ or "").strip().splitlines()[0]
    return {**_object({name: _value(knob) for name, knob in hyperparameters(settings).items()}), "description": doc}


def _value(knob: Hyperparameter) -> Schema:
    """A bare value."""
    if knob.kind == "ints":
        out: Schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1}
    elif knob.kind == "words":
        out = {"type": "array", "items": {"type": "string"}}
    elif knob.choices is not None:
        out = {"enum": list(knob.choices)}
    else:
        limits = {
            "minimum": knob.low,
            "maximum": knob.high,
            "exclusiveMinimum": knob.above,
            "exclusiveMaximum": knob.below,
        }
        out = {"type": TYPES[knob.kind], **{key: limit for key, limit in limits.items() if limit is not None}}
    words: list[Schema] = [{"type": "null"}, {"const": "auto"}] if knob.optional else []
    if knob.name == "time":
        words.append({"type": "string", "pattern": r"^\d"})  # 8h, 90m, 30s
    return {"description": knob.doc, "default": knob.default, **({"anyOf": [out, *words]} if words else out)}


def _params(known: dict[str, list[Hyperparameter]]) -> Schema:
    return {name: _param(found) for name, found in known.items() if name not in TRAIN_KEYS}


def _groups(params: Schema) -> Schema:
    """`lora: {rank: 8}` beside `lora.rank: 8`."""
    parts = {
        group: {n.partition(".")[2]: s for n, s in params.items() if n.startswith(f"{group}.")} for group in GROUPS
    }
    return {group: {**_object(own), "description": f"of {group}"} for group, own in parts.items()}


def _param(found: list[Hyperparameter]) -> Schema:
    """A constant, or what is searched, for the methods that have a parameter of this name."""
    forms = [form for knob in found for form in _forms(knob)]
    return {"description": found[0].doc, "default": found[0].default, "anyOf": forms}


def _forms(knob: Hyperparameter) -> list[Schema]:
    value = _value(knob)
    plain = {key: v for key, v in value.items() if key not in ("description", "default")}
    bounds = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    listed = {"type": "array", "items": plain, "minItems": 1}
    kinds: Schema = {kind: listed if kind in ("choice", "grid") else bounds for kind in KINDS}
    if knob.kind not in ("float", "int") or knob.choices is not None:
        kinds = {kind: shape for kind, shape in kinds.items() if shape is listed}
    else:
        kinds = {kind: shape for kind, shape in kinds.items() if shape is listed or kind == knob.kind}
    searched = _object({**kinds, "log": {"type": "boolean"}, "step": {"type": "number"}, "when": ANYTHING})
    return [plain, {**searched, "minProperties": 1}]
