"""Acting: actor threads, their program on an inference device, parameters and exploration."""

from __future__ import annotations

from sebulba.inference.actor import Actor, actor_name
from sebulba.inference.episodes import EpisodeTracker
from sebulba.inference.exploration import Exploration, epsilon_ladder, linear_epsilon
from sebulba.inference.params import ParamsSlot, Versioned
from sebulba.inference.program import ActorProgram, Carry, Explore

__all__ = [
    "Actor",
    "ActorProgram",
    "Carry",
    "EpisodeTracker",
    "Exploration",
    "Explore",
    "ParamsSlot",
    "Versioned",
    "actor_name",
    "epsilon_ladder",
    "linear_epsilon",
]
