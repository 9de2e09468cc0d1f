"""A GCLSR of test size, for tests that train every method."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from trainables.methods.gclsr import network as textcnn

NARROW = 64


@pytest.fixture(scope="module")
def narrow_projector() -> Iterator[None]:
    """GCLSR's projector and predictor have 64 values instead of 4,096.

    Its 42 million weights would be most of what the tests of all methods compute; its own tests and goldens have them.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textcnn, "Projector", partial(textcnn.Projector, hidden=NARROW, out=NARROW))
        patch.setattr(textcnn, "Predictor", partial(textcnn.Predictor, width=NARROW, hidden=NARROW))
        yield
