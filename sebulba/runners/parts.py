"""What a run is made of."""

from __future__ import annotations

from typing import NamedTuple

from sebulba.config import Config
from sebulba.devices.topology import Topology
from sebulba.inference import Exploration
from sebulba.learners import Learner
from sebulba.types import Agent, EnvSpec, MakeEnv


class Parts(NamedTuple):
    """What a run is made of.

    Attributes:
      config: lengths, seeds and intervals.
      topology: which devices act and which learn.
      make_env: ``make_env(num_envs, seed)``, the environments of one actor.
      spec: of the environments of one actor.
      agent: acts.
      learner: updates the agent's parameters.
      exploration: of the environments of all hosts; None if the policy explores by itself.
      unrolls_per_turn: unrolls that the learner takes on each host in one turn.
    """

    config: Config
    topology: Topology
    make_env: MakeEnv
    spec: EnvSpec
    agent: Agent
    learner: Learner
    exploration: Exploration | None
    unrolls_per_turn: int
