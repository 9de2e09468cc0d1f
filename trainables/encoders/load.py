"""Loading encoders: hub ids, local folders, the builtin one; read once per process, copied for every trial."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig
from trainables.contract.errors import EncoderError, first_line
from trainables.data.token_cache import DiskCache, ready, tokenizer_fingerprint
from trainables.data.token_cache import cache_dir as default_cache_dir
from trainables.data.tokens import Tokens
from trainables.encoders.adapters import Base, add_adapters, sharing_copy
from trainables.encoders.builtin_encoder import encoder_folder
from trainables.encoders.depth import freeze
from trainables.encoders.dropout import keys, set_dropout
from trainables.encoders.facts import EncoderFacts, facts_key, restored, stored
from trainables.encoders.interface import compute_again
from trainables.encoders.left_out import left_out
from trainables.encoders.locate import BUILTIN_ENCODER, folder_revision, hub_folder, local_folder
from trainables.encoders.mlm_weights import mlm_weights
from trainables.encoders.probe import probe, sees, set_bidirectional
from trainables.encoders.tokenizing import Template, check_tokenizer, make_padding, template_of
from trainables.encoders.words_in_use import take_whole_state

log = logging.getLogger(__name__)
UNKNOWN_SAID, UNKNOWN_REFUSED = 0.1, 0.5  # shares of unknown tokens


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
        facts: what was measured of it.
        fingerprint: hash of configuration and weights; tokenizer_fingerprint: of what decides the token ids.
        revision: of its folder (`folder_revision`), None of the builtin encoder, which is written here.
        base: the weights where trials with adapters have used them, by device and precision; shared by all of them.
    """

    source: str
    family: str
    model: Any
    tokenizer: Any
    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    mlm_head: Mapping[str, Tensor]
    packing_note: str
    facts: EncoderFacts
    fingerprint: str
    tokenizer_fingerprint: str
    revision: Mapping[str, str] | None
    base: Base = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.model.config


def load_encoder(source: str, *, language: str = "en", cache_dir: Path | None = None) -> LoadedEncoder:
    """Read an encoder.

    Args:
        source: hub id (`id` or `id@revision`), local folder, or `builtin:tiny`.
        language: of the builtin encoder, "en" or "zh".
        cache_dir: where the builtin encoder is kept; default: the user's cache.
    Raises: EncoderError if there is no such encoder, the hub cannot be reached, or it is of no use here.
    """
    name, _, revision = source.partition("@")
    if source.startswith("builtin:"):
        folder = _builtin(source, language, cache_dir)
    elif (local := local_folder(source)) is not None:
        folder = local
    else:
        found = hub_folder(name, revision or None)
        assert found is not None, "downloaded"
        folder = found
    return _read(source, folder)


def trained_model(loaded: LoadedEncoder, config: EncoderConfig, seed: int) -> nn.Module:
    """What a trial trains of an encoder: a copy, or adapters beside weights that are shared (see `adapters`).

    Raises: EncoderError for adapters that it cannot have.
    """
    pooler = config.pooling == "pretrained_pooler"
    model: Any = make_model(loaded, config.dropout, pooler, config.bidirectional, shared=bool(config.lora_rank))
    if config.lora_rank:
        add_adapters(model, config, loaded.facts.linear, loaded.base, seed)
    if config.freeze is not None:
        freeze(model, config.freeze)
    if config.checkpointing:
        compute_again(model, packed=False)
    return cast(nn.Module, model)


def make_model(
    loaded: LoadedEncoder, dropout: float, pooler: bool = False, bidirectional: bool = False, shared: bool = False
) -> nn.Module:
    """A trainable copy of the encoder, without touching the disk.

    Args:
        dropout: p of every dropout of the encoder: hidden and attention-probability (methods 1.2).
        pooler: keep BERT's own pooler (an unused one would cost memory and get no gradient).
        bidirectional: let every token of a decoder see the whole sentence.
        shared: its weights are those of `loaded`, frozen.
    """
    model = sharing_copy(loaded.model) if shared else copy.deepcopy(loaded.model)
    if getattr(model, "pooler", None) is not None and not pooler:
        model.pooler = nn.Identity()  # not None: SqueezeBERT calls it without asking
    set_dropout(model, dropout)
    if bidirectional:
        set_bidirectional(model)
    model.register_load_state_dict_pre_hook(take_whole_state)
    return cast(nn.Module, model)


def _builtin(name: str, language: str, cache_dir: Path | None) -> Path:
    if name != BUILTIN_ENCODER:
        raise EncoderError(f"encoder {name!r}: unknown; the only builtin encoder is {BUILTIN_ENCODER}")
    return Path(encoder_folder(language, ready(cache_dir or default_cache_dir())))


def _read(source: str, folder: Path) -> LoadedEncoder:
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    if not (folder / "config.json").is_file():
        raise EncoderError(f"encoder {source!r}: {folder} has no config.json; give a folder in Hugging Face format")
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):  # weights that a checkpoint lacks are drawn: leave the
            torch.manual_seed(0)  # caller's random state alone, and draw the same ones every time
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
            for key in keys(config):  # ModernBERT builds some of its dropouts only where p is not 0
                setattr(config, key, 0.1)
            config.use_cache = False
            model, found_in_files = AutoModel.from_pretrained(
                folder, config=config, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # OSError, ValueError, KeyError, safetensors' own: the file is unusable for all of them
        reason = first_line(error)
        raise EncoderError(f"encoder {source!r}: {folder} cannot be read: {reason}") from error
    _check_weights(source, folder, model, found_in_files["missing_keys"])
    model.eval()
    fingerprint = _hash(_config_text(model.config), model.state_dict())
    words, width = model.get_input_embeddings().weight.shape
    check_tokenizer(source, folder, tokenizer, words)
    make_padding(source, tokenizer, model.config.pad_token_id)
    template = template_of(source, tokenizer, lambda bare: not sees(model, bare)[0])
    mask_token = tokenizer.mask_token_id is not None
    found = DiskCache().cached(
        "encoder", [facts_key(folder)], lambda: _measured(source, folder, model, template, mask_token)
    )
    facts = restored(found)
    return LoadedEncoder(
        source=source,
        family=model.config.model_type,
        model=model,
        tokenizer=tokenizer,
        prefix=template.prefix,
        suffix=template.suffix,
        mlm_head=mlm_weights(folder, model.config.hidden_size, (words, width)),
        packing_note=facts.packing_note,
        facts=facts,
        fingerprint=fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        revision=None if source == BUILTIN_ENCODER else folder_revision(folder),
    )


def _check_weights(source: str, folder: Path, model: Any, missing: Collection[str]) -> None:
    """That the checkpoint has every weight; a pooler that it lacks is taken out.

    Masked-language-model checkpoints have none, and the library draws a random one for them.

    Raises: EncoderError: the library draws whatever else is missing too.
    """
    trained = [name for name, p in model.named_parameters() if p.requires_grad]  # positions of fixed sinusoids are not
    own = [name for name in trained if not name.startswith("pooler.")]
    if lacking := [name for name in own if name in missing]:
        raise EncoderError(
            f"encoder {source!r}: {folder} lacks {len(lacking)} of the {len(own)} weights of "
            f"{model.config.model_type}, such as {lacking[0]}; save the model anew"
        )
    if any(name in missing for name in trained):
        model.pooler = nn.Identity()


def _measured(source: str, folder: Path, model: Any, template: Template, mask_token: bool) -> dict[str, Any]:
    try:
        facts = probe(source, model, template, mask_token)
        return stored(replace(facts, left_out=left_out(folder, facts.longest)))
    except EncoderError as error:
        return stored(str(error))


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
