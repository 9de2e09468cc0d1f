"""What was measured of an encoder, and which hyperparameters it cannot honour.

Does not import torch, because spaces are checked with it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainables.contract.errors import EncoderError, last_line
from trainables.contract.remote_code import mark_of, runs_code
from trainables.data.tokens import DiskCache, content_hash
from trainables.encoders.locate import BUILTIN_ENCODER, available_folder

VERSION = 8  # of the measurements; raise it when the probe changes
PROBE_SECONDS = 600.0
POOLINGS = {"mean": "avg", "lasttoken": "last"}  # of sentence-transformers, where our names differ
PROMPTS_NAMED = 3
POOL, NORM = "Pooling", "Normalize"  # modules of sentence-transformers
LAST_TOKEN, FIRST_TOKEN = ("last",), ("cls", "cls_before_pooler", "pretrained_pooler")


@dataclass(frozen=True, kw_only=True)
class EncoderFacts:
    """What `probe.probe` measures by running an encoder.

    Attributes:
        family: the configuration's model_type.
        width: D of its vectors, 0 = not measured.
        longest: tokens of a sentence at most, special tokens included; trained_length: of the texts that it was trained
            on, as in a sentence-transformers folder (0 = unknown).
        first_sees, last_sees: whether the first (last) token's state depends on every token of the sentence.
        drops: where dropout acts: "attention" (probabilities), "hidden" (states), both, none.
        dropout_problem: why the family does not honour dropout, "" when it does.
        pooler, mask_token: whether the checkpoint has a pooler, the tokenizer a mask token.
        bidirectional: whether `bidirectional: true` lets every token attend to the whole sentence.
        packing_note: why batches are padded, "" when they are packed.
        end_token: the token appended to sentences because the tokenizer appends none, "" = nothing.
        blocks: its layers, 0 where they share their weights; above: whether weights lie above them, without a pooler's.
        checkpointing: whether layers can be recomputed in the backward pass.
        linear: the linear layers that ran, without a pooler's, named without numbers ("encoder.layer.output.dense").
        own_pooling: that of a sentence-transformers folder, "" = none; left_out: what else that folder holds beside the
            encoder and is not used here (`left_out`), "" = nothing.
    """

    family: str
    longest: int
    first_sees: bool
    last_sees: bool
    drops: tuple[str, ...]
    dropout_problem: str
    pooler: bool
    mask_token: bool
    bidirectional: bool
    packing_note: str
    end_token: str
    linear: tuple[str, ...]
    blocks: int
    above: bool
    checkpointing: bool
    own_pooling: str = ""
    left_out: str = ""
    trained_length: int = 0
    width: int = 0

    @property
    def evaluated_length(self) -> int:
        """Tokens of a text at which evaluations cut by default."""
        return min(self.trained_length, self.longest) or self.longest

    @property
    def pooling(self) -> str:
        """The pooling that the family is made for."""
        return "cls" if self.first_sees else "last"

    def notes(self, pooling: Sequence[str] = ()) -> list[str]:
        """Notes for the user before training, one line each.

        Args: pooling: the values that the space gives.
        """
        beside = [f"left out: {self.left_out}"] if self.left_out else []
        if self.own_pooling:
            own = "as in the folder" if {*pooling} == {self.own_pooling} else f"the folder's is {self.own_pooling}"
            beside.insert(0, f"pooling is set by the space ({', '.join([*pooling, own])})")
        lines = [f"a sentence-transformers folder: {'; '.join(beside)}"] if beside else []
        lines += [self.packing_note] if self.packing_note else []
        if self.drops and len(self.drops) < 2:
            what = "attention probabilities" if self.drops == ("attention",) else "hidden states"
            lines.append(f"dropout: {self.family} has it on {what} only")
        if self.end_token:
            lines.append(f"the tokenizer ends no sentence: {self.end_token} is appended, also in an export")
        if not self.first_sees:
            lines.append(f"{self.family} is a decoder: its pooling is {self.pooling} (avg is possible)")
        return lines


_ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
BUILTIN_FACTS = EncoderFacts(  # as measured; its folder may not exist yet when a space is checked
    family="bert", longest=128, first_sees=True, last_sees=True, drops=("attention", "hidden"), dropout_problem="",
    pooler=True, mask_token=True, bidirectional=False, packing_note="", end_token="", blocks=2, above=False, width=64,
    checkpointing=True,
    linear=tuple(f"encoder.layer.{name}" for name in (*_ATTENTION, "intermediate.dense", "output.dense")),
)  # fmt: skip


def unfit(facts: EncoderFacts, source: str, proposed: Mapping[str, Sequence[Any]]) -> list[tuple[str, str]]:
    """Hyperparameters that an encoder cannot honour, as (name, what is wrong), one line each.

    Args:
        proposed: values of each hyperparameter by YAML name: all that a space can propose, or the one of a trial.
    """
    found: list[tuple[str, str]] = []

    def values(name: str) -> Sequence[Any]:
        return proposed.get(name, ())

    def reject(name: str, message: str) -> None:
        found.append((name, message))

    if (dropped := [v for v in values("dropout") if v]) and (facts.dropout_problem or not facts.drops):
        reason = facts.dropout_problem or "the family has none"
        reject("dropout", f"expected 0 for {source} ({facts.family}), got {dropped[0]:g}: {reason}")
    if True in values("bidirectional") and not facts.bidirectional:
        reject("bidirectional", f"expected false for {source}: {facts.family} does not allow it")
    for pooling in dict.fromkeys(values("pooling")):
        token = "first" if pooling in FIRST_TOKEN else "last" if pooling in LAST_TOKEN else ""
        sees = {"first": facts.first_sees, "last": facts.last_sees, "": True}[token]
        if not sees:
            message = f"{pooling} reads the {token} token, which does not see the sentence in {source} ({facts.family})"
            reject("pooling", f"{message}; its own pooling is {facts.pooling}")
        elif pooling == "pretrained_pooler" and not facts.pooler:
            message = f"pretrained_pooler needs a pooler, the checkpoint {source} ({facts.family}) has none"
            reject("pooling", message)
    for name in ("max_length", "eval_max_length"):
        if (longest := max((v for v in values(name) if v), default=0)) > facts.longest:
            reject(name, f"expected at most {facts.longest} for {source}, got {longest}")
    widest = max((width for widths in values("matryoshka") for width in widths or ()), default=0)
    if widest > (facts.width or widest):
        reject("matryoshka", f"expected at most {facts.width}, the width of {source}, got {widest}")
    if (weights := [v for v in values("mlm_weight") if v]) and not facts.mask_token:
        reject("mlm_weight", f"expected 0, got {weights[0]:g}: {source} has no mask token")
    frozen = max((v for v in values("freeze") if v is not None), default=0)
    if frozen > facts.blocks:
        shared = "" if facts.blocks else f": the layers of {facts.family} share their weights"
        reject("freeze", f"expected at most {facts.blocks} for {source}, got {frozen}{shared}")
    elif frozen and frozen == facts.blocks and values("pooling") and not (facts.above or _trained_above(values)):
        lacking = f"no weight above the layers of {facts.family} would be trained, nor a head"
        reject("freeze", f"expected at most {frozen - 1} for {source}, got {frozen}: {lacking}")
    if not facts.blocks and (steps := [v for v in values("layer_decay") if v != 1]):
        message = f"expected 1 for {source}, got {steps[0]:g}: the layers of {facts.family} share their weights"
        reject("layer_decay", message)
    if True in values("checkpointing") and not facts.checkpointing:
        reject("checkpointing", f"expected false for {source}: transformers does not have it for {facts.family}")
    if any(values("lora.rank")):
        found += _unfit_lora(facts, source, values("lora.targets"))
    return found


def _trained_above(values: Callable[[str], Sequence[Any]]) -> bool:
    """Whether something beside the layers may be trained: a head, the encoder's pooler, the MLM term's head."""
    poolings, heads = values("pooling"), values("head")
    head = "cls" in poolings and any(kind != "none" for kind in heads)
    return head or "pretrained_pooler" in poolings or any(values("mlm_weight"))


def _unfit_lora(facts: EncoderFacts, source: str, asked: Sequence[str]) -> list[tuple[str, str]]:
    found = []
    if importlib.util.find_spec("peft") is None:
        found.append(("lora.rank", 'needs peft, which is not installed: pip install "contrastive-search[lora]"'))
    for targets in dict.fromkeys(asked):
        if without := [name for name, layers in adapted(facts.linear, targets).items() if not layers]:
            own = dict.fromkeys(layer.rpartition(".")[2] for layer in facts.linear)
            message = f"{', '.join(map(repr, without))} names no linear layer of {source} ({facts.family})"
            found.append(("lora.targets", f"{message}; its own: {', '.join(own) or 'none'}"))
    return found


def adapted(linear: Sequence[str], targets: str) -> dict[str, list[str]]:
    """The linear layers that each of the comma-separated names in `lora.targets` selects: name -> layers.

    "all-linear" is all, "attention" those inside a module with attn or attention in its name, another name a layer's
    last part or parts.
    """
    found = {}
    for name in dict.fromkeys(part.strip() for part in targets.split(",")):
        if name == "all-linear":
            found[name] = list(linear)
        elif name == "attention":
            found[name] = [layer for layer in linear if "attn" in layer or "attention" in layer]
        else:
            found[name] = [layer for layer in linear if f".{layer}".endswith(f".{name}")] if name else []
    return found


def trained_length(folder: Path) -> int:
    """`max_seq_length` of a sentence-transformers folder; 0 where there is none."""
    if not _read(folder / "modules.json", list):
        return 0
    length = _read(folder / "sentence_bert_config.json", dict).get("max_seq_length")
    if length is None:  # newer versions keep it here
        length = _read(folder / "tokenizer_config.json", dict).get("model_max_length")
    return length if isinstance(length, int) and length > 0 else 0


def left_out(folder: Path) -> tuple[str, str]:
    """Of a sentence-transformers folder: its pooling, and what else it holds beside its encoder and is not used here,
    further modules and prompts; "" = nothing."""
    listed = _read(folder / "modules.json", list)
    modules = [module for module in listed if isinstance(module, dict)][1:]
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    paths = [str(module.get("path", "")) for module in modules]
    pooling = [_pooling(folder / path) for path, kind in zip(paths, kinds, strict=True) if kind == POOL]
    found = [f"{kind} (vectors are compared by cosine)" if kind == NORM else kind for kind in kinds if kind != POOL]
    prompts = _read(folder / "config_sentence_transformers.json", dict).get("prompts")
    if names := [name for name, text in prompts.items() if text] if isinstance(prompts, dict) else []:
        more = ", ..." if len(names) > PROMPTS_NAMED else ""
        found.append(f"prompts {', '.join(names[:PROMPTS_NAMED])}{more} (give them as data.prompts)")
    return " and ".join(pooling), ", ".join(found)


def _pooling(folder: Path) -> str:
    config = _read(folder / "config.json", dict)
    own = config.get("pooling_mode")
    if own is None:  # as older versions write it
        prefix = "pooling_mode_"
        on = [name for name, value in config.items() if name.startswith(prefix) and value is True]
        own = [name.removeprefix(prefix).removesuffix("_tokens").removesuffix("_token") for name in on]
    names = own if isinstance(own, list) else [own]
    return " and ".join(POOLINGS.get(str(name), str(name)) for name in names)


def _read(path: Path, kind: type) -> Any:
    """A JSON file's content; empty if the file is missing or holds something of another kind."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return kind()
    return content if isinstance(content, kind) else kind()


def facts_key(folder: Path, source: str = "") -> str:
    """Fingerprint of an encoder's folder and of the libraries, and of whether its code runs; of weights only sizes and
    times are read."""
    code = [mark_of(source)] if runs_code(source) else []
    parts: list[object] = [
        *code,
        VERSION,
        importlib.metadata.version("transformers"),
        importlib.metadata.version("torch"),
    ]
    for file in sorted([*folder.iterdir(), *folder.glob("*/config.json")]):
        if file.suffix == ".json" and file.stat().st_size < 2**20:
            parts += [str(file.relative_to(folder)), file.read_bytes()]
        elif file.is_file():
            parts += [file.name, file.stat().st_size, file.stat().st_mtime_ns]
    return content_hash(parts)


def stored(facts: EncoderFacts | str) -> dict[str, Any]:
    """The facts for the cache; a text is the reason why the encoder cannot be used."""
    return {"unusable": facts} if isinstance(facts, str) else asdict(facts)


def restored(found: Mapping[str, Any]) -> EncoderFacts:
    """The facts from the cache.

    Raises: EncoderError for an encoder that cannot be used.
    """
    if "unusable" in found:
        raise EncoderError(found["unusable"])
    values = {f.name: found[f.name] for f in fields(EncoderFacts)}
    return EncoderFacts(**{**values, "drops": tuple(values["drops"]), "linear": tuple(values["linear"])})


def available_facts(source: str) -> EncoderFacts | None:
    """The facts of the builtin encoder and of one whose files are on this machine, None for others.

    They are measured once, in a process of their own (this one may be without torch), and cached by fingerprint.

    Raises: EncoderError if the encoder cannot be used.
    """
    if source == BUILTIN_ENCODER:
        return BUILTIN_FACTS
    folder = available_folder(source)
    if folder is None:
        return None

    def measure() -> dict[str, Any]:
        command = [sys.executable, "-P", "-m", "trainables.encoders.load", str(folder) + mark_of(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise EncoderError(f"encoder {source!r}: not measured within {PROBE_SECONDS:.0f} s") from None
        if done.returncode:
            raise EncoderError(f"encoder {source!r}: cannot be measured: {last_line(done.stderr)}")
        return dict(json.loads(done.stdout.splitlines()[-1]))

    return restored(DiskCache().cached("encoder", [facts_key(folder, source)], measure, alone=False))
