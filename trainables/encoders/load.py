"""Loading encoders: hub ids, local folders, the builtin one; read once per process, copied for every trial."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from trainables.contract.errors import EncoderError, first_line
from trainables.data.token_cache import cache_dir as default_cache_dir
from trainables.data.token_cache import tokenizer_fingerprint
from trainables.data.tokens import Tokens
from trainables.encoders.builtin_encoder import encoder_folder
from trainables.encoders.locate import BUILTIN_ENCODER, hub_folder, local_folder
from trainables.encoders.packing import Packed, pack
from trainables.encoders.trunk import trunk_of

log = logging.getLogger(__name__)
UNKNOWN_SAID, UNKNOWN_REFUSED = 0.1, 0.5  # shares of unknown tokens
AGREEMENT = 1e-5  # packed against padded, largest difference relative to the largest value (at least 1), float32


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """A pre-trained encoder in memory; nothing below reads the disk again.

    Attributes:
        source: what was asked for; family: the configuration's model_type ("bert", "roberta", "mpnet", ...).
        model: the untouched weights on the CPU, never trained (`make_model` copies it).
        tokenizer: the Hugging Face tokenizer.
        prefix, suffix: ids that the tokenizer puts around a single sentence, such as [CLS] and [SEP].
        mlm_head: the checkpoint's masked-language-model head as `heads.MlmHead` names it, {} when it has none.
        packing_note: why batches are padded, "" when they are packed.
        fingerprint: hash of configuration and weights; tokenizer_fingerprint: of what decides the token ids.
    """

    source: str
    family: str
    model: Any
    tokenizer: Any
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    mlm_head: Mapping[str, Tensor]
    packing_note: str
    fingerprint: str
    tokenizer_fingerprint: str

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.model.config


def load_encoder(
    source: str, revision: str | None = None, *, language: str = "en", cache_dir: Path | None = None
) -> LoadedEncoder:
    """Read an encoder.

    Args:
        source: hub id (`id` or `id@revision`), local folder, or `builtin:tiny`.
        revision: of a hub id; wins over the one in `source`.
        language: of the builtin encoder, "en" or "zh".
        cache_dir: where the builtin encoder is kept; default: the user's cache.
    Raises: EncoderError if there is no such encoder, the hub cannot be reached, or it is of no use here.
    """
    name, _, pinned = source.partition("@")
    if source.startswith("builtin:"):
        folder = _builtin(source, language, cache_dir)
    elif (local := local_folder(source)) is not None:
        folder = local
    else:
        found = hub_folder(name, revision or pinned or None)
        assert found is not None, "downloaded"
        folder = found
    return _read(source, folder)


def make_model(loaded: LoadedEncoder, dropout: float, pooler: bool = False) -> nn.Module:
    """A trainable copy of the encoder, without touching the disk.

    Args:
        dropout: p of every dropout of the encoder: hidden and attention-probability (methods 1.2).
        pooler: keep BERT's own pooler (an unused one would cost memory and get no gradient).
    Raises: EncoderError if a pooler is asked of an encoder that has none.
    """
    pooler_module = getattr(loaded.model, "pooler", None)
    if pooler and pooler_module is None:
        raise EncoderError(
            f"encoder {loaded.source!r}: pooling pretrained_pooler needs a pooler, {loaded.family} has none"
        )
    model = copy.deepcopy(loaded.model)
    if pooler_module is not None and not pooler:
        model.pooler = None
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
    for key in ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout"):
        if hasattr(model.config, key):
            setattr(model.config, key, dropout)
    return cast(nn.Module, model)


def padded_states(model: Any, packed: Packed, wanted: Sequence[int]) -> dict[int, Tensor]:
    """What `Trunk.states` gives, by the library's own padded forward pass (in whatever mode the model is)."""
    ids, mask = packed.pad(packed.ids, model.config.pad_token_id or 0), packed.mask.long()
    every = tuple(wanted) != (model.config.num_hidden_layers,)
    out = model(input_ids=ids, attention_mask=mask, output_hidden_states=every, return_dict=True)
    states = {n: out.hidden_states[n] if every else out.last_hidden_state for n in wanted}
    return {n: s.flatten(0, 1).index_select(0, packed.slots) for n, s in states.items()}


def longest_sentence(model: Any) -> int:
    """Most tokens of a sentence that the position embeddings allow, special tokens included."""
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    if table is None:
        return int(model.config.max_position_embeddings)
    return int(table.num_embeddings) - (0 if table.padding_idx is None else table.padding_idx + 1)


def _builtin(name: str, language: str, cache_dir: Path | None) -> Path:
    if name != BUILTIN_ENCODER:
        raise EncoderError(f"encoder {name!r}: unknown; the only builtin encoder is {BUILTIN_ENCODER}")
    return Path(encoder_folder(language, cache_dir or default_cache_dir()))


def _read(source: str, folder: Path) -> LoadedEncoder:
    from transformers import AutoModel, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise EncoderError(f"encoder {source!r}: {folder} has no config.json; give a folder in Hugging Face format")
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):  # weights that a checkpoint lacks are drawn: leave the
            torch.manual_seed(0)  # caller's random state alone, and draw the same ones every time
            model = AutoModel.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False).eval()
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, KeyError, safetensors' own: the file is unusable for all of them
        reason = first_line(error)
        raise EncoderError(f"encoder {source!r}: {folder} cannot be read: {reason}") from error
    _check_tokenizer(source, folder, tokenizer, model.get_input_embeddings().num_embeddings)
    prefix, suffix = _template(source, tokenizer)
    return LoadedEncoder(
        source=source,
        family=model.config.model_type,
        model=model,
        tokenizer=tokenizer,
        prefix=prefix,
        suffix=suffix,
        mlm_head=_mlm_head(folder, tuple(model.get_input_embeddings().weight.shape)),
        packing_note=packing_note(model, prefix, suffix),
        fingerprint=_hash(_config_text(model.config), model.state_dict()),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
    )


@contextlib.contextmanager
def _quiet() -> Any:
    """Without the library's progress bars and load report: a left-out MLM head is expected here."""
    from transformers.utils import logging as library

    verbosity, bars = library.get_verbosity(), library.is_progress_bar_enabled()
    library.set_verbosity_error()
    library.disable_progress_bar()
    try:
        yield
    finally:
        library.set_verbosity(verbosity)
        if bars:
            library.enable_progress_bar()


def _check_tokenizer(source: str, folder: Path, tokenizer: Any, embeddings: int) -> None:
    """That the tokenizer is the encoder's own: the library makes an empty one where a folder has none.

    Raises: EncoderError.
    """
    files = [name for name in tokenizer.vocab_files_names.values() if name]
    if files and not any((folder / name).is_file() for name in files):
        raise EncoderError(f"encoder {source!r}: {folder} has no tokenizer; expected one of {', '.join(files)} in it")
    if not embeddings / 2 <= len(tokenizer) <= embeddings:
        raise EncoderError(
            f"encoder {source!r}: its tokenizer and its weights do not belong together: {len(tokenizer):,} tokens for "
            f"{embeddings:,} embeddings; save both from the same model"
        )


def check_unknown(loaded: LoadedEncoder, sentences: Sequence[Tokens]) -> None:
    """That the tokenizer knows the language of the data.

    Args:
        sentences: what is trained on or evaluated; a warning is logged when over 10 % of their tokens are unknown.
    Raises: EncoderError when over half are: every sentence would look like every other.
    """
    unknown = loaded.tokenizer.unk_token_id
    tokens = sum(map(len, sentences))
    if unknown is None or not tokens:
        return
    share = sum(int((s == unknown).sum()) for s in sentences) / tokens
    message = f"encoder {loaded.source!r}: {share:.0%} of the tokens in the data are unknown to its tokenizer"
    if share > UNKNOWN_REFUSED:
        raise EncoderError(f"{message}; choose an encoder of the data's language")
    if share > UNKNOWN_SAID:
        log.warning("%s", message)


def _template(source: str, tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids before and after a single sentence."""
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if bare and start and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise EncoderError(
        f"encoder {source!r}: its tokenizer puts no token in front of a sentence (got {full} for {bare}); "
        "pooling needs one, as BERT's [CLS]"
    )


def packing_note(model: Any, prefix: Sequence[int], suffix: Sequence[int]) -> str:
    """Why an encoder cannot be packed, "" when packed and padded passes agree on vectors and gradients.

    Four short random sentences, evaluation mode. Compared are the last state and the gradients of the embedding norm
    and the first block, through which all others pass.
    """
    trunk = trunk_of(model)
    if trunk is None:
        return f"packing does not know the family {model.config.model_type}: batches are padded"
    rng = np.random.default_rng(0)
    words = np.arange(model.get_input_embeddings().num_embeddings, dtype=np.int32)
    words = words[words != model.config.pad_token_id]  # RoBERTa derives positions from ids that are not padding
    sentences = [rng.choice(words, n) for n in (5, 2, 9, 5)]
    packed = pack(sentences, 16, prefix, suffix)
    layers = (len(trunk.layers),)  # not the others: asking the library for them leaves hooks in the model for good
    parts = [part for part in vars(trunk.layers[0]).values() if isinstance(part, (nn.Linear, nn.LayerNorm))]
    checked = [trunk.norm.weight, *(part.weight for part in parts)]
    try:
        packed_values = _values_and_gradients(trunk.states, packed, layers, checked)
        padded_values = _values_and_gradients(lambda p, w: padded_states(model, p, w), packed, layers, checked)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
        log.warning("packing check failed", exc_info=error)
        return f"the packing check failed with {type(error).__name__}: batches are padded"
    worst = max(
        float((a - b).abs().max() / b.abs().max().clamp_min(1))
        for a, b in zip(packed_values, padded_values, strict=True)
    )
    return "" if worst <= AGREEMENT else f"packed and padded passes differ by {worst:.1e}: batches are padded"


def _values_and_gradients(
    states: Callable[[Packed, Sequence[int]], dict[int, Tensor]],
    packed: Packed,
    wanted: Sequence[int],
    parameters: Sequence[Tensor],
) -> list[Tensor]:
    with torch.enable_grad():
        values = states(packed, wanted)
        total = sum(
            (values[n] * torch.cos(torch.arange(values[n].numel()).view(values[n].shape))).sum() for n in wanted
        )
        gradients = torch.autograd.grad(cast(Tensor, total), parameters)
    return [*(v.detach() for v in values.values()), *gradients]


# Where checkpoints keep the parts of their masked-language-model head: name here -> names there.
_MLM_NAMES = {
    "dense.weight": ("cls.predictions.transform.dense.weight", "lm_head.dense.weight", "vocab_transform.weight"),
    "dense.bias": ("cls.predictions.transform.dense.bias", "lm_head.dense.bias", "vocab_transform.bias"),
    "norm.weight": (
        "cls.predictions.transform.LayerNorm.weight",
        "cls.predictions.transform.LayerNorm.gamma",
        "lm_head.layer_norm.weight",
        "vocab_layer_norm.weight",
    ),
    "norm.bias": (
        "cls.predictions.transform.LayerNorm.bias",
        "cls.predictions.transform.LayerNorm.beta",
        "lm_head.layer_norm.bias",
        "vocab_layer_norm.bias",
    ),
    "bias": ("cls.predictions.bias", "cls.predictions.decoder.bias", "lm_head.bias", "vocab_projector.bias"),
}


def _mlm_head(folder: Path, embeddings: tuple[int, int]) -> dict[str, Tensor]:
    """The head's tensors that the checkpoint has in the expected shapes; embeddings: (V, H)."""
    words, width = embeddings
    shapes = {"dense.weight": (width, width), "bias": (words,)}
    stored = _stored_tensors(folder, {name for names in _MLM_NAMES.values() for name in names})
    found = {part: next((stored[n] for n in names if n in stored), None) for part, names in _MLM_NAMES.items()}
    return {
        part: tensor.float()
        for part, tensor in found.items()
        if tensor is not None and tuple(tensor.shape) == shapes.get(part, (width,))
    }


def _stored_tensors(folder: Path, names: set[str]) -> dict[str, Tensor]:
    """Those of the named tensors that the weight files hold."""
    from safetensors import safe_open

    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            found.update({name: tensors.get_tensor(name) for name in names.intersection(tensors.keys())})
    for file in () if found else sorted(folder.glob("pytorch_model*.bin")):
        try:
            tensors = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a dozen kinds; the weights themselves were read, from a file beside it
            log.warning(
                "%s: cannot be read (%s): no masked-language-model head is taken from it", file, first_line(error)
            )
            continue
        found.update({name: tensors[name] for name in names.intersection(tensors)})
    return found


def _config_text(config: Any) -> str:
    """The configuration without what does not change vectors: where it was read, which library wrote it."""
    content = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    return json.dumps(content, sort_keys=True, default=str)


def _hash(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]
