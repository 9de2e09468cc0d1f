"""What a worker group and a trial's process say to each other goes through an actor.

In a file of its own, free of torch and Ray Train: the actor's process imports this module and would load them too.
"""

from __future__ import annotations

import asyncio
import contextlib

from trainables.contract.trial import Verdict
from trainables.on_ray.host import Message


class Mailbox:
    """An asyncio actor: specs and verdicts one way, messages the other. All waiting happens here."""

    def __init__(self) -> None:
        self._specs: list[Message | None] = []
        self._posted = asyncio.Condition()
        self._messages: asyncio.Queue[Message] = asyncio.Queue()
        self._verdicts: asyncio.Queue[Verdict] = asyncio.Queue()

    async def post(self, spec: Message | None) -> None:
        """The next trial for every worker; None ends the group."""
        async with self._posted:
            self._specs.append(spec)
            self._posted.notify_all()

    async def spec(self, number: int) -> Message | None:
        """Trial `number` of this group, as soon as it is posted."""
        async with self._posted:
            await self._posted.wait_for(lambda: len(self._specs) > number)
            return self._specs[number]

    async def send(self, message: Message) -> None:
        await self._messages.put(message)

    async def receive(self, timeout_s: float) -> Message | None:
        """The next message of the group, or None after `timeout_s` seconds."""
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self._messages.get(), timeout_s)
        return None

    async def answer(self, verdict: Verdict) -> None:
        await self._verdicts.put(verdict)

    async def verdict(self) -> Verdict:
        return await self._verdicts.get()
