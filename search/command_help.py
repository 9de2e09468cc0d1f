"""The layout of `--help` of both programs: commands in sections, options in groups, examples at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

GROUPS: Final = {  # parameter -> heading; others stand under "Options"
    **dict.fromkeys(("storage", "tracking_uri"), "Storage options"),
    **dict.fromkeys(("cluster", "carry", "allow_mismatch", "address"), "Cluster options"),
    **dict.fromkeys(("quiet", "verbose", "form", "style"), "Output options"),
}
FEW: Final = 6  # options that need no groups


def examples(*lines: str) -> str:
    """The epilog of a command: what a user may type, one command a line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


class Command(click.Command):
    """A command whose options are grouped where there are many."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        found = [(p.name, record) for p in options if (record := p.get_help_record(ctx)) is not None]
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, record in found:
            heading = GROUPS.get(str(name), "Options") if len(found) > FEW else "Options"
            groups.setdefault(heading, []).append(record)
        for heading in sorted(groups, key=lambda one: one != "Options"):  # the command's own ones first
            with formatter.section(heading):
                formatter.write_dl(groups[heading])


class Group(click.Group):
    """Commands in the order of `sections`, heading -> names; without them in the order in which they were added."""

    command_class = Command

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]] | None = None, **given: Any) -> None:
        super().__init__(*args, **given)
        self.sections = sections

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return [name for names in (self.sections or {"": list(self.commands)}).values() for name in names]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, names in (self.sections or {"Commands": self.list_commands(ctx)}).items():
            limit = formatter.width - 6 - max(map(len, self.commands))
            with formatter.section(heading):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in names])
