"""The types that all parts of the library share.

Arrays with a time axis are time-major: ``[T, B, ...]``, where ``T`` is the unroll length and ``B``
the number of environments. The names follow Espeholt et al. (2018), "IMPALA", and dm_env.
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
"""Recurrent state: a pytree of arrays ``[B, ...]``, empty if the agent has none."""


class Timestep(NamedTuple):
    """What the environments return at time t. Fields are ``[B, ...]``, or ``[T, B, ...]`` stacked.

    Attributes:
      observation: an array or a dict of arrays.
      reward: float32, the reward for the action before this timestep; 0 where ``first``.
      discount: float32, 0 if that action terminated the episode, otherwise 1, also if it was
        truncated. Gamma is not included: the learner multiplies by it.
      first: bool, whether this is the first timestep of an episode.
    """

    observation: ArrayTree
    reward: Any
    discount: Any
    first: Any


class ActorOutput(NamedTuple):
    """What the agent returned at time t.

    Attributes:
      action: ``[B, ...]``, as the environment takes it.
      extras: what the learner needs to know about the behavior policy (log-probabilities,
        Q values, ...), ``[B, ...]``; ``()`` if it needs nothing.
    """

    action: Any
    extras: ArrayTree


class Trajectory(NamedTuple):
    """The trajectories of B environments: T actions in each, and the T + 1 timesteps around them.

    Attributes:
      timestep: ``[T+1, B, ...]``. The last timestep of one unroll is the first of the next.
      actor: ``[T, B, ...]``. ``actor[t]`` was chosen at ``timestep[t]``; its reward and discount
        are in ``timestep[t + 1]``.
      initial_state: ``[B, ...]``, the recurrent state before ``timestep[0]``.
    """

    timestep: Timestep
    actor: ActorOutput
    initial_state: State


class Histogram(NamedTuple):
    """How many values fell between two edges each.

    Attributes:
      edges: ``[N+1]``, ascending; of the counts of discrete choices, they are half-way between two.
      counts: ``[N]``.
    """

    edges: np.ndarray[Any, Any]
    counts: np.ndarray[Any, Any]


class Unroll(NamedTuple):
    """The trajectories that an actor made at once, on their way to the learner.

    Attributes:
      lane: number of the actor on this host.
      shards: the trajectories cut along B into equal parts, one on each of this host's learner
        devices, in the order of the devices.
      version: number of turns that the learner had completed when it published the parameters
        that acted.
      episodes: (return, length in agent steps) of the episodes that ended during this unroll.
      seconds: how the actor spent the time since its last unroll: ``environment``, ``act``,
        ``transfer`` (to the learner devices), and waiting for ``queue`` and ``params``.
      continues: False for the first one of new environments, after those before were lost.
      actions: which actions were taken, by a name for each of several at once.
    """

    lane: int
    shards: Sequence[Trajectory]
    version: int = 0
    episodes: Sequence[tuple[float, int]] = ()
    seconds: Mapping[str, float] = {}  # Shared by all instances, so it must stay empty.
    continues: bool = True
    actions: Mapping[str, Histogram] = {}


class Agent(Protocol):
    """An agent as pure functions, which are called inside ``jax.jit``.

    They can be written with any network library. An agent may keep statistics of what it observes,
    such as means to normalize by, among its parameters. Then it has two more methods.
    ``measure(params, timesteps, average)`` returns a tree of means over timesteps ``[T, B, ...]``;
    ``average(tree)`` is the mean of a tree over all learner devices. ``absorb(params, before,
    measured)`` returns ``params``, which the optimizer has changed, with the statistics of
    ``before``, which it has not, changed by what was measured.

    An agent whose recurrent state holds nothing but observations, such as stacked frames, may say
    so by an attribute ``has_observed_state`` that is True. PPO and PQN then learn from single
    steps.

    An agent with an attribute ``observes_last_action`` that is True gets observations
    ``{"observation": ..., "last_action": ...}``; see ``envs.PreviousAction``.

    Both ``act`` and ``unroll`` must zero the recurrent state where ``timestep.first``, before they
    use it, so that the learner computes what the actor did when it replays a trajectory from
    ``initial_state``. At the start of a training this is checked, as in ``sebulba.check_agent``,
    unless the agent is the library's own. An agent in which the two differ on purpose, as with
    dropout, has an attribute ``is_replayed_exactly`` that is False.
    """

    def init(self, key: jax.Array) -> Params:
        """Return new random parameters."""

    def initial_state(self, batch_size: int) -> State:
        """Return the recurrent state at the start of an episode: zeros ``[B, ...]``."""

    def act(
        self, params: Params, key: jax.Array, timestep: Timestep, state: State
    ) -> tuple[ActorOutput, State]:
        """Return the actions and the next state; all arguments and results are ``[B, ...]``."""

    def unroll(self, params: Params, timesteps: Timestep, state: State) -> tuple[ArrayTree, State]:
        """Return the network's outputs for ``[T, B, ...]`` timesteps, and the last state.

        ``state`` ``[B, ...]`` is the recurrent state before ``timesteps[0]``.
        """


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape (without the batch axis) and dtype of one array of an observation."""

    # A dataclass and not a NamedTuple, which jax.tree would take apart: specs are leaves.

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class DiscreteSpec(NamedTuple):
    """Discrete actions 0, ..., num_actions - 1, as int32 ``[B]``."""

    num_actions: int


class MultiDiscreteSpec(NamedTuple):
    """Several discrete actions at once, as int32 ``[B, len(num_actions)]``.

    Attributes:
      num_actions: how many values each of them has: number i is 0, ..., num_actions[i] - 1.
    """

    num_actions: tuple[int, ...]


class BoxSpec(NamedTuple):
    """Continuous actions between ``low`` and ``high``, as float32 ``[B, *low.shape]``."""

    low: np.ndarray[Any, np.dtype[np.float32]]
    high: np.ndarray[Any, np.dtype[np.float32]]


ActionSpec = DiscreteSpec | MultiDiscreteSpec | BoxSpec


class EnvSpec(NamedTuple):
    """The observations and actions of a batch of environments.

    Attributes:
      observation: an ``ArraySpec`` or a dict of them.
      action: a ``DiscreteSpec``, a ``MultiDiscreteSpec`` or a ``BoxSpec``.
      num_envs: B.
      frame_skip: frames of the underlying game for each agent step.
      action_names: what each discrete action does, where that is known.
    """

    observation: Any
    action: ActionSpec
    num_envs: int
    frame_skip: int = 1
    action_names: tuple[str, ...] = ()


class EnvsLost(Exception):
    """Raised by ``Env.step`` where the environments are gone, and ``reset`` will make new ones.

    An actor drops its unfinished unroll and its recurrent state, and starts again with ``reset``.
    """


class Env(Protocol):
    """A batch of B environments in NumPy, stepped together and used by one thread only.

    Environments reset themselves: in the step after the end of an episode, an environment ignores
    its action and returns the first timestep of its next episode (``first`` True, reward 0,
    discount 1).
    """

    @property
    def spec(self) -> EnvSpec:
        """Observations, actions and number of environments."""

    def reset(self) -> Timestep:
        """Start a new episode in every environment.

        Called once, before the first step, and again where ``step`` has raised ``EnvsLost``.
        """

    def step(self, action: np.ndarray[Any, Any]) -> Timestep:
        """Apply ``action`` ``[B, ...]`` and returns the next timestep ``[B, ...]``.

        The environment must not write to the returned arrays later: JAX may still read them.

        Raises:
          EnvsLost: the environments are gone; ``reset`` makes new ones.
        """

    def close(self) -> None:
        """Release what the environment holds. May be called more than once."""


MakeEnv = Callable[[int, int], Env]
"""``make_env(num_envs, seed)`` returns the environments of one actor."""
