"""Whether the encoder honours what a space searches: asked where its files are on this machine."""

from __future__ import annotations

from typing import Any

from search.space.nodes import Node
from search.space.params import Param
from search.space.problems import Problems, Where
from search.space.space import Space
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.errors import EncoderError
from trainables.contract.registry import declared
from trainables.encoders.facts import EncoderFacts, available_facts, unfit


def check_encoder_fit(space: Space, root: Node, problems: Problems) -> None:
    """Report every hyperparameter that the encoder would ignore or could not use, at its own line."""
    try:
        facts = encoder_facts(space)
    except EncoderError as error:
        problems.add(_place(root, "encoder"), "encoder", str(error).partition(": ")[2])
        return
    if facts is None:
        return
    asked: dict[str, list[Any]] = {name: [value] for name, value in space.base.items()}
    asked |= {name: _values(param) for name, param in space.params.items()}
    for name, message in unfit(facts, space.encoder, asked):
        section = next((s for s in ("params", "train") if name in _mapping(root, s)), None)
        if section is None:  # the default: the encoder is what does not go with it
            problems.add(_place(root, "encoder"), "encoder", f"{name} is {_written(asked[name])} by default: {message}")
        else:
            problems.add(_mapping(root, section)[name].where, f"{section}.{name}", message)


def encoder_facts(space: Space) -> EncoderFacts | None:
    """What was measured of the encoder, None where its files are not on this machine.

    Raises: EncoderError if the encoder is of no use.
    """
    return available_facts(space.encoder) if declared(space.method).encoders == TRANSFORMER else None


def encoder_notes(space: Space) -> list[str]:
    """What a user should know of the encoder before training, a line each; nothing of one that is not at hand."""
    try:
        facts = encoder_facts(space)
    except EncoderError:
        return []  # said where it matters, by the check of the space or by the first trial
    return facts.notes() if facts else []


def _values(param: Param) -> list[Any]:
    return [*param.values] if param.values is not None else [param.low, param.high]


def _mapping(root: Node, section: str) -> dict[str, Node]:
    node = root.value.get(section)
    return node.value if node is not None and isinstance(node.value, dict) else {}


def _place(root: Node, key: str) -> Where:
    node = root.value.get(key)
    return node.where if node is not None else root.where


def _written(values: list[Any]) -> str:
    return str(values[0])
