"""What a sentence-transformers folder says beside its encoder: nothing of it is used here, and the user is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POOLINGS = {"mean": "avg", "lasttoken": "last"}  # their names where ours differ
PROMPTS_NAMED = 3


def left_out(folder: Path, longest: int) -> str:
    """The modules behind the encoder, a shorter length and the prompts, in one line; "" where there is none of them.

    longest: tokens of a sentence at most, as the encoder has positions for them.
    """
    listed = _read(folder / "modules.json", list)
    modules = [module for module in listed if isinstance(module, dict)]
    found = [_module(folder, str(m.get("type", "")).rpartition(".")[2], str(m.get("path", ""))) for m in modules[1:]]
    length = _read(folder / "sentence_bert_config.json", dict).get("max_seq_length")
    if length is None:  # newer versions keep it here
        length = _read(folder / "tokenizer_config.json", dict).get("model_max_length")
    if listed and isinstance(length, int) and length < longest:
        found.append(f"max_seq_length {length}")
    prompts = _read(folder / "config_sentence_transformers.json", dict).get("prompts")
    if names := [name for name, text in prompts.items() if text] if isinstance(prompts, dict) else []:
        more = ", ..." if len(names) > PROMPTS_NAMED else ""
        found.append(f"prompts {', '.join(names[:PROMPTS_NAMED])}{more} (give them as data.prompts)")
    return f"a sentence-transformers folder, of which only the encoder is used; left out: {', '.join(found)}" * bool(
        found
    )


def _module(folder: Path, kind: str, path: str) -> str:
    if kind != "Pooling":
        return kind
    config = _read(folder / path / "config.json", dict)
    own = config.get("pooling_mode")
    if own is None:  # as older versions write it
        prefix = "pooling_mode_"
        on = [name for name, value in config.items() if name.startswith(prefix) and value is True]
        own = [name.removeprefix(prefix).removesuffix("_tokens").removesuffix("_token") for name in on]
    names = own if isinstance(own, list) else [own]
    return f"Pooling ({' and '.join(POOLINGS.get(str(name), str(name)) for name in names)})"


def _read(path: Path, kind: type) -> Any:
    """A JSON file's content, empty where the file is not there or holds something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return kind()
    return content if isinstance(content, kind) else kind()
