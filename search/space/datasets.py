"""Whether the data sets that a space names can be found: by name only, nothing is opened or downloaded."""

from __future__ import annotations

import os

from search.space.nodes import Node
from search.space.problems import Problems
from search.space.sections import LANGUAGES
from trainables.contract.errors import DataError
from trainables.data.catalogue import data_dir, find_local, is_path, unlisted


def check_data_sets(root: Node, problems: Problems) -> None:
    """Report every name in data.train and data.dev that is neither a named set of the language nor a local one.

    Files are left alone: their paths may be those of the machine that will run the search.
    """
    node = root.value.get("data")
    if node is None or not isinstance(node.value, dict):
        return
    try:
        data_dir()
    except DataError as error:
        problems.add(node.where, "data", str(error))
        return
    language = node.value["language"].value if "language" in node.value else "en"
    if language not in LANGUAGES:
        return  # reported elsewhere
    for split, name, place in _named(node):
        if not is_path(name) and not find_local(name, language, split) and (message := unlisted(name, language, split)):
            problems.add(place.where, f"data.{split}", message)


def _named(data: Node) -> list[tuple[str, str, Node]]:
    """(split, name, where it is written) of every text in data.train (joined by `+`) and data.dev."""
    found = []
    train = data.value.get("train")
    if train is not None and isinstance(train.value, str) and not os.path.isfile(train.value):
        found += [("train", part.strip(), train) for part in train.value.split("+")]
    dev = data.value.get("dev")
    for item in [] if dev is None else dev.value if isinstance(dev.value, list) else [dev]:
        if isinstance(item.value, str):
            found.append(("dev", item.value, item))
    return [(split, name, place) for split, name, place in found if name.strip() and "\0" not in name]
