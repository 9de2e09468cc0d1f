"""Whether `data.prompts` leave room for the texts: counted where the encoder's tokenizer is on this machine."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from search.space.nodes import Node
from search.space.problems import Problems
from search.space.space import Space
from trainables.contract.declaration import TRANSFORMER
from trainables.contract.registry import declared
from trainables.data.prompts import PromptSizes, sizes_at_hand
from trainables.encoders.locate import available_folder


def check_prompt_fit(space: Space, root: Node, problems: Problems) -> None:
    """Report every prompt that is all that a trial would see of its texts."""
    sizes = _sizes(space)
    for key, message in sizes.problems(_shortest(space)) if sizes else ():
        node = root.value["data"]
        for part in key.split(".")[1:]:
            node = node.value[part]
        problems.add(node.where, key, message)


def prompt_notes(space: Space) -> list[str]:
    """Prompts that take most of a text's tokens, a line each."""
    sizes = _sizes(space)
    return sizes.notes(_shortest(space)) if sizes else []


def _sizes(space: Space) -> PromptSizes | None:
    if not space.data.prompts or declared(space.method).encoders != TRANSFORMER:
        return None
    folder = available_folder(space.encoder)
    return None if folder is None else _counted(folder, tuple(space.data.prompts.items()))


@cache
def _counted(folder: Path, prompts: tuple[tuple[str, str], ...]) -> PromptSizes | None:
    return sizes_at_hand(folder, dict(prompts))


def _shortest(space: Space) -> int:
    searched = space.params.get("max_length")
    if searched is None:
        return int(space.base["max_length"])
    return int(min(searched.values) if searched.values is not None else searched.low or 0)
