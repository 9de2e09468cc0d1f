"""The keys that say what is trained: method, encoder, preset."""

from __future__ import annotations

from search.space.nodes import Node
from search.space.problems import Problems, Where
from search.space.space import NO_PRESET
from trainables.contract.declaration import OWN_ENCODER, TRANSFORMER, Declaration
from trainables.contract.errors import PluginError, did_you_mean
from trainables.contract.registry import declared, method_names, trial_kinds


def read_method(node: Node | None, top: Where, problems: Problems) -> Declaration | None:
    """What the `method` says of itself."""
    known = trial_kinds()
    if node is None:
        problems.add(top, "method", f"missing; one of {', '.join(known)}")
    elif not isinstance(node.value, str):
        problems.add(node.where, "method", f"expected one of {', '.join(known)}, got {node.kind()}")
    elif node.value not in known:
        problems.add(node.where, "method", f"unknown {node.value!r}" + did_you_mean(node.value, known))
    else:
        try:
            return declared(node.value)
        except PluginError as error:
            problems.add(node.where, "method", str(error))
    return None


def read_encoder(node: Node | None, method: Declaration | None, top: Where, problems: Problems) -> str | None:
    """The `encoder`; "" where a script goes without."""
    family = method.encoders if method else TRANSFORMER
    builtin = family.builtin
    expected = f"{family.what}, or {builtin}" if builtin else family.what
    if (node is None or node.value is None) and family == OWN_ENCODER:
        return ""
    if node is None:
        problems.add(top, "encoder", f"missing; expected {expected}")
    elif not isinstance(node.value, str) or not node.value.strip() or not node.value.isprintable():
        problems.add(node.where, "encoder", f"expected {expected}, got {node.plain()!r}")
    elif method and node.value.startswith("builtin:") and node.value != builtin:
        has = f"has {builtin}" if builtin else "has no builtin encoder"
        problems.add(node.where, "encoder", f"method {method.name} {has}, got {node.value!r}")
    else:
        return node.value
    return None


def read_preset(node: Node | None, method: Declaration, encoder: str | None, problems: Problems) -> str | None:
    """The name of the `preset`, by default the one that belongs to the encoder."""
    if node is None or node.value is None:
        return method.preset_for(encoder) if encoder else None
    legal = list(method.presets)
    if node.value == NO_PRESET:
        return None
    if not isinstance(node.value, str):
        problems.add(node.where, "preset", f"expected one of {', '.join(legal)}, {NO_PRESET}, got {node.plain()!r}")
    elif node.value not in legal:
        owners = [name for name in method_names() if node.value in declared(name).presets]
        owner = f" (of method {owners[0]})" if owners else ""
        known = (*legal, NO_PRESET)
        problems.add(
            node.where, "preset", f"unknown {node.value!r} for {method.name}{owner}" + did_you_mean(node.value, known)
        )
    else:
        return node.value
    return None
