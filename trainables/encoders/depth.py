"""Where in an encoder a weight lies: for layers that stay as they are, and for smaller steps further down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

ABOVE = -1  # all blocks
NOT_BY_NAME = {  # depth of what lies outside of the blocks, by model_type, where its name does not tell
    "deberta-v2": {"encoder.LayerNorm": 0, "encoder.conv": 1},  # of relative positions (v3); beside the first block
    "lfm2": {"embedding_norm": ABOVE},
    "xlnet": {"mask_emb": 0},  # of pre-training: never read here
}


def blocks(model: Any) -> list[nn.Module]:
    """The transformer blocks in the order they run; none in a family whose layers share their weights (ALBERT)."""
    layers = model.config.num_hidden_layers
    found = (part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == layers)
    return list(next(found, []))


def depths(model: Any) -> dict[int, int]:
    """Depth of every parameter by its id: 0 = embeddings, n = block n, one more than the blocks = all above them."""
    layers = blocks(model)
    top = len(layers) + 1
    found = {id(p): n for n, block in enumerate(layers, 1) for p in block.parameters()}
    for own, depth in NOT_BY_NAME.get(model.config.model_type, {}).items():
        for name, p in model.named_parameters():
            if f"{name}.".startswith(f"{own}."):
                found[id(p)] = top if depth == ABOVE else depth
    for name, part in model.named_modules():
        for own, p in part.named_parameters(recurse=False):
            embeds = isinstance(part, nn.Embedding) or "embed" in f"{name}.{own}"
            found.setdefault(id(p), 0 if embeds else top)
    return found


def has_weights_above(model: Any) -> bool:
    """Whether weights lie above all blocks, a pooler's aside: a last norm."""
    found, top = depths(model), len(blocks(model)) + 1
    return any(found[id(p)] == top for name, p in model.named_parameters() if not name.startswith("pooler."))


def freeze(model: Any, layers: int) -> None:
    """Let the embeddings and the first `layers` blocks stay as they are."""
    found = depths(model)
    for p in model.parameters():
        if found[id(p)] <= layers:
            p.requires_grad_(False)


def layers_below_top(network: nn.Module) -> dict[int, int]:
    """How many blocks of its encoder lie above a parameter, by its id; 0 of the last block and of what is no encoder's.

    Embeddings lie below all of them.
    """
    found: dict[int, int] = {id(p): 0 for p in network.parameters()}
    for encoder in _encoders(network):
        layers = len(blocks(encoder))
        found |= {key: max(0, layers - depth) for key, depth in depths(encoder).items()}
    return found


def _encoders(part: nn.Module) -> Iterator[nn.Module]:
    """The outermost models of transformers in a network."""
    if hasattr(part, "get_input_embeddings") and hasattr(part, "config"):
        yield part
    else:
        for child in part.children():
            yield from _encoders(child)
