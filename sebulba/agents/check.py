"""A check of agents: ``unroll`` computes again what ``act`` did, and both obey ``first``."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from sebulba.agents import distributions
from sebulba.agents.forms import Needs, refusal
from sebulba.envs.contract import check_action
from sebulba.types import (
    ActorOutput,
    Agent,
    ArrayTree,
    BoxSpec,
    EnvSpec,
    Params,
    State,
    Timestep,
    Unroll,
)

TOLERANCE = 0.03
"""How far two results may be apart, absolutely and as a share: bfloat16 has 8 bits."""
_PROBED = 8
"""Steps that are computed with other parameters. Over more, rounding errors might grow."""

_ZERO = "must zero the recurrent state where timestep.first, before it uses the state"
_SAME = (
    "unroll must compute what act did, from the same parameters, timesteps and state, or the "
    "learner takes another policy for the one that acted. Let both call one function. An agent in "
    "which they differ on purpose, as with dropout, has an attribute is_replayed_exactly = False"
)


class _Pair(NamedTuple):
    """Two results that must be the same, ``[T, B, ...]``."""

    one: jax.Array
    other: jax.Array


Pairs = dict[str, _Pair]


class _Probed(NamedTuple):
    """What parameters other than the first ones show, which may hide it: policies begin uniform.

    Attributes:
      act_begins: states after the first step of an episode, from zeros and from another state.
      unroll_begins: outputs of two episodes, both from zeros, and both from another state.
      raw: the actions, and the samples whose probability is given.
      last_state: after ``act`` in each step, and after ``unroll``.
      said: what ``act`` says, and what ``unroll`` computes.
    """

    act_begins: Pairs
    unroll_begins: Pairs
    raw: Pairs
    last_state: Pairs
    said: Pairs


_RULES = {
    "act_begins": ("after zeros", "after another state, where an episode starts,", f"act {_ZERO}"),
    "unroll_begins": (
        "after zeros",
        "after another state, where an episode starts,",
        f"unroll {_ZERO}",
    ),
    "raw": ("that acts", "by raw in the extras", "for discrete actions, both must be the same"),
    "last_state": ("after act", "after unroll", _SAME),
    "said": ("as act says", "as unroll computes it", _SAME),
}


class AgentCheck:
    """Checks the first unroll of one agent; ``check_forms`` comes before."""

    def __init__(self, agent: Agent, spec: EnvSpec, needs: Needs) -> None:
        """Nothing is computed yet.

        Args:
          agent: of the user's own.
          spec: of the environments of one actor.
          needs: what the learner takes from it.
        """
        self._agent = agent
        self._spec = spec
        self._needs = needs
        # The probability of a raw sample does not depend on how it is squashed.
        self._distribution = distributions.make(spec.action, "clip")
        self._act = jax.jit(self._acts)
        self._unroll = jax.jit(agent.unroll)
        self._pair = jax.jit(self._said)

    def __call__(self, params: Params, unroll: Unroll) -> None:
        """Check all shards of an unroll.

        Args:
          params: those that acted, on any device of this host.
          unroll: as it comes from an actor.

        Raises:
          ConfigError: the agent breaks a rule. The message says which, where and by how much.
        """
        for number, shard in enumerate(unroll.shards):
            actions = np.asarray(shard.actor.action)
            offset = number * actions.shape[1]
            for step, action in enumerate(actions):
                when = f"in lane {unroll.lane}, step {step}"
                check_action(action, self._spec.action, when, offset)
            if not getattr(self._agent, "is_replayed_exactly", True):
                continue
            (device,) = shard.timestep.first.devices()
            here = jax.device_put(params, device)
            if number == 0:
                with jax.default_matmul_precision("highest"):
                    self._check_probed(here, jax.device_get(shard.timestep), unroll.lane)
            outputs, _ = self._unroll(here, shard.timestep, shard.initial_state)
            said = self._pair(shard.actor, _slice(outputs, 0, len(actions)))
            self._compare(said, "said", (unroll.lane, 0, offset))

    def _check_probed(self, params: Params, timesteps: Timestep, lane: int) -> None:
        """Check the first steps of ``timesteps`` ``[T+1, B]`` in NumPy, with other parameters."""
        random = np.random.default_rng(0)
        params = jax.tree.map(lambda leaf: _moved(leaf, random), params)
        length = min(_PROBED, timesteps.first.shape[0] - 1)
        steps = _starting(_slice(timesteps, 0, length), 0)
        zeros = self._agent.initial_state(timesteps.first.shape[1])
        other = jax.tree.map(lambda leaf: _arbitrary(leaf, random), zeros)
        self._check_advances(params, steps, other)
        probed = self._probed(params, steps, zeros, other)
        for name in _RULES:
            where = (lane, length - 1 if name == "last_state" else 0, 0)
            self._compare(getattr(probed, name), name, where, ", with parameters moved at random")

    def _check_advances(self, params: Params, steps: Timestep, other: State) -> None:
        states, _ = jax.device_get(self._act(params, _starting(steps, 0, False), other))
        leaves = zip(jax.tree.leaves(other), jax.tree.leaves(states), strict=True)
        still = [np.array_equal(leaf, after[0]) for leaf, after in leaves]
        if still and all(still):
            what = "act returns the recurrent state that it gets, whatever it is"
            raise refusal(self._agent, what, "it must return the next one")

    def _probed(self, params: Params, steps: Timestep, zeros: State, other: State) -> _Probed:
        length = steps.first.shape[0]
        states, acted = jax.device_get(self._act(params, steps, zeros))
        states_of_other, _ = jax.device_get(self._act(params, steps, other))
        outputs, last = jax.device_get(self._unroll(params, steps, zeros))
        # One episode, and then another one that starts in the middle of the unroll.
        middle = length // 2
        second = jax.tree.map(lambda leaf: np.roll(leaf, -middle, axis=0), steps)
        rest, _ = jax.device_get(self._unroll(params, _starting(second, 0), zeros))
        both, _ = self._unroll(params, _starting(steps, middle), other)
        each = jax.tree.map(
            lambda a, b: np.concatenate([a[:middle], b[: length - middle]]), outputs, rest
        )
        last_of_unroll = jax.tree.map(lambda leaf: leaf[None], last)
        return _Probed(
            act_begins=_pairs("state", _slice(states, 0, 1), _slice(states_of_other, 0, 1)),
            unroll_begins=_pairs("output of unroll", each, both),
            raw=self._raw(acted),
            last_state=_pairs("state", _slice(states, length - 1, length), last_of_unroll),
            said=self._pair(acted, outputs),
        )

    def _acts(self, params: Params, steps: Timestep, state: State) -> tuple[State, ActorOutput]:
        """The state after ``act`` in each step, and what it returned, ``[T, B, ...]``."""

        def act(state: State, timestep: Timestep) -> tuple[State, tuple[State, ActorOutput]]:
            output, state = self._agent.act(params, jax.random.key(0), timestep, state)
            return state, (state, output)

        return jax.lax.scan(act, state, steps)[1]

    def _compare(self, pairs: Pairs, rule: str, where: tuple[int, int, int], how: str = "") -> None:
        """Refuse the agent if two results differ; ``where``: lane, first step and environment."""
        lane, first_step, first_env = where
        for name, (one, other) in jax.device_get(pairs).items():
            apart = _apart(one, other)
            if not apart.any():
                continue
            step, env, *_ = index = np.unravel_index(np.argmax(apart), apart.shape)
            values = float(one[index]), float(other[index])
            as_one, as_other, says = _RULES[rule]
            what = (
                f"the {name} is {values[0]:.6g} {as_one} and {values[1]:.6g} {as_other} "
                f"({abs(values[0] - values[1]):.3g} apart in lane {lane}, step "
                f"{first_step + step}, environment {first_env + env}{how})"
            )
            raise refusal(self._agent, what, says)

    def _said(self, acted: ActorOutput, outputs: Any) -> Pairs:
        """What both extras and outputs ``[T, B, ...]`` tell, as far as it is known."""
        extras = acted.extras
        if hasattr(extras, "log_prob") and hasattr(extras, "raw") and hasattr(outputs, "policy"):
            if outputs.policy.shape[-1] != self._distribution.parameters_size:
                return {}  # A distribution of the user's own.
            log_prob = self._distribution.log_prob(outputs.policy, extras.raw)
            return {"log-probability of the action": _Pair(extras.log_prob, log_prob)}
        if jax.tree.map(jnp.shape, extras) != jax.tree.map(jnp.shape, outputs):
            return {}
        return _pairs("Q value" if self._needs == "values" else "output", extras, outputs)

    def _raw(self, acted: ActorOutput) -> Pairs:
        if self._needs != "policy" or isinstance(self._spec.action, BoxSpec):
            return {}
        return {"action": _Pair(acted.action, acted.extras.raw)}


def _slice(tree: ArrayTree, start: int, end: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[start:end], tree)


def _starting(timesteps: Timestep, step: int, first: bool = True) -> Timestep:
    """``timesteps``, in NumPy, with a new episode everywhere in ``step``, or nowhere."""
    changed = np.array(timesteps.first)
    changed[step] = first
    return timesteps._replace(first=changed)


def _pairs(name: str, one: ArrayTree, other: ArrayTree) -> Pairs:
    """A pair for each array; ``name`` is what an array is called."""
    leaves, others = (jax.tree_util.tree_leaves_with_path(tree) for tree in (one, other))
    pairs = zip(leaves, others, strict=True)
    return {name + jax.tree_util.keystr(path): _Pair(a, b) for (path, a), (_, b) in pairs}


def _moved(leaf: Any, random: np.random.Generator) -> Any:
    """Parameters farther from 0, but of the same sign: so no variance becomes negative."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    # As initializers do, so that the outputs of a layer are about as large as its inputs.
    size = max(1, int(np.prod(leaf.shape[:-1]))) if leaf.ndim > 1 else 10
    side = np.where(leaf == 0, random.choice([-1, 1], leaf.shape), np.sign(leaf))
    far = random.random(leaf.shape) / np.sqrt(size)
    return jax.device_put((np.asarray(leaf) + side * far).astype(leaf.dtype), leaf.sharding)


def _arbitrary(leaf: Any, random: np.random.Generator) -> Any:
    """Random numbers in the form of an array of the state."""
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        return jnp.asarray(random.normal(size=leaf.shape), leaf.dtype)
    if jnp.issubdtype(leaf.dtype, jnp.integer) or leaf.dtype == jnp.bool_:
        return jnp.asarray(random.integers(0, 2, leaf.shape), leaf.dtype)
    return leaf  # A key of jax.random, say.


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """How far two results are apart where that is too far, and 0 elsewhere."""
    left, right = np.asarray(one, np.float64), np.asarray(other, np.float64)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
        far = ~(apart <= TOLERANCE * (1 + np.abs(left)))
    # What is not finite on both sides, with parameters that nobody chose, proves nothing.
    far &= np.isfinite(left) | np.isfinite(right)
    return np.where(far, np.nan_to_num(apart, nan=np.inf), 0)
