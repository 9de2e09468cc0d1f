"""Whether the data sets and the encoder that a space names can be found: nothing is opened or downloaded."""

from __future__ import annotations

import os

from search.space.nodes import Node
from search.space.problems import Problems
from search.space.sections import LANGUAGE
from trainables.contract.errors import DataError, EncoderError
from trainables.data.catalogue import check_hub_name, data_dir, find_file, find_local, is_hub, is_path, unlisted
from trainables.data.retrieval import NANO, find_folder, is_retrieval
from trainables.encoders.locate import local_folder


def check_data_sets(root: Node, problems: Problems) -> None:
    """Report every name in data.train and data.dev that is neither a named set of the language nor a local one, every
    file in them that is not there, and an encoder's folder that is not there.
    """
    _check_encoder(root, problems)
    node = root.value.get("data")
    if node is None or not isinstance(node.value, dict):
        return
    try:
        data_dir()
    except DataError as error:
        problems.add(node.where, "data", str(error))
        return
    language = node.value["language"].value if "language" in node.value else "en"
    if not isinstance(language, str) or not LANGUAGE.fullmatch(language):
        return  # reported elsewhere
    for split, name, place in _named(node):
        if split == "dev" and name in NANO:
            continue
        if is_path(name):
            try:
                if is_hub(name):
                    check_hub_name(name, whole=split == "dev" and is_retrieval(name))
                elif split == "dev" and is_retrieval(name):
                    find_folder(name)
                else:
                    find_file(name, split)
            except DataError as error:
                problems.add(place.where, f"data.{split}", str(error))
        elif not find_local(name, language, split) and (message := unlisted(name, language, split)):
            problems.add(place.where, f"data.{split}", message)


def _check_encoder(root: Node, problems: Problems) -> None:
    node = root.value.get("encoder")
    if node is not None and isinstance(node.value, str) and not os.path.isfile(os.path.expanduser(node.value)):
        try:
            local_folder(node.value)
        except EncoderError as error:
            problems.add(node.where, "encoder", str(error))


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
