"""What a study needs is looked for before Ray starts."""

from __future__ import annotations

from dataclasses import asdict

from search.space import Space


def preflight(space: Space) -> list[str]:
    """Everything a study needs is there and its data can be read.

    Returns: what of the data will be left out, a line each.
    Raises: DataError, EncoderError or what the method's own preflight raises, naming what was looked for, where, and
        what to do.
    """
    from trainables.contract.registry import declared
    from trainables.data.checks import check_data
    from trainables.data.token_cache import cache_dir, ready
    from trainables.encoders.locate import check_encoder

    method = declared(space.method)
    spec = {
        "method": space.method,
        "encoder": space.encoder,
        "data": asdict(space.data),
        "metric": space.metric.name,
        "params": space.base,
    }
    ready(cache_dir())
    notes = check_data(spec)
    check_encoder(space.encoder, method.encoders)
    if method.preflight is not None:
        method.preflight(spec)
    return notes
