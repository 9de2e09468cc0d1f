"""A GCLSR of test size, for tests that train every method."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from trainables.methods.gclsr import network

NARROW = 64


@pytest.fixture(scope="module")
def narrow_projector() -> Iterator[None]:
    """GCLSR's projector and predictor have 64 values instead of 4,096.

    Its 42 million weights would be most of what the tests of all methods compute; its own tests and goldens have them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "projector", partial(network.projector, hidden=NARROW, out=NARROW))
        patch.setattr(network, "predictor", partial(network.predictor, width=NARROW, hidden=NARROW))
        yield
