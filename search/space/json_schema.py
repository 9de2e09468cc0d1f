"""The format of a space file as a JSON schema: editors complete and explain keys and mark mistakes while one types.

It checks less than `search check`, which also checks keys against each other. A file that the schema accepts may still
be wrong; it accepts every correct file (a test checks all shipped spaces).
"""

from __future__ import annotations

import dataclasses
from typing import Any

from search.space.build import TOP_KEYS
from search.space.data_sets import TEXT
from search.space.encoder_key import SCHEMA as ENCODER
from search.space.nodes import Schema
from search.space.optuna_class import EXPECTED, PRUNER, SAMPLER, WITH_ARGS
from search.space.params import PARAM_KINDS
from search.space.sections import TEXTS, Data, Metric, Pruner, Resources, Search
from search.space.space import NO_PRESET, TRAIN_KEYS
from trainables.contract.config import GROUPS, Hyperparameter, hyperparameters
from trainables.contract.registry import declared, method_names, trial_kinds

TYPES = {"float": "number", "int": "integer", "bool": "boolean", "str": "string"}
LIMITS = {"low": "minimum", "high": "maximum", "above": "exclusiveMinimum", "below": "exclusiveMaximum"}


def json_schema() -> Schema:
    """JSON schema (draft 2020-12) of space files for the methods that are known here."""
    declarations = [declared(name) for name in method_names()]
    known: dict[str, list[Hyperparameter]] = {}  # methods may take different values under one name
    for declaration in declarations:
        for name, field in hyperparameters(declaration.config).items():
            if field not in known.setdefault(name, []):
                known[name].append(field)
    presets = sorted({preset for declaration in declarations for preset in declaration.presets} | {NO_PRESET})
    params = {name: _param(found) for name, found in known.items() if name not in TRAIN_KEYS}
    for group in GROUPS:  # `lora: {rank: 8}` beside `lora.rank: 8`
        own = {name.partition(".")[2]: param for name, param in params.items() if name.startswith(f"{group}.")}
        params[group] = {**_object(own), "description": f"of {group}"}
    properties: Schema = {
        "name": {**TEXT, "description": "of the space; studies are numbered after it [the file's name]"},
        "method": {
            "type": "string", "examples": sorted(trial_kinds()), "description": "what is trained; a plugin's name too",
        },
        "script": {
            "anyOf": [TEXT, _object({"file": TEXT, "text": TEXT})],
            "description": "of method script: a Python file with train(config, report), or module:function",
        },
        "encoder": {
            "anyOf": [TEXT, ENCODER],
            "description": "hub id (id@revision), local folder, builtin:tiny; or word vectors",
        },
        "preset": {
            "type": ["string", "object", "null"], "examples": presets,
            "description": "a paper's setting as the base; of a script its author's, as a mapping",
        },
        "extends": {**TEXT, "description": "another space file, relative to this one, that this one changes"},
        "data": _section(Data),
        "metric": _section(Metric),
        "params": {
            "type": "object", "properties": params,
            "description": "a bare value is a constant; {float: [low, high]}, {int: ...}, {choice: [...]} are searched",
        },
        "points": {"type": "array", "items": {"type": "object"}, "description": "listed points, not their product"},
        "search": _with_class(_section(Search), SAMPLER),
        "pruner": _with_class(_section(Pruner), PRUNER),
        "resources": _section(Resources),
        "train": _object({name: _value(known[name][0]) for name in TRAIN_KEYS if name in known}),
        "smoke": {"type": "object", "description": "changes that --smoke makes on top of its own"},
        "plugins": {**TEXTS, "description": "Python files, relative to this one, with methods or evaluations"},
    }  # fmt: skip
    assert properties.keys() == set(TOP_KEYS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Search space",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        # A plugin's method has parameters of its own, and so has a script.
        "if": {"not": {"anyOf": [{"required": ["plugins"]}, {"required": ["script"]}]}},
        "then": {"properties": {"params": {"propertyNames": {"enum": sorted(params)}}}},
    }


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _with_class(section: Schema, kind: str) -> Schema:
    """The section of a sampler or pruner, which may be a class of Optuna's or of anyone's."""
    text = {"type": "string", "description": "of the file, in a stored space"}
    own = {"class": {**TEXT, "description": f"a {kind} of Optuna's interface: {EXPECTED}"}, "text": text}
    args = {"args": {"type": ["object", "null"], "description": "of its constructor"}}
    properties = section["properties"]
    if kind == PRUNER:
        return {**section, "properties": {**properties, **own, **args}}
    plain = {key: value for key, value in properties[kind].items() if key not in ("description", "default")}
    names = {**own, "name": {"enum": list(WITH_ARGS)}, **args}
    either = {"description": properties[kind]["description"], "default": properties[kind]["default"]}
    return {**section, "properties": {**properties, kind: {**either, "anyOf": [plain, _object(names)]}}}


def _section(settings: type[Any]) -> Schema:
    own = {f.name: f.metadata["schema"] for f in dataclasses.fields(settings) if "schema" in f.metadata}
    own = own or {name: _value(field) for name, field in hyperparameters(settings).items()}
    return {**_object(own), "description": (settings.__doc__ or "").strip().splitlines()[0]}


def _value(field: Hyperparameter) -> Schema:
    """A bare value."""
    out: Schema
    if field.kind in ("ints", "words"):
        ints = {"items": {"type": "integer"}, "minItems": 1}
        out = {"type": "array", **(ints if field.kind == "ints" else {"items": {"type": "string"}})}
    elif field.choices is not None:
        out = {"enum": list(field.choices)}
    else:
        limits = {key: limit for name, key in LIMITS.items() if (limit := getattr(field, name)) is not None}
        out = {"type": TYPES[field.kind], **limits}
    others: list[Schema] = [{"type": "null"}] if field.optional else []
    if field.word or field.name == "warmup":
        others.append({"const": "auto"})
    if field.name == "time":
        others.append({"type": "string", "pattern": r"^\d"})  # 8h, 90m, 30s
    return {"description": field.doc, "default": field.default, **({"anyOf": [out, *others]} if others else out)}


def _param(found: list[Hyperparameter]) -> Schema:
    """A constant, or what is searched, for the methods that have a parameter of this name."""
    forms = [form for field in found for form in _forms(field)]
    return {"description": found[0].doc, "default": found[0].default, "anyOf": forms}


def _forms(field: Hyperparameter) -> list[Schema]:
    plain = {key: value for key, value in _value(field).items() if key not in ("description", "default")}
    bounds = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    listed = {"type": "array", "items": plain, "minItems": 1}
    kinds: Schema = {kind: listed for kind in PARAM_KINDS if kind in ("choice", "grid")}
    if field.kind in ("float", "int") and field.choices is None:
        kinds[field.kind] = bounds
    searched = _object({**kinds, "log": {"type": "boolean"}, "step": {"type": "number"}, "when": {"type": "object"}})
    return [plain, {**searched, "minProperties": 1}]
