"""Plain data against the models of Kubernetes' own Python client, which is generated from the API server's schema."""

from __future__ import annotations

import re
from typing import Any

from kubernetes.client import models

QUANTITY = r"[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?"  # of `resources`; the client's models take any string
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float), "object": object, "datetime": str}


def faults(given: Any, kind: str, path: str = "") -> list[str]:
    """What the API server's strict field validation would refuse: unknown and missing fields, wrong types.

    Args: kind: as the client writes types: "V1PodTemplateSpec", "list[V1Container]", "dict[str, str]", "int".
    Returns: one line for each fault, `spec.containers.0.image: expected str, got 3`.
    """
    if found := re.fullmatch(r"list\[(.+)\]", kind):
        if not isinstance(given, list):
            return [f"{path}: expected a list, got {given!r}"]
        return [fault for i, item in enumerate(given) for fault in faults(item, found[1], f"{path}.{i}")]
    if found := re.fullmatch(r"dict\[str, (.+)\]", kind):
        if not isinstance(given, dict):
            return [f"{path}: expected a mapping, got {given!r}"]
        lines = [fault for key, value in given.items() for fault in faults(value, found[1], f"{path}.{key}")]
        if path.endswith((".limits", ".requests")):
            wrong = {key: value for key, value in given.items() if not re.fullmatch(QUANTITY, str(value))}
            lines += [f"{path}.{key}: expected a quantity, got {value!r}" for key, value in wrong.items()]
        return lines
    if kind in PLAIN:
        fits = isinstance(given, PLAIN[kind]) and (kind != "int" or not isinstance(given, bool))
        return [] if fits else [f"{path}: expected {kind}, got {given!r}"]
    if not isinstance(given, dict):
        return [f"{path}: expected a {kind}, got {given!r}"]
    model = getattr(models, kind)
    fields = {written: (name, model.openapi_types[name]) for name, written in model.attribute_map.items()}
    lines = [f"{path}.{key}: unknown field of {kind}" for key in given if key not in fields]
    for key in given.keys() & fields.keys():
        lines += faults(given[key], fields[key][1], f"{path}.{key}")
    try:
        model(**{name: given[written] for written, (name, _) in fields.items() if written in given})
    except ValueError as error:  # a required field is missing
        lines.append(f"{path}: {error}")
    return lines
