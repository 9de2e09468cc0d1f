"""What a study needs is looked for before Ray starts."""

from __future__ import annotations

from dataclasses import asdict

from search.space import Space


def preflight(space: Space) -> None:
    """Everything a study needs is there.

    Raises: DataError, EncoderError or what the method's own preflight raises, naming what was looked for, where, and
        what to do.
    """
    from trainables.contract.registry import declared
    from trainables.data.sets import check_data
    from trainables.encoders.locate import check_encoder

    method = declared(space.method)
    spec = {
        "method": space.method,
        "encoder": space.encoder,
        "data": asdict(space.data),
        "metric": space.metric.name,
        "params": space.base,
    }
    check_data(spec)
    check_encoder(space.encoder, method.encoders)
    if method.preflight is not None:
        method.preflight(spec)
