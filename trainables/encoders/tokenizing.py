"""Checking a tokenizer and its template of special tokens; appending the end token that decoders' tokenizers omit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainables.contract.errors import DataError, EncoderError
from trainables.data.tokens import Encode, tokenizer_encoder


@dataclass(frozen=True)
class Template:
    """Ids around a single sentence, such as [CLS] and [SEP]; end_token: text of an end token appended here, or ""."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]
    end_token: str = ""


def template_of(source: str, tokenizer: Any, is_causal: Callable[[Template], bool]) -> Template:
    """Ids before and after a single sentence.

    A tokenizer that adds nothing after a sentence of a causal encoder gets its end token appended, also when it is
    saved, so that every sentence ends in the same token.

    Args: is_causal: whether the encoder's first token does not see the whole sentence; called only if needed.
    Raises: EncoderError if the tokenizer changes a sentence among special tokens, or puts no token around one.
    """
    prefix, suffix = _around(source, tokenizer)
    if suffix or not is_causal(Template(prefix, suffix)):
        if not prefix and not suffix:
            raise EncoderError(
                f"encoder {source!r}: its tokenizer puts no token around a sentence; pooling needs one, as BERT's [CLS]"
            )
        return Template(prefix, suffix)
    if tokenizer.eos_token_id is None or getattr(tokenizer, "backend_tokenizer", None) is None:
        raise EncoderError(f"encoder {source!r}: its tokenizer ends no sentence and has no end token to append")
    _append(tokenizer, prefix, tokenizer.eos_token_id)
    found = _around(source, tokenizer)
    if found != (prefix, (tokenizer.eos_token_id,)):
        raise EncoderError(f"encoder {source!r}: its tokenizer takes no end token {tokenizer.eos_token}")
    return Template(*found, end_token=tokenizer.eos_token)


def make_padding(source: str, tokenizer: Any, pad: int | None) -> None:
    """Make a tokenizer, and its export, pad and truncate at the right end, and give it a padding token.

    Padding at the left would change vectors where positions are counted from the first token of the row.

    Args: pad: the id in the encoder's configuration, used if it is a special token; else any special token serves,
        since it is masked.
    Raises: EncoderError if a tokenizer without padding token has no other special token.
    """
    for side in ("padding_side", "truncation_side"):
        setattr(tokenizer, side, "right")
        tokenizer.init_kwargs[side] = "right"  # else a class's own default is not saved
    if tokenizer.pad_token_id is not None:
        return
    special = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    known = (tokenizer.eos_token, tokenizer.sep_token, tokenizer.unk_token, *special.values())
    found = special.get(-1 if pad is None else pad) or next((token for token in known if token is not None), None)
    if found is None:
        raise EncoderError(f"encoder {source!r}: its tokenizer has no padding token and no other special token to take")
    tokenizer.pad_token = found


def check_tokenizer(source: str, folder: Path, tokenizer: Any, embeddings: int) -> None:
    """Check that the tokenizer is the encoder's own: the library makes an empty one where a folder has none.

    Special tokens without an embedding, as for images, are allowed where no sentence gets one (see `encoder_of`).

    Raises: EncoderError.
    """
    files = [name for name in tokenizer.vocab_files_names.values() if name]
    if files and not any((folder / name).is_file() for name in files):
        raise EncoderError(f"encoder {source!r}: {folder} has no tokenizer; expected one of {', '.join(files)} in it")
    beyond = _beyond(tokenizer, embeddings)
    if not embeddings / 2 <= len(tokenizer) <= embeddings + len(beyond):
        raise EncoderError(
            f"encoder {source!r}: its tokenizer and its weights do not belong together: {len(tokenizer):,} tokens for "
            f"{embeddings:,} embeddings; save both from the same model"
        )
    needed = [getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "cls", "sep", "unk", "pad", "mask")]
    if used := [beyond[i] for i in (*needed, *tokenizer("a")["input_ids"]) if i in beyond]:
        raise EncoderError(
            f"encoder {source!r}: its tokenizer uses {used[0]}, for which its weights have no embedding; "
            "save both from the same model"
        )


def encoder_of(source: str, tokenizer: Any, embeddings: int) -> Encode:
    """Texts -> token ids without special tokens.

    Calling it raises DataError for a text with a token that has no embedding.
    """
    encode, beyond = tokenizer_encoder(tokenizer), _beyond(tokenizer, embeddings)
    if not beyond:
        return encode

    def checked(texts: Sequence[str]) -> Iterator[Sequence[int]]:
        for text, ids in zip(texts, encode(texts), strict=True):
            if unknown := beyond.keys() & set(ids):
                raise DataError(
                    f"encoder {source!r} has no embedding for {beyond[min(unknown)]}, which stands in a text: "
                    f"{text[:60]!r}; take it out of the data"
                )
            yield ids

    return checked


def _beyond(tokenizer: Any, embeddings: int) -> dict[int, str]:
    """The special tokens without an embedding, by their ids."""
    added = tokenizer.added_tokens_decoder.items()
    return {i: str(token) for i, token in added if token.special and i >= embeddings}


def _around(source: str, tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    full = tokenizer("a")["input_ids"]
    for start in range(len(full) - len(bare) + 1):
        if bare and full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise EncoderError(
        f"encoder {source!r}: its tokenizer changes a sentence among its special tokens ({full}, {bare})"
    )


def _append(tokenizer: Any, prefix: tuple[int, ...], end: int) -> None:
    from tokenizers.processors import TemplateProcessing

    if hasattr(tokenizer, "add_eos_token"):
        tokenizer.add_eos_token = True
    names = [(tokenizer.convert_ids_to_tokens(i), i) for i in dict.fromkeys((*prefix, end))]
    before = "".join(f"{tokenizer.convert_ids_to_tokens(i)} " for i in prefix)
    after = tokenizer.convert_ids_to_tokens(end)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{before}$A {after}", pair=f"{before}$A {after} $B:1 {after}:1", special_tokens=names
    )
