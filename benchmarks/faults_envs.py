"""Faults of environments: wrong auto-resets, wrong arrays, numbers that are not finite."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from fault import FAULTS, Fault, program
from faults import NOTHING, PARTS

REFUSED = "refused at that step, with the environment, the actor and the step"
HARMLESS = "trained correctly: the same bits as without the fault"

START = """
import faulty_envs
from faulty_envs import spoiled_by, with_value
from whole_runs import assert_same

def trained(make_env, **changes):
    config = tiny(actors_per_device=1, policy_lag="1", **changes)
    return sebulba.train(config, make_env=make_env, topology=on(1), progress=False)

"""
REFUSALS = {
    "same_step_reset": (
        "an environment resets in the same step",
        "the last reward comes with the next episode's first timestep",
        "faulty_envs.SameStep",
        "and reset in the next step",
    ),
    "one_step_episodes": (
        "episodes of one step that reset in the same step",
        "a bandit",
        "faulty_envs.OneStepEpisodes",
        "in step 1",
    ),
    "always_first": (
        "every timestep is a first one",
        "`first` is never False",
        "faulty_envs.AlwaysFirst",
        "an episode of no steps",
    ),
    "reward_at_reset": (
        "a reward at the reset",
        "`reset` returns a reward of 1",
        "with_value('reward', 1, 0)",
        "on reset",
    ),
    "nan_reward": (
        "a reward is NaN",
        "of one environment, in one step",
        "with_value('reward', np.nan, {step})",
        "in step {step}",
    ),
    "infinite_reward": (
        "a reward is infinite",
        "of one environment, in one step",
        "with_value('reward', -np.inf, {step})",
        "in step {step}",
    ),
    "nan_observation": (
        "an observation is NaN",
        "of one environment, in one step",
        "with_value('observation', np.nan, {step})",
        "in step {step}",
    ),
    "infinite_observation": (
        "an observation is infinite",
        "of one environment, in one step",
        "with_value('observation', np.inf, {step})",
        "in step {step}",
    ),
    "wrong_dtype": (
        "an observation of another dtype",
        "uint8 in one step, where the spec says float32",
        "spoiled_by(lambda t: t._replace(observation=t.observation.astype(np.uint8)), {step})",
        "in step {step}",
    ),
    "wrong_shape": (
        "an observation of another shape",
        "a row less in one step",
        "spoiled_by(lambda t: t._replace(observation=t.observation[:, 1:]), {step})",
        "in step {step}",
    ),
    "one_too_few": (
        "fewer environments than asked for",
        "one less in the batch",
        "faulty_envs.OneTooFew",
        "num_envs is",
    ),
}
HARMLESS_ENVS = {
    "reused_buffers": (
        "an environment uses its buffers again",
        "it writes garbage to the arrays that it returned before each step",
        "faulty_envs.ReusingItsBuffers",
    ),
    "float64_spec": (
        "a spec of float64",
        "observations, rewards and discounts of float64",
        "faulty_envs.Float64",
    ),
}


def refusal(make_env: str, says: str) -> Callable[[random.Random], float]:
    """Trains with ``make_env`` and checks that it is refused, by an error that has ``says``."""

    def run(chance: random.Random) -> float:
        step = chance.randrange(1, 60)
        code = f"trained({make_env.format(step=step)}, total_steps=10**9)\n"
        start = time.monotonic()
        with program(PARTS + START + code) as training:
            training.end(60, code=1)
            text = training.text()
        assert says.format(step=step) in text and "ConfigError" in text, text
        assert "in thread actor-0" in text, text
        return time.monotonic() - start

    return run


def no_harm(make_env: str) -> Callable[[random.Random], None]:
    """Trains with ``make_env`` and without, and compares the bits."""

    def run(chance: random.Random) -> None:
        seed = chance.randrange(1000)
        code = f"""
from sebulba import envs
for core in ("none", "lstm"):
    network = sebulba.NetworkConfig(hidden_sizes=(8,), core=core, core_size=8)
    changes = dict(network=network, seed={seed}, total_steps=600)
    spoiled, right = (trained(made, **changes) for made in ({make_env}, envs.Catch))
    assert_same(spoiled.params, right.params)
"""
        with program(PARTS + START + code) as training:
            training.end(120)

    return run


def never_ending(chance: random.Random) -> None:
    """Trains with both algorithms in episodes without an end, to the end of the run."""
    code = f"""
import jax
from whole_runs import tiny_r2d2
for config in (tiny(seed={chance.randrange(1000)}), tiny_r2d2(seed={chance.randrange(1000)})):
    result = sebulba.train(
        config, make_env=faulty_envs.NeverEnding, topology=on(1), progress=False
    )
    last = result.metrics[-1]
    assert last["steps"] >= config.total_steps and last["episodes"] == 0, last
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
"""
    with program(PARTS + START + code) as training:
        training.end(120)


for _name, (_title, _how, _env, _says) in REFUSALS.items():
    FAULTS[_name] = Fault(_name, _title, _how, REFUSED, NOTHING, refusal(_env, _says))
for _name, (_title, _how, _env) in HARMLESS_ENVS.items():
    FAULTS[_name] = Fault(_name, _title, _how, HARMLESS, NOTHING, no_harm(_env))
FAULTS["never_ending"] = Fault(
    "never_ending",
    "episodes never end",
    "`first` is never True again, and the discount never 0",
    "trained to the end; the rows have no return",
    NOTHING,
    never_ending,
)
