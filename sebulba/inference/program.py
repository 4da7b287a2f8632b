"""The program of the inference device: one call for each step, and one for each unroll."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from sebulba.types import (
    ActorOutput,
    Agent,
    ArrayTree,
    EnvSpec,
    Params,
    State,
    Timestep,
    Trajectory,
)

Explore = Callable[[jax.Array, ActorOutput, ArrayTree], ActorOutput]
"""``explore(key, output, exploration)`` returns the agent's output with some actions replaced."""


class Carry(NamedTuple):
    """The state of an actor on the inference device, which each call donates and returns.

    Attributes:
      timesteps: ``[T+1, B, ...]``, of which the first ``t`` are written.
      outputs: ``[T, B, ...]``, of which the first ``t`` are written.
      initial_state: the recurrent state at the start of this unroll, ``[B, ...]``.
      state: the recurrent state now, ``[B, ...]``.
      t: int32 ``[]``, the next step of the unroll.
      unroll: int32 ``[]``, the number of the unroll, from which its random keys are derived.
      key: the actor's key, which never changes.
    """

    timesteps: Timestep
    outputs: ActorOutput
    initial_state: State
    state: State
    t: jax.Array
    unroll: jax.Array
    key: jax.Array


class ActorProgram:
    """The compiled functions that all actors of a host share.

    ``start`` returns the first ``Carry``. ``step`` writes the timestep into the trajectory, acts,
    explores and writes the output, all in one call of XLA. ``finish`` writes the last timestep,
    cuts the trajectory along B into equal shards, one for each learner device, and starts the next
    unroll.
    """

    def __init__(
        self,
        agent: Agent,
        spec: EnvSpec,
        unroll_length: int,
        learners: Sequence[jax.Device],
        explore: Explore | None = None,
    ) -> None:
        """Make the functions; ``warm_up`` compiles them.

        Args:
          agent: the agent that acts.
          spec: of the environments of one actor.
          unroll_length: T.
          learners: this host's learner devices, whose number must divide ``spec.num_envs``.
          explore: replaces some of the agent's actions; None for none.
        """
        self._agent = agent
        self.spec = spec
        self.unroll_length = unroll_length
        self.learners = tuple(learners)
        self._explore = explore
        self.start = jax.jit(self._start)
        # Donated, so that the buffers of the trajectory are written in place and not copied.
        self.step = jax.jit(self._step, donate_argnames="carry")
        self.finish = jax.jit(self._finish, donate_argnames="carry")

    def warm_up(self, params: Params, exploration: ArrayTree, device: jax.Device) -> None:
        """Compile for ``device`` now. Its actors would otherwise do so all at the same time."""
        shapes = self._timestep_shapes()
        timestep = jax.tree.map(lambda leaf: np.zeros(leaf.shape[1:], leaf.dtype), shapes)
        # On the device as in `Actor`: jit compiles anew for arguments that are placed otherwise.
        key, unroll, exploration = jax.device_put(
            (jax.random.key(0), np.int32(0), exploration), device
        )
        carry = self.start(params, key, unroll)
        _, carry = self.step(params, carry, timestep, exploration)
        jax.block_until_ready(self.finish(carry, timestep))

    def _start(self, params: Params, key: jax.Array, unroll: jax.Array) -> Carry:
        # `_fresh` only needs the shapes of the buffers.
        return _fresh(
            Carry(
                timesteps=self._timestep_shapes(),
                outputs=self._output_shapes(params),
                initial_state=(),
                state=self._agent.initial_state(self.spec.num_envs),
                t=jnp.zeros((), jnp.int32),
                unroll=unroll,
                key=key,
            )
        )

    def _step(
        self, params: Params, carry: Carry, timestep: Timestep, exploration: ArrayTree
    ) -> tuple[jax.Array, Carry]:
        # Keys follow from counts alone, so a resumed run needs no keys from the checkpoint.
        key = jax.random.fold_in(jax.random.fold_in(carry.key, carry.unroll), carry.t)
        output, state = self._agent.act(params, key, timestep, carry.state)
        if self._explore is not None:
            output = self._explore(jax.random.fold_in(key, 1), output, exploration)
        carry = carry._replace(
            timesteps=_write(carry.timesteps, timestep, carry.t),
            outputs=_write(carry.outputs, output, carry.t),
            state=state,
            t=carry.t + 1,
        )
        return output.action, carry

    def _finish(self, carry: Carry, timestep: Timestep) -> tuple[list[Trajectory], Carry]:
        # Here t == T: this is the timestep after the last action.
        trajectory = Trajectory(
            _write(carry.timesteps, timestep, carry.t), carry.outputs, carry.initial_state
        )
        shards = cut(trajectory, len(self.learners))
        return shards, _fresh(carry._replace(unroll=carry.unroll + 1))

    def _timestep_shapes(self) -> Timestep:
        lead = (self.unroll_length + 1, self.spec.num_envs)

        def stacked(shape: tuple[int, ...], dtype: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(lead + shape, dtype)

        observation = jax.tree.map(
            lambda array: stacked(array.shape, array.dtype),
            self.spec.observation,
        )
        return Timestep(
            observation,
            reward=stacked((), np.float32),
            discount=stacked((), np.float32),
            first=stacked((), np.bool_),
        )

    def _output_shapes(self, params: Params) -> ActorOutput:
        # What an agent puts into its extras is only known from tracing it.
        timestep = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self._timestep_shapes()
        )
        state = jax.eval_shape(lambda: self._agent.initial_state(self.spec.num_envs))
        output, _ = jax.eval_shape(self._agent.act, params, jax.random.key(0), timestep, state)
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((self.unroll_length, *leaf.shape), leaf.dtype),
            output,
        )


def cut(trajectory: Trajectory, num_shards: int) -> list[Trajectory]:
    """Cut a trajectory along B into ``num_shards`` equal trajectories."""
    if num_shards == 1:
        return [trajectory]
    size = trajectory.timestep.first.shape[1] // num_shards

    def shard(index: int, axis: int, tree: ArrayTree) -> ArrayTree:
        return jax.tree.map(
            lambda leaf: lax.slice_in_dim(leaf, index * size, (index + 1) * size, axis=axis), tree
        )

    # B is axis 1 of arrays over time, and axis 0 of the state, which has no time axis.
    return [
        Trajectory(
            shard(index, 1, trajectory.timestep),
            shard(index, 1, trajectory.actor),
            shard(index, 0, trajectory.initial_state),
        )
        for index in range(num_shards)
    ]


def _write(buffers: ArrayTree, values: ArrayTree, t: jax.Array) -> ArrayTree:
    """Return ``buffers`` ``[T, ...]`` with ``values`` ``[...]`` at index ``t``, in their dtype."""
    return jax.tree.map(
        lambda buffer, value: lax.dynamic_update_index_in_dim(
            buffer, value.astype(buffer.dtype), t, axis=0
        ),
        buffers,
        values,
    )


def _fresh(carry: Carry) -> Carry:
    """Return ``carry`` with new buffers for the next unroll: the trajectory keeps the old ones."""

    def zeros(tree: ArrayTree) -> ArrayTree:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

    return carry._replace(
        timesteps=zeros(carry.timesteps),
        outputs=zeros(carry.outputs),
        # A copy, so that the two never share a buffer: JAX cannot donate one twice in a call.
        initial_state=jax.tree.map(jnp.copy, carry.state),
        t=jnp.zeros((), jnp.int32),
    )
