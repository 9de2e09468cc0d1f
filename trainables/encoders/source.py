"""What `encoder:` names, in memory: a transformer encoder or word vectors, and the token ids of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trainables.contract.declaration import WORD_VECTORS, EncoderFamily
from trainables.data.token_cache import Encode, content_hash
from trainables.encoders.load import LoadedEncoder, load_encoder
from trainables.encoders.tokenizing import encoder_of
from trainables.encoders.word_vectors import WordVectors, corpus_words, load_vectors

EncoderSource = LoadedEncoder | WordVectors


def load_source(family: EncoderFamily, source: str, language: str, texts: Iterable[str] | None = None) -> EncoderSource:
    """Read what a method trains on.

    Args:
        texts: all that will be encoded; word vectors of other words are then not read. None = all words.
    Raises: EncoderError, or DataError for word vectors.
    """
    if family == WORD_VECTORS:
        return load_vectors(source, language, None if texts is None else corpus_words(texts, language))
    return load_encoder(source, language=language)


def token_ids(source: EncoderSource, language: str) -> Encode:
    """The tokenizer that belongs to a source.

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
    """What its folder held when it was read, for a trial's record; None of the builtin encoder and of word vectors."""
    return None if isinstance(source, WordVectors) or source.revision is None else dict(source.revision)


def change(source: EncoderSource, recorded: Mapping[str, str] | None, weights: bool) -> str:
    """What a folder no longer holds of what a trial's record says, "" = nothing.

    Args:
        recorded: what `revision` gave; None (or of a trial before there was such a record) = not known.
        weights: whether its weights matter too.
    """
    found = revision(source)
    if found is None or recorded is None or ("commit" in found and found["commit"] == recorded.get("commit")):
        return ""
    if found["files"] != recorded["files"]:
        return "the configuration or tokenizer files"
    return "the weights" if weights and found["weights"] != recorded["weights"] else ""


def is_part(checkpoint: Iterable[str]) -> bool:
    """Whether a checkpoint with weights of these names has the rest in the encoder: adapters, words in use."""
    return any(".lora_" in name or name.endswith(".table.weight") for name in checkpoint)
