"""The shapes and dtypes of what an agent returns, checked before anything is computed."""

from __future__ import annotations

from typing import Any, Literal

import jax
import numpy as np

from sebulba.agents import distributions
from sebulba.agents.reference import zero_timestep
from sebulba.envs.previous_action import action_array
from sebulba.types import ActorOutput, Agent, ArrayTree, BoxSpec, DiscreteSpec, EnvSpec, State
from sebulba.validation import ConfigError

Needs = Literal["policy", "values", "any"]
"""What a learner takes from an agent. policy: extras with the fields of ``Behavior``, and outputs
with those of ``PolicyValue``; values: Q values in both; any: what it likes."""


def refusal(agent: Agent, what: str, rule: str) -> ConfigError:
    """The error that says what an agent does, and the rule that this breaks."""
    return ConfigError(f"{type(agent).__name__}: {what}; {rule}.")


def check_forms(agent: Agent, spec: EnvSpec, needs: Needs) -> None:
    """Check the structures, shapes and dtypes of all that ``agent`` returns.

    Args:
      agent: of the user's own.
      spec: of the environments of one actor.
      needs: what the learner takes from it.

    Raises:
      ConfigError: one is other than the learner needs.
    """
    if isinstance(agent, type):
        name = agent.__name__
        raise ConfigError(f"agent is the class {name}: it must be an object, such as {name}(...).")
    batch = spec.num_envs
    length = 4 if batch == 3 else 3  # Not the same number, or swapped axes would not be noticed.
    for method in ("init", "initial_state", "act", "unroll"):
        if not callable(getattr(agent, method, None)):
            what = f"{method} is {getattr(agent, method, 'missing')}"
            raise refusal(agent, what, "it must be a function, as sebulba.Agent says")
    try:
        params = jax.eval_shape(agent.init, jax.random.key(0))
        state = jax.eval_shape(lambda: agent.initial_state(batch))
        one, several = zero_timestep(spec, (batch,)), zero_timestep(spec, (length, batch))
        acted, after = jax.eval_shape(agent.act, params, jax.random.key(0), one, state)
        outputs, last = jax.eval_shape(agent.unroll, params, several, state)
    except Exception as error:
        error.add_note(
            f"in {type(agent).__name__}, for observations as {spec.observation}. They hold the "
            "last action too if the agent has an attribute observes_last_action = True."
        )
        raise
    if not isinstance(acted, ActorOutput):
        what = f"act returns a {type(acted).__name__} and a state"
        raise refusal(agent, what, "the first must be a sebulba.ActorOutput of action and extras")
    _check_state(agent, "act", after, state)
    _check_state(agent, "unroll", last, state)
    told = action_array(spec.action)
    _check(agent, "the action of act", acted.action, (batch, *told.shape), told.dtype)
    _check_lead(agent, "the extras of act", acted.extras, (batch,))
    _check_lead(agent, "the outputs of unroll", outputs, (length, batch))
    if needs == "policy":
        _check_policy(agent, spec, acted, outputs, (length, batch))
    elif needs == "values":
        if not isinstance(spec.action, DiscreteSpec):
            what = f"its environment's action is {spec.action}"
            raise refusal(agent, what, "Q-learning takes the best of one discrete action")
        lead, size = (length, batch), spec.action.num_actions
        _check(agent, "the extras of act", acted.extras, (batch, size), np.float32)
        _check(agent, "the output of unroll", outputs, (*lead, size), np.float32)


def _check_policy(
    agent: Agent, spec: EnvSpec, acted: ActorOutput, outputs: Any, lead: tuple[int, int]
) -> None:
    extras, batch = acted.extras, lead[1:]
    _check_fields(agent, "the extras of act", extras, ("log_prob", "raw"), "Behavior")
    _check_fields(agent, "the output of unroll", outputs, ("policy", "value"), "PolicyValue")
    size = distributions.make(spec.action, "clip").parameters_size
    raw = (size // 2,) if isinstance(spec.action, BoxSpec) else acted.action.shape[1:]
    _check(agent, "log_prob in the extras of act", extras.log_prob, batch, np.float32)
    _check(agent, "raw in the extras of act", extras.raw, (*batch, *raw), acted.action.dtype)
    _check(agent, "policy in the output of unroll", outputs.policy, (*lead, size), np.float32)
    _check(agent, "value in the output of unroll", outputs.value, lead, np.float32)


def _check_fields(agent: Agent, name: str, holder: Any, fields: tuple[str, str], like: str) -> None:
    missing = [field for field in fields if not hasattr(holder, field)]
    if missing:
        what = f"{name} is a {type(holder).__name__} without {' and '.join(missing)}"
        raise refusal(agent, what, f"the learner reads both {fields}, as in a sebulba.{like}")


def _check_state(agent: Agent, method: str, state: State, told: State) -> None:
    if _form(state) != _form(told):
        what = f"the state of {method} is {_form(state)}, and that of initial_state {_form(told)}"
        raise refusal(agent, what, "both must have the same structure, shapes and dtypes")


def _check_lead(agent: Agent, name: str, tree: ArrayTree, lead: tuple[int, ...]) -> None:
    for leaf in jax.tree.leaves(tree):
        if leaf.shape[: len(lead)] != lead:
            axes = "[B, ...]" if len(lead) == 1 else "[T, B, ...]"
            what = f"{name} has an array of shape {list(leaf.shape)}"
            raise refusal(agent, what, f"each must be {axes}, which is {list(lead)} here, and more")


def _check(agent: Agent, name: str, array: Any, shape: tuple[int, ...], dtype: Any) -> None:
    wanted = f"{np.dtype(dtype)}{list(shape)}"
    if _form(array) != wanted:
        raise refusal(agent, f"{name} is {_form(array)}", f"it must be {wanted}")


def _form(tree: Any) -> str:
    """Structure, shapes and dtypes in words."""
    forms = jax.tree.map(lambda leaf: f"{leaf.dtype}{list(leaf.shape)}", tree)
    return str(forms).replace("'", "")
