"""What `encoder:` names, in memory: a transformer encoder or word vectors, read once per process, copied for trials.

`python -m trainables.encoders.load FOLDER` prints an encoder's facts as JSON, for a process without torch.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainables.contract.config import EncoderConfig
from trainables.contract.declaration import WORD_VECTORS, EncoderFamily
from trainables.contract.errors import EncoderError, first_line
from trainables.contract.remote_code import check_pinned, code_references, code_revision, runs_code
from trainables.data.tokens import (
    DiskCache,
    Encode,
    Tokens,
    content_hash,
    ready,
    tokenizer_encoder,
    tokenizer_fingerprint,
    without_trailing_blanks,
)
from trainables.data.tokens import cache_dir as default_cache_dir
from trainables.encoders.adapters import Base, add_adapters, freeze, sharing_copy
from trainables.encoders.builtin_encoder import encoder_folder
from trainables.encoders.facts import EncoderFacts, facts_key, left_out, restored, stored, trained_length
from trainables.encoders.forward import enable_checkpointing
from trainables.encoders.heads import mlm_weights
from trainables.encoders.locate import BUILTIN_ENCODER, folder_revision, hub_folder, local_folder
from trainables.encoders.probe import dropout_keys, probe, sees, set_bidirectional, set_dropout
from trainables.encoders.tokenizing import check_tokenizer, encoder_of, make_padding, template_of
from trainables.encoders.word_vectors import WordVectors, corpus_words, load_vectors
from trainables.encoders.words_in_use import take_whole_state

log = logging.getLogger(__name__)
UNKNOWN_WARNED, UNKNOWN_REFUSED = 0.1, 0.5  # shares of unknown tokens


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """A pre-trained encoder in memory.

    Attributes:
        source: as in the space.
        model: the pre-trained weights on the CPU, never trained (`make_model` copies them).
        tokenizer: the Hugging Face tokenizer.
        prefix, suffix: ids that the tokenizer puts around a single sentence, such as [CLS] and [SEP].
        mlm_head: the checkpoint's masked-language-model head with the names of `heads.MlmHead`, {} when it has none.
        packing_note: why batches are padded, "" when they are packed.
        facts: measured by `probe`.
        fingerprint: hash of configuration and weights; tokenizer_fingerprint: of what decides the token ids.
        revision: of its folder (`folder_revision`), None for the builtin encoder.
        base: frozen weights by device and precision, shared by all trials with adapters.
        prompts: token ids that a text behind a prompt begins with -> tokens that `include_prompt: false` leaves out.
    """

    source: str
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
    prompts: Mapping[tuple[int, ...], int] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The Hugging Face configuration."""
        return self.model.config


def load_encoder(source: str, *, language: str = "en", cache_dir: Path | None = None) -> LoadedEncoder:
    """Read an encoder.

    Args:
        source: hub id (`id` or `id@revision`), local folder, or `builtin:tiny`; see `remote_code`.
        language: of the builtin encoder, "en" or "zh".
        cache_dir: of the builtin encoder; default: the user's cache.
    Raises: EncoderError if there is no such encoder, the hub cannot be reached, or it cannot be used.
    """
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    if source == BUILTIN_ENCODER:
        folder = encoder_folder(language, ready(cache_dir or default_cache_dir()))
    elif source.startswith("builtin:"):
        raise EncoderError(f"encoder {source!r}: unknown; the only builtin encoder is {BUILTIN_ENCODER}")
    else:
        folder = local_folder(source) or cast(Path, hub_folder(source))
    if not (folder / "config.json").is_file():
        raise EncoderError(f"encoder {source!r}: {folder} has no config.json; give a folder in Hugging Face format")
    code: dict[str, Any] = {"trust_remote_code": runs_code(source)}
    if runs_code(source):
        check_pinned(source, folder)
        code["code_revision"] = code_revision(source)
    try:
        with _quiet(), torch.random.fork_rng(devices=[]):  # weights that a checkpoint lacks are drawn
            torch.manual_seed(0)
            config = AutoConfig.from_pretrained(folder, **code)
            for key in dropout_keys(config):  # ModernBERT builds some of its dropouts only where p is not 0
                setattr(config, key, 0.1)
            config.use_cache = False
            model, found_in_files = AutoModel.from_pretrained(
                folder, config=config, dtype=torch.float32, output_loading_info=True, **code
            )
            tokenizer = AutoTokenizer.from_pretrained(folder, **code)
    except Exception as error:  # OSError, ValueError, KeyError, safetensors' own
        if not runs_code(source) and "trust_remote_code" in str(error):
            pinned = "" if local_folder(source) else "revision: <commit>, "
            raise EncoderError(
                f"encoder {source!r}: has code of its own ({', '.join(code_references(folder))}); to run it, write "
                f"encoder: {{name: ..., {pinned}trust_remote_code: true}}"
            ) from error
        raise EncoderError(f"encoder {source!r}: {folder} cannot be read: {first_line(error)}") from error
    _check_weights(source, folder, model, found_in_files["missing_keys"])
    model.eval()
    fingerprint = _hash(_config_text(model.config), model.state_dict())
    words, width = model.get_input_embeddings().weight.shape
    check_tokenizer(source, folder, tokenizer, words)
    make_padding(source, tokenizer, model.config.pad_token_id)
    template = template_of(source, tokenizer, lambda bare: not sees(model, bare)[0])

    def measure() -> dict[str, Any]:
        try:
            found = probe(source, model, template, tokenizer.mask_token_id is not None)
            pooling, others = left_out(folder)
            length = trained_length(folder)
            return stored(replace(found, own_pooling=pooling, left_out=others, trained_length=length))
        except EncoderError as error:
            return stored(str(error))

    facts = restored(DiskCache().cached("encoder", [facts_key(folder, source)], measure))
    return LoadedEncoder(
        source=source,
        model=model,
        tokenizer=tokenizer,
        prefix=template.prefix,
        suffix=template.suffix,
        mlm_head=mlm_weights(folder, model.config.hidden_size, (words, width)),
        packing_note=facts.packing_note,
        facts=facts,
        fingerprint=fingerprint,
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer),
        revision=None if source == BUILTIN_ENCODER else folder_revision(folder, code=runs_code(source)),
    )


def _check_weights(source: str, folder: Path, model: Any, missing: Collection[str]) -> None:
    """Check that the checkpoint has every weight, since the library draws missing ones at random.

    A missing pooler is removed: masked-language-model checkpoints have none.
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


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the library's progress bars and load report: an unused MLM head is expected here."""
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
    """Check that the tokenizer fits the language of the data; logs a warning when over 10 % of the tokens are unknown.

    Args: sentences: of training or evaluation.
    Raises: EncoderError when over half are unknown.
    """
    unknown = loaded.tokenizer.unk_token_id
    tokens = sum(map(len, sentences))
    if unknown is None or not tokens:
        return
    share = sum(int((s == unknown).sum()) for s in sentences) / tokens
    message = f"encoder {loaded.source!r}: {share:.0%} of the tokens in the data are unknown to its tokenizer"
    if share > UNKNOWN_REFUSED:
        raise EncoderError(f"{message}; choose an encoder of the data's language")
    if share > UNKNOWN_WARNED:
        log.warning("%s", message)


def _config_text(config: Any) -> str:
    """The configuration without its path and library version, which do not change vectors."""
    content = {k: v for k, v in config.to_dict().items() if k not in ("_name_or_path", "transformers_version")}
    return json.dumps(content, sort_keys=True, default=str)


def _hash(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:32]


def trained_model(loaded: LoadedEncoder, config: EncoderConfig, seed: int) -> nn.Module:
    """The encoder that a trial trains: a copy, or adapters beside shared weights (see `adapters`).

    Raises: EncoderError for adapters that it cannot have.
    """
    pooler = config.pooling == "pretrained_pooler"
    model: Any = make_model(loaded, config.dropout, pooler, config.bidirectional, shared=bool(config.lora_rank))
    if config.lora_rank:
        add_adapters(model, config, loaded.facts.linear, loaded.base, seed)
    if config.freeze is not None:
        freeze(model, config.freeze)
    if config.checkpointing:
        enable_checkpointing(model, packed=False)
    return cast(nn.Module, model)


def make_model(
    loaded: LoadedEncoder, dropout: float, pooler: bool = False, bidirectional: bool = False, shared: bool = False
) -> nn.Module:
    """A trainable copy of the encoder.

    Args:
        dropout: p of every dropout of the encoder: hidden and attention-probability (methods 1.2).
        pooler: keep BERT's own pooler (an unused one would cost memory and get no gradient).
        bidirectional: let every token of a decoder attend to the whole sentence.
        shared: use the weights of `loaded`, frozen, instead of a copy.
    """
    model = sharing_copy(loaded.model) if shared else copy.deepcopy(loaded.model)
    if getattr(model, "pooler", None) is not None and not pooler:
        model.pooler = nn.Identity()  # not None: SqueezeBERT calls it without asking
    set_dropout(model, dropout)
    if bidirectional:
        set_bidirectional(model)
    model.register_load_state_dict_pre_hook(take_whole_state)
    return cast(nn.Module, model)


EncoderSource = LoadedEncoder | WordVectors


def load_source(
    family: EncoderFamily,
    source: str,
    language: str,
    texts: Iterable[str] | None = None,
    prompts: Mapping[str, str] | None = None,
) -> EncoderSource:
    """Read an encoder or a file of word vectors.

    Args:
        texts: all that will be encoded; word vectors of other words are skipped. None = all words.
        prompts: `data.prompts` of a space.
    Raises: EncoderError, or DataError for word vectors.
    """
    if family == WORD_VECTORS:
        return load_vectors(source, language, None if texts is None else corpus_words(texts, language))
    loaded = load_encoder(source, language=language)
    return replace(loaded, prompts=_prompt_tokens(loaded, prompts or {}))


def _prompt_tokens(loaded: LoadedEncoder, prompts: Mapping[str, str]) -> dict[tuple[int, ...], int]:
    """`LoadedEncoder.prompts`, longest first. A prompt is as long as it is alone, as in sentence-transformers: where a
    blank at the end becomes part of the text's first token, that counts as the prompt's."""
    encode = tokenizer_encoder(loaded.tokenizer)
    begin = [tuple(ids) for ids in encode(list(without_trailing_blanks(prompts).values()))] if prompts else []
    alone = [len(loaded.prefix) + len(ids) for ids in encode(list(prompts.values()))] if prompts else []
    found = {ids: length for ids, length in zip(begin, alone, strict=True) if ids}
    return dict(sorted(found.items(), key=lambda item: -len(item[0])))


def token_ids(source: EncoderSource, language: str) -> Encode:
    """The tokenizer of a source.

    Calling it raises DataError for a text with a special token that the encoder has no embedding for.
    """
    if isinstance(source, WordVectors):
        tokenizer = source.tokenizer(language)
        return lambda texts: [tokenizer.ids(text) for text in texts]
    return encoder_of(source.source, source.tokenizer, len(source.model.get_input_embeddings().weight))


def fingerprints(source: EncoderSource) -> tuple[str, str]:
    """Hashes of the weights (or vectors), and of what decides the token ids."""
    if isinstance(source, WordVectors):
        own = content_hash([list(source.words), source.matrix])
        return own, own
    return source.fingerprint, source.tokenizer_fingerprint


def revision(source: EncoderSource) -> dict[str, str] | None:
    """Hashes of its folder when it was read, for a trial's record; None for the builtin encoder and word vectors."""
    return None if isinstance(source, WordVectors) or source.revision is None else dict(source.revision)


def change(source: EncoderSource, recorded: Mapping[str, str] | None, weights: bool) -> str:
    """What has changed in a folder since a trial recorded its `revision`, "" = nothing.

    Args:
        recorded: None = unknown.
        weights: whether its weights matter too.
    """
    found = revision(source)
    if found is None or recorded is None or ("commit" in found and found["commit"] == recorded.get("commit")):
        return ""
    if found["files"] != recorded["files"]:
        return "the configuration or tokenizer files"
    return "the weights" if weights and found["weights"] != recorded["weights"] else ""


def is_part(checkpoint: Iterable[str]) -> bool:
    """Whether a checkpoint with these weights needs the encoder's folder too: adapters, words in use."""
    return any(".lora_" in name or name.endswith(".table.weight") for name in checkpoint)


def main(folder: str) -> None:
    """Print the facts of an encoder, or why it cannot be used, as one line of JSON."""
    try:
        facts: EncoderFacts | str = load_encoder(folder).facts
    except EncoderError as error:
        if runs_code(folder):  # what code meets may be gone the next time: not stored
            raise SystemExit(str(error)) from None
        facts = str(error)
    print(json.dumps(stored(facts)))


if __name__ == "__main__":
    main(sys.argv[1])
