"""Token sequences: what texts become before they meet a network, and the room that prompts leave. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Texts = Mapping[str, Sequence[str]]  # column name -> texts: {"sentence"} or {"anchor", "positive", "negative"}
PROMPTS = ("query", "document")  # what a text is to a prompted encoder
Tokens = NDArray[np.int32]  # one sentence: token (or word) ids without special tokens, not truncated


class StoredTexts(Sequence[str]):
    """Texts on the disk, too large to copy into memory.

    identity: changes when their content does; stands for them in the keys of caches.
    """

    identity: str


@dataclass(frozen=True)
class TokenColumn:
    """Token sequences of a corpus column, laid end to end (possibly memory-mapped and shared between processes).

    flat: (total,) int32 ids; starts: (n + 1,) int64 offsets; sequence i is flat[starts[i]:starts[i + 1]].
    """

    flat: NDArray[np.int32]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> Tokens:
        return self.flat[self.starts[i] : self.starts[i + 1]]

    def take(self, index: Iterable[int]) -> list[Tokens]:
        """The sequences at `index`, in that order."""
        return [self[int(i)] for i in index]


@dataclass(frozen=True)
class PromptSizes:
    """The room that prompts leave: in training a text is cut at `max_length` behind its prompt.

    tokens: of each prompt by its name in `data.prompts`; special: what the tokenizer puts around a sentence.
    """

    tokens: Mapping[str, int]
    special: int

    def problems(self, max_length: int) -> list[tuple[str, str]]:
        """Prompts that leave no token for the text, as (key, what is wrong)."""
        return [
            (
                f"data.prompts.{name}",
                f"its {count} tokens and {self.special} special ones leave no room for the text: "
                f"expected max_length above {count + self.special}, got {max_length}",
            )
            for name, count in self.tokens.items()
            if count + self.special >= max_length
        ]

    def notes(self, max_length: int) -> list[str]:
        """Prompts that leave less than half of the tokens for the text, a line each."""
        rooms = {name: max_length - self.special - count for name, count in self.tokens.items()}
        return [
            f"data.prompts.{name}: {self.tokens[name]} tokens of max_length {max_length}, {room} left for the text"
            for name, room in rooms.items()
            if 0 < 2 * room < max_length
        ]


def measured(prompts: Mapping[str, str]) -> dict[str, str]:
    """The prompts as their tokens are counted: a blank at the end may be part of the text's first token."""
    return {name: prompt.rstrip() for name, prompt in prompts.items()}


def local_prompt_sizes(folder: Path, prompts: Mapping[str, str]) -> PromptSizes | None:
    """Sizes by the tokenizer in an encoder's folder; None where it has no `tokenizer.json` that can be read."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception:  # not there, or of a kind that only transformers reads: the trial counts
        return None

    def count(text: str, special: bool) -> int:
        return len(tokenizer.encode(text, add_special_tokens=special).ids)

    tokenizer.no_padding()
    tokenizer.no_truncation()
    return PromptSizes(
        {name: count(text, special=False) for name, text in measured(prompts).items()},
        count("a", special=True) - count("a", special=False),
    )
