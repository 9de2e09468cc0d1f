"""What a builtin sentence means, and how similar two meanings are: the ground truth of the builtin corpora."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from random import Random
from typing import Any

from trainables.data.builtin.lexicon import Concept, of_kinds, pick


@dataclass(frozen=True)
class Frame:
    """The meaning of one sentence. `action` None: the sentence says that the agent has the quality."""

    agent: Concept
    action: Concept | None
    object: Concept | None = None
    quality: Concept | None = None
    description: Concept | None = None
    place: Concept | None = None
    time: Concept | None = None
    reason: Concept | None = None
    negated: bool = False


# How much each slot weighs in the similarity of two frames; who does what to whom counts most.
WEIGHTS = {
    "action": 3.0, "agent": 2.5, "object": 2.5,
    "place": 1.2, "time": 0.8, "reason": 0.8, "quality": 0.8, "description": 0.8,
}  # fmt: skip
CORE = ("action", "agent", "object")
OPTIONAL = {"place": 0.5, "time": 0.4, "reason": 0.2, "quality": 0.35, "description": 0.25}  # slot -> how often filled
SAME_FAMILY = 0.4  # similarity of a doctor and a nurse
UNSAID = 0.5  # of something said in one sentence only
OPPOSITE_POLARITY = 0.5  # factor on the similarity of a sentence and a negated one
STATES = 0.12  # share of sentences without an action
NEGATED = 0.15


def draw(rng: Random) -> Frame:
    """A random frame."""
    negated = rng.random() < NEGATED
    if rng.random() < STATES:
        agent, quality = pick(rng, of_kinds("person")), pick(rng, of_kinds("quality"))
        return Frame(agent, None, quality=quality, negated=negated, **_extras(rng, agent, ("place", "time")))
    action = pick(rng, of_kinds("action"))
    agent = pick(rng, of_kinds(pick(rng, action.agents)))
    frame = Frame(agent, action, _object(rng, action, agent), negated=negated)
    return dataclasses.replace(frame, **_extras(rng, agent, tuple(OPTIONAL)))


def vary(frame: Frame, changes: int, rng: Random) -> Frame:
    """The frame after `changes` random changes of meaning (0 = the same frame); some may undo each other."""
    for _ in range(changes):
        frame = pick(rng, (_change_agent, _change_agent, _change_action, _change_object, _change_optional,
                           _change_optional, _exchange_roles, _negate))(frame, rng)  # fmt: skip
    return frame


def shorten(frame: Frame, rng: Random) -> Frame:
    """The frame without some of its optional slots: what it says still follows from the original."""
    left_out: dict[str, Any] = {
        slot: None for slot in OPTIONAL if rng.random() < 0.5 and not (slot == "quality" and not frame.action)
    }
    return dataclasses.replace(frame, **left_out)


def contradict(frame: Frame, rng: Random) -> Frame:
    """A frame that cannot be true together with this one, most of it unchanged."""
    return pick(rng, (_negate, _change_action, _change_agent, _exchange_roles))(shorten(frame, rng), rng)


def similarity(first: Frame, second: Frame) -> float:
    """How much two frames mean the same, in [0, 1]: 1 for equal frames, 0 when they share nothing."""
    total = shared = 0.0
    for slot, weight in WEIGHTS.items():
        a, b = getattr(first, slot), getattr(second, slot)
        if a is None and b is None:
            continue
        total += weight
        if a is None or b is None:
            shared += weight * (0.0 if slot in CORE else UNSAID * _core_similarity(first, second))
        elif a is b:
            shared += weight
        elif (a.kind, a.family) == (b.kind, b.family):
            shared += weight * SAME_FAMILY
    return shared / total * (1.0 if first.negated == second.negated else OPPOSITE_POLARITY)


def _core_similarity(first: Frame, second: Frame) -> float:
    """Share of equal core slots: what is left unsaid is only compatible if the sentences are about the same event."""
    return sum(getattr(first, slot) is getattr(second, slot) for slot in CORE) / len(CORE)


def _object(rng: Random, action: Concept, agent: Concept) -> Concept | None:
    options = [c for c in of_kinds(*action.objects) if c is not agent]
    return pick(rng, options) if options else None


def _extras(rng: Random, agent: Concept, slots: tuple[str, ...]) -> dict[str, Any]:
    filled = [slot for slot in slots if rng.random() < OPTIONAL[slot]]
    if agent.kind != "person":  # nobody says that a horse is wealthy or wears spectacles
        filled = [slot for slot in filled if slot not in ("quality", "description")]
    if "quality" in filled and "description" in filled:
        filled.remove("description")
    return {slot: pick(rng, of_kinds(slot)) for slot in filled}


def _other(rng: Random, concept: Concept) -> Concept:
    """Another concept of the same kind, of the same family half of the time."""
    others = [c for c in of_kinds(concept.kind) if c is not concept]
    family = [c for c in others if c.family == concept.family]
    return pick(rng, family) if family and rng.random() < 0.5 else pick(rng, others)


def _change_agent(frame: Frame, rng: Random) -> Frame:
    other = _other(rng, frame.agent)
    return frame if other is frame.object else dataclasses.replace(frame, agent=other)


def _change_object(frame: Frame, rng: Random) -> Frame:
    if frame.object is None:
        return _change_agent(frame, rng)
    other = _other(rng, frame.object)
    return frame if other is frame.agent else dataclasses.replace(frame, object=other)


def _change_action(frame: Frame, rng: Random) -> Frame:
    """Another action that the same agent can do to the same object; of a state, another quality."""
    if frame.action is None:
        assert frame.quality is not None
        return dataclasses.replace(frame, quality=_other(rng, frame.quality))
    kind = frame.object.kind if frame.object else None
    others = [
        c
        for c in of_kinds("action")
        if c is not frame.action
        and frame.agent.kind in c.agents
        and (kind in c.objects if kind else not c.objects)
    ]  # fmt: skip
    if not others:
        return _negate(frame, rng)
    family = [c for c in others if c.family == frame.action.family]
    return dataclasses.replace(frame, action=pick(rng, family if family and rng.random() < 0.5 else others))


def _change_optional(frame: Frame, rng: Random) -> Frame:
    slot = pick(rng, ("place", "time") if frame.action is None or frame.agent.kind != "person" else tuple(OPTIONAL))
    value = getattr(frame, slot)
    changed = pick(rng, of_kinds(slot)) if value is None else None if rng.random() < 0.4 else _other(rng, value)
    if changed is not None and slot in ("quality", "description"):  # a sentence has at most one of them
        frame = dataclasses.replace(frame, quality=None, description=None)
    changes: dict[str, Any] = {slot: changed}
    return dataclasses.replace(frame, **changes)


def _negate(frame: Frame, _rng: Random) -> Frame:
    return dataclasses.replace(frame, negated=not frame.negated)


def _exchange_roles(frame: Frame, rng: Random) -> Frame:
    """Who acted is acted on: the same words, another meaning."""
    action, agent, patient = frame.action, frame.agent, frame.object
    if action and patient and patient.kind in action.agents and agent.kind in action.objects:
        return dataclasses.replace(frame, agent=patient, object=agent, quality=None, description=None)
    return _change_object(frame, rng)
