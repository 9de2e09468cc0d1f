"""What README, CONTRIBUTING and docs/ hold: code blocks, the commands in them, spaces."""

from __future__ import annotations

import re
import shlex
import textwrap
from dataclasses import dataclass
from pathlib import Path

from search.space.load import ready_spaces

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BATCH = re.compile(r"^sbatch (?:--\S+ )*docs/cluster/slurm\.sbatch ")


@dataclass(frozen=True)
class Block:
    """A fenced block, or an indented one (`kind` is then "indented")."""

    page: Path
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """All code blocks of a page. Indented ones are what stands four blanks in after an empty line, outside lists."""
    found, fence, began = [], "", 0
    inside: list[str] = []
    lines = [*page.read_text(encoding="utf-8").splitlines(), ""]
    for number, line in enumerate(lines, start=1):
        if fence:
            if line.strip() == "```":
                found.append(Block(page, began, fence, textwrap.dedent("\n".join(inside))))
                fence, inside = "", []
            else:
                inside.append(line)
        elif opened := re.match(r"\s*```(\S+)", line):
            fence, began = opened[1], number + 1
        elif line.startswith("    ") and (inside or not lines[number - 2].strip()):
            began = began if inside else number
            inside.append(line[4:])
        elif inside:
            found.append(Block(page, began, "indented", "\n".join(inside)))
            inside = []
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page) if "--8<--" not in block.text]  # files, tested as such
OUTPUT = sorted((ROOT / "docs" / "pictures" / "output").glob("*.txt"))  # the first line is the command


def commands_of(block: Block) -> list[str]:
    """Every call of ours in a block of shell lines, continued lines joined, from the program's name on."""
    found = []
    for line in re.sub(r"\\\n\s*", " ", block.text).splitlines():
        for part in re.split(r"\s&&\s|;\s", line):
            text = re.sub(r"\s+#.*$", "", part.strip()).removeprefix("$ ").removeprefix(".venv/bin/")
            text = BATCH.sub("search ", text)
            text = re.split(r"\s[|>]\s", text)[0]
            if re.match(r"(search|analysis) \S", text):
                found.append(text)
    return found


SHELL = [block for block in BLOCKS if block.kind in ("bash", "indented", "console")]
SHELL += [Block(path, 1, "console", path.read_text(encoding="utf-8").splitlines()[0]) for path in OUTPUT]
COMMANDS = sorted({(command, str(block)) for block in SHELL for command in commands_of(block)})


SPACES = [block for block in BLOCKS if block.kind == "yaml"]


def at_hand() -> list[tuple[str, Path]]:
    """Documented commands that read only files of the repository, and the folder where they are typed."""
    found = []
    for text in sorted({text for text, _ in COMMANDS}):
        words = shlex.split(text)
        if words[:2] in (["search", "schema"], ["search", "config"]) or words[:3] == ["search", "list", "--spaces"]:
            found.append((text, ROOT))
        elif words[:2] == ["search", "check"] and "--forecast" not in words:
            for folder in (ROOT, ROOT / "docs" / "examples"):
                if all(list(folder.glob(word)) or word in ready_spaces() for word in words[2:]):
                    found.append((text, folder))
                    break
    return found
