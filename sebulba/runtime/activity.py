"""What each thread of a run is doing, and since when."""

from __future__ import annotations

import time

OTHERS = "the devices or other hosts"
"""What the learner waits for when it waits for results of the devices."""
EVALUATION = "evaluation"
"""Name of the thread that evaluates while training goes on."""


class Activity:
    """What one thread is doing; any other thread may read it.

    Attributes:
      doing: a phrase after "has been", such as "stepping its environments".
      since: when it began to, on the clock of ``time.monotonic``.
      waits_for: name of the thread that it waits for, or ``OTHERS``; "" if it waits for neither.
      files: whether it waits for files to be read or written, which takes as long as it takes.
      idle: whether it has nothing to do, which it may have for ever.
    """

    __slots__ = ("doing", "files", "idle", "since", "waits_for")

    def __init__(self) -> None:
        self.set("starting")

    def set(self, doing: str, waits_for: str = "", files: bool = False, idle: bool = False) -> None:
        """Note what this thread does from now on."""
        self.since = time.monotonic()
        self.doing, self.waits_for, self.files, self.idle = doing, waits_for, files, idle

    def seconds(self) -> float:
        """How long it has been doing this."""
        return time.monotonic() - self.since

    def __str__(self) -> str:
        return f"has been {self.doing} for {self.seconds():.0f} s"


class Activities:
    """Those of the threads of one run.

    Attributes:
      learner: of the thread that trains.
      evaluation: of the thread that evaluates.
      actors: those of the actors, by the name of their thread.
    """

    def __init__(self) -> None:
        self.learner = Activity()
        self.evaluation = Activity()
        self.evaluation.set("idle", idle=True)
        self.actors: dict[str, Activity] = {}

    def of_actor(self, name: str) -> Activity:
        """A new activity for the actor whose thread is called ``name``."""
        return self.actors.setdefault(name, Activity())

    def describe(self) -> str:
        """A line for each thread."""
        named = {"the learner": self.learner, **self.actors}
        if not self.evaluation.idle:
            named["the evaluation"] = self.evaluation
        return "\n".join(f"  {name} {activity}" for name, activity in named.items())

    def culprit(self) -> str:
        """The thread that stands still, or that the learner waits for, and what it does."""
        if not self.evaluation.idle and self.evaluation.since < self.learner.since:
            return f"the evaluation {self.evaluation}"
        actor = self.actors.get(self.learner.waits_for)
        if actor is not None:
            return f"{self.learner.waits_for} {actor}"
        return f"the learner {self.learner}"
