"""A hook of mkdocs: the help of every command, and tables of hyperparameters.md, from the code that checks spaces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from analysis.commands.main import main as analysis
from search.cli.main import main as search
from search.space.json_schema import json_schema
from trainables.contract.config import EncoderConfig, Hyperparameter, hyperparameters
from trainables.contract.registry import SHIPPED, declared

PROGRAMS = {"reference/search.md": ("search", search), "reference/analysis.md": ("analysis", analysis)}
HEAD = "| name | default | values | meaning |\n|---|---|---|---|\n"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """mkdocs calls it with every page's text."""
    if page.file.src_uri in PROGRAMS:
        name, program = PROGRAMS[page.file.src_uri]
        return markdown.replace(
            "<!-- commands -->", "\n\n".join(helps(program, click.Context(program, info_name=name)))
        )
    if page.file.src_uri != "reference/hyperparameters.md":
        return markdown
    shared = hyperparameters(EncoderConfig)
    methods = []
    for name in SHIPPED:
        fields = hyperparameters(declared(name).config).items()
        own = [field for key, field in fields if shared.get(key) != field]
        methods.append(f"### `{name}`\n\n{table(own) if own else 'Nothing.'}")
    parts = {"sections": sections(), "shared": table(shared.values()), "methods": "\n\n".join(methods)}
    for name, text in parts.items():
        markdown = markdown.replace(f"<!-- {name} -->", text)
    return markdown


def helps(command: click.Command, context: click.Context) -> Iterable[str]:
    """A section for a command and each one below it, with its `--help`."""
    yield f"## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.commands[name]
            yield from helps(below, click.Context(below, parent=context, info_name=name))


def table(found: Iterable[Hyperparameter]) -> str:
    """A row per hyperparameter."""
    rows = [f"| `{f.name}` | {word(f.default)} | {cell(f.expected())} | {cell(f.doc)} |" for f in found]
    return HEAD + "\n".join(rows)


def sections() -> str:
    """A row per key of a space's sections."""
    rows = ["| key | default | |", "|---|---|---|"]
    for name, section in json_schema()["properties"].items():
        for key, told in section.get("properties", {}).items():
            if name not in ("params", "smoke"):
                rows.append(
                    f"| `{name}.{key}` | {word(told.get('default', ''))} | {cell(told.get('description', ''))} |"
                )
    return "\n".join(rows)


def word(value: Any) -> str:
    """A value as YAML has it."""
    if value == "":
        return ""
    if isinstance(value, tuple):
        value = list(value)
    return f"`{'null' if value is None else str(value).lower() if isinstance(value, bool) else value}`"


def cell(text: str) -> str:
    return str(text).replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
