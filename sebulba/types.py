"""The types that every part of the library passes to every other.

Arrays are time-major wherever they have a time axis: ``[T, B, ...]`` with ``T`` the unroll
length and ``B`` the number of environments. The names are those of Espeholt et al. (2018),
"IMPALA", and of dm_env.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    import jax

ArrayTree = Any
"""Any pytree of arrays."""
Params = Any
"""Network parameters: a pytree of ``jax.Array``."""
State = Any
"""Recurrent state: a pytree of arrays ``[B, ...]``; ``()`` where there is none."""


class Timestep(NamedTuple):
    """What the environment says at time t; every field is ``[B, ...]`` (or ``[T, B, ...]``).

    Attributes:
      observation: array or dict of arrays.
      reward: float32, received on arriving here; 0 where ``first``.
      discount: float32, 0 on termination, else 1 (also on truncation).
      first: bool, this is the first step of an episode.
    """

    observation: ArrayTree
    reward: Any
    discount: Any
    first: Any


class ActorOutput(NamedTuple):
    """What the actor did at time t.

    Attributes:
      action: ``[B, ...]``, in the environment's own terms.
      extras: what the learner needs to know of the behavior policy (its log-probability,
        its Q values, ...), ``[B, ...]``; ``()`` where it needs nothing.
    """

    action: Any
    extras: ArrayTree


class Trajectory(NamedTuple):
    """One unroll of T actions by B environments.

    Attributes:
      timestep: ``[T+1, B, ...]``. The last timestep of one unroll is the first of the next.
      actor: ``[T, B, ...]``. ``actor[t]`` was chosen at ``timestep[t]`` and is judged by the
        reward and discount of ``timestep[t + 1]``.
      initial_state: ``[B, ...]``, the recurrent state before ``timestep[0]``.
    """

    timestep: Timestep
    actor: ActorOutput
    initial_state: State


class Unroll(NamedTuple):
    """One unroll of one actor, on its way to the learner.

    Attributes:
      lane: number of the actor on this host.
      shards: its trajectory cut along B into equal parts, one on each of this host's learner
        devices, in their order.
      version: turns of the learner behind the parameters that acted.
      episodes: (return, length in agent steps) of the episodes that ended in it.
      seconds: the actor's time since its last unroll: ``environment``, ``act``, ``transfer`` (to
        the learner devices), ``queue`` and ``params`` (waiting for either).
    """

    lane: int
    shards: Sequence[Trajectory]
    version: int = 0
    episodes: Sequence[tuple[float, int]] = ()
    seconds: Mapping[str, float] = {}  # Never written to.


class Agent(Protocol):
    """Pure functions of the parameters. Any network library can sit behind them.

    The recurrent state must be zeroed where ``timestep.first``, by both ``act`` and ``unroll``,
    so that replaying a trajectory from ``initial_state`` reproduces what the actor computed.
    """

    def init(self, key: jax.Array) -> Params:
        """Fresh parameters."""

    def initial_state(self, batch_size: int) -> State:
        """The recurrent state at the start of an episode, ``[B, ...]``: zeros."""

    def act(
        self, params: Params, key: jax.Array, timestep: Timestep, state: State
    ) -> tuple[ActorOutput, State]:
        """One action for each of B environments; all arguments and results are ``[B, ...]``."""

    def unroll(self, params: Params, timesteps: Timestep, state: State) -> tuple[ArrayTree, State]:
        """The network's outputs over ``[T, B, ...]`` timesteps, from ``state`` ``[B, ...]``."""


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape (without the batch axis) and dtype of one array of an observation.

    No tuple, so that it is a leaf of the pytree that an observation's specs make.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class DiscreteSpec(NamedTuple):
    """Actions 0 .. num_actions - 1, int32 ``[B]``."""

    num_actions: int


class BoxSpec(NamedTuple):
    """Continuous actions, float32 ``[B, *low.shape]``, between ``low`` and ``high``."""

    low: np.ndarray[Any, np.dtype[np.float32]]
    high: np.ndarray[Any, np.dtype[np.float32]]


class EnvSpec(NamedTuple):
    """What an environment takes and gives.

    Attributes:
      observation: an ``ArraySpec`` or a dict of them.
      action: ``DiscreteSpec`` or ``BoxSpec``.
      num_envs: B.
      frame_skip: frames of the underlying game for each agent step.
    """

    observation: Any
    action: DiscreteSpec | BoxSpec
    num_envs: int
    frame_skip: int = 1


class Env(Protocol):
    """A batch of B environments in NumPy, stepped together and owned by one thread.

    Auto-reset: the step after the end of an episode ignores the action for that environment
    and returns the first timestep of the next episode (``first`` True, reward 0, discount 1).
    """

    @property
    def spec(self) -> EnvSpec:
        """Shapes, dtypes and number of environments."""

    def reset(self) -> Timestep:
        """Start a new episode in every environment; call it once, before the first step."""

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        """Apply ``action`` ``[B, ...]``. The arrays returned are not written to again."""

    def close(self) -> None:
        """Free what the environment holds; may be called more than once."""


MakeEnv = Callable[[int, int], Env]
"""``make_env(num_envs, seed)``: the environments of one actor."""
