"""What a run is made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from sebulba.agents.check import AgentCheck
from sebulba.config import Config
from sebulba.devices.topology import Topology
from sebulba.inference import Exploration
from sebulba.learners import Learner
from sebulba.runners.evaluation import Evaluator
from sebulba.types import Agent, EnvSpec, MakeEnv

if TYPE_CHECKING:
    from sebulba.remote.listener import Listener


class Remote(NamedTuple):
    """What a run with remote lanes has besides.

    Attributes:
      listener: takes the connections of env-hosts.
      make_env: ``make_env(lane)(num_envs, seed)``, the environments of one lane.
      min_lanes: how many must be connected before learning starts.
    """

    listener: Listener
    make_env: Callable[[int], MakeEnv]
    min_lanes: int


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
      remote: None without remote lanes.
      evaluator: plays episodes while training goes on; None where ``config`` wants none.
      check: of the agent's first unroll; None for the library's own agents.
    """

    config: Config
    topology: Topology
    make_env: MakeEnv
    spec: EnvSpec
    agent: Agent
    learner: Learner
    exploration: Exploration | None
    unrolls_per_turn: int
    remote: Remote | None = None
    evaluator: Evaluator | None = None
    check: AgentCheck | None = None
