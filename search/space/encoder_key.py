"""The `encoder` key of a space: a text, or a mapping that pins an encoder and may let its code run."""

from __future__ import annotations

import os
from typing import Any

from search.space.data_sets import TEXT
from search.space.nodes import Node, Problems, Schema, entries, text
from search.space.sections import ONE_EACH
from trainables.contract.declaration import TRANSFORMER, EncoderFamily
from trainables.contract.remote_code import COMMIT, MARK, code_revision, runs_code, without_code

KEYS = ("name", "revision", "trust_remote_code", "code_revision")
SCHEMA: Schema = {
    "type": "object",
    "properties": {key: {"type": "boolean"} if key == "trust_remote_code" else TEXT for key in KEYS},
    "required": ["name"],
    "additionalProperties": False,
}


def read_encoder(node: Node, family: EncoderFamily, expected: str, problems: Problems) -> str | None:
    """The encoder as trials name it, or None with the reason in `problems`."""
    if isinstance(node.value, dict) and "name" in node.value:
        return _pinned(node, family, problems)
    given = text(node, problems, f"{expected}; {ONE_EACH}" if isinstance(node.value, dict) else expected)
    if given and runs_code(given):
        problems.add(node.where, "expected {name: ..., revision: <commit>, trust_remote_code: true}, got a text")
        return None
    return given


def _pinned(node: Node, family: EncoderFamily, problems: Problems) -> str | None:
    before, given = len(problems.found), entries(node, KEYS, problems)
    trusted = given.pop("trust_remote_code", None)
    if trusted is not None and not isinstance(trusted.value, bool):
        problems.add(trusted.where, f"expected true or false, got {trusted.plain()!r}")
    found = {key: text(item, problems) or "" for key, item in given.items()}
    if len(problems.found) > before:
        return None
    name, revision, code = (found.get(key, "") for key in ("name", "revision", "code_revision"))
    trust, local = trusted is not None and trusted.value is True, os.path.isdir(os.path.expanduser(name))
    commit = "a commit of 40 hexadecimal digits"
    if "@" in name or runs_code(name):
        problems.add(node.place("name"), f"expected a name alone: the revision has its own key, got {name!r}")
    elif revision and local:
        problems.add(node.place("revision"), f"expected none of a folder, got {revision!r}")
    elif trust and (family.what != TRANSFORMER.what or not family.builtin):
        message = f"the method takes {family.what}" if family.builtin else "a script loads its encoder itself"
        problems.add(node.place("trust_remote_code"), f"expected none: {message}")
    elif trust and not local and not COMMIT.fullmatch(revision):
        got = repr(revision) if revision else "none"
        problems.add(node.place("revision"), f"trust_remote_code needs {commit}, got {got}")
    elif code and not (trust and COMMIT.fullmatch(code)):
        problems.add(node.place("code_revision"), f"expected {commit}, beside trust_remote_code: true, got {code!r}")
    if len(problems.found) > before:
        return None
    return name + (f"@{revision}" if revision else "") + (MARK if trust else "") + (f"={code}" if code else "")


def written_encoder(encoder: str) -> Any:
    """The value of the key that reads as this encoder."""
    if not runs_code(encoder):
        return encoder
    name, _, revision = without_code(encoder).partition("@")
    values = {"name": name, "revision": revision, "code_revision": code_revision(encoder)}
    return {key: value for key, value in values.items() if value} | {"trust_remote_code": True}


def code_notes(encoder: str) -> list[str]:
    """A line on code of the encoder's own that trials run."""
    if not runs_code(encoder):
        return []
    other = code_revision(encoder)
    return [f"runs the code of {without_code(encoder)}" + (f" and of commit {other}" if other else "")
            + " (trust_remote_code)"]  # fmt: skip
