"""`python -m trainables.encoders.measure FOLDER`: an encoder's facts for a process that is to stay without torch."""

from __future__ import annotations

import json
import sys

from trainables.contract.errors import EncoderError
from trainables.encoders.facts import EncoderFacts, stored
from trainables.encoders.load import load_encoder


def main(folder: str) -> int:
    """Print the facts as one line of JSON."""
    try:
        facts: EncoderFacts | str = load_encoder(folder).facts
    except EncoderError as error:
        facts = str(error)
    print(json.dumps(stored(facts)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
