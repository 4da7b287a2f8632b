"""Algorithms, environments and presets of a user's own, without a change to the package."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from env_battery import EnvBattery
from paths import ROOT
from whole_runs import on

import sebulba
from sebulba.learners.ppo import PPOTargets

EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def beside_the_examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As a user has it: the example is imported from its directory, and there is one device.

    What it registers, and the module itself, are gone after the test.
    """
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:1])
    monkeypatch.delenv("XLA_FLAGS")
    monkeypatch.setattr(sebulba.presets, "PRESETS", dict(sebulba.presets.PRESETS))
    for module in (sebulba.algorithms, sebulba.envs):
        monkeypatch.setattr(module, "_REGISTERED", dict(module._REGISTERED))
    yield
    for name in ("own_algorithm", "own_environment", "own_ppo", "own_recurrent_agent"):
        sys.modules.pop(name, None)


def command(*words: Any) -> str:
    """What ``sebulba WORDS`` prints, started in the directory of the examples."""
    result = subprocess.run(
        [sys.executable, "-m", "sebulba", *map(str, words)],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_an_own_algorithm_solves_catch_from_python() -> None:
    import own_algorithm

    mean = own_algorithm.main(total_steps=60_000)
    assert mean is not None and mean > 0.9


def test_an_own_ppo_has_the_loss_of_the_library() -> None:
    import own_ppo

    rng, shape = np.random.default_rng(0), (6, 8)
    # Its parameters are the outputs themselves.
    agent: Any = SimpleNamespace(
        initial_state=lambda batch_size: (), unroll=lambda params, *_: (params, ())
    )
    spec = sebulba.EnvSpec(
        sebulba.ArraySpec((1,), np.dtype(np.float32)), sebulba.DiscreteSpec(3), shape[1]
    )
    action = rng.integers(3, size=shape)
    behavior = sebulba.Behavior(np.log(rng.uniform(0.1, 1, shape)), action)
    samples = sebulba.learners.Samples(
        timestep=None,  # type: ignore[arg-type]
        actor=sebulba.ActorOutput(action, behavior),
        state=(),
        first=rng.random(shape) < 0.3,
        targets=(),
    )
    targets = tuple(rng.normal(size=(2, *shape)))
    params = sebulba.PolicyValue(
        jnp.asarray(rng.normal(size=(*shape, 3))), jnp.asarray(rng.normal(size=shape))
    )

    def computed(make_learner: Any, config: sebulba.Config, targets: Any) -> Any:
        learner = make_learner(config, agent, spec, optax.identity(), on(1))
        differentiated = jax.jit(jax.value_and_grad(learner.loss, has_aux=True))
        (loss, logs), gradient = differentiated(
            params, samples._replace(targets=targets), np.float32(0)
        )
        return loss, logs["clip_fraction"], gradient

    sizes: dict[str, Any] = dict(unroll_length=6, envs_per_actor=8, batch_size=8)
    own = computed(own_ppo.OwnPPOLearner, own_ppo.OwnPPOConfig(**sizes), targets)
    # Its share of clipped ratios is one of all steps, and not only of those that count.
    same = PPOTargets(*targets, params.value, weights=jnp.ones(shape))
    library = computed(sebulba.learners.PPOLearner, sebulba.PPOConfig(**sizes), same)
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), own, library)


def test_an_own_recurrent_agent_keeps_the_rules() -> None:
    from own_recurrent_agent import MEMORY, GRUAgent

    spec = sebulba.envs.make(MEMORY.env, 1, seed=0).spec
    config = dataclasses.replace(MEMORY, envs_per_actor=2, batch_size=2, unroll_length=3)
    sebulba.check_agent(GRUAgent(spec, size=4), config)


@pytest.mark.slow
@pytest.mark.usefixtures("compiled_as_for_users")
@pytest.mark.parametrize(
    ("name", "steps"), [("own_ppo", 100_000), ("own_recurrent_agent", 400_000)]
)
def test_an_own_ppo_and_an_own_recurrent_agent_learn(name: str, steps: int) -> None:
    """Of nine runs, the recurrent agent answered right after 44,000 to 236,000 steps."""
    mean = importlib.import_module(name).main(total_steps=steps)
    assert mean is not None and mean > 0.9


@pytest.mark.slow
def test_an_own_environment_is_solved_from_python() -> None:
    import own_environment

    mean = own_environment.main(total_steps=40_000)
    assert mean is not None and mean > 0.85


@pytest.mark.slow
def test_an_own_algorithm_solves_catch_on_the_command_line(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("own_algorithm:a2c-catch", "--total-steps", 60_000, "--out", run)
    command("train", *words)
    command("train", *words, "--resume", "--total-steps", 62_000)
    # The run remembers which module to import.
    result = sebulba.evaluate_run(run, 100)
    assert result.returns.mean() > 0.9
    assert '"mean"' in command("eval", run, "--episodes", 2, "--json")
    assert "--discount" in command("train", "own_algorithm:a2c-catch", "--help")


def test_it_is_refused_where_it_was_registered_nowhere(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Unknown(sebulba.VTraceConfig):
        pass

    with pytest.raises(
        sebulba.ConfigError, match=r"Unknown is the config of no algorithm.*algorithm="
    ):
        sebulba.train(Unknown(total_steps=100))


@pytest.mark.slow
def test_an_unregistered_algorithm_trains_resumes_and_is_evaluated(tmp_path: Path) -> None:
    import own_algorithm

    algorithm = dataclasses.replace(own_algorithm.A2C, name="mine")
    config = dataclasses.replace(
        own_algorithm.CATCH, preset="", total_steps=2_000, out=tmp_path / "run"
    )
    sebulba.train(config, algorithm=algorithm, progress=False)
    more = dataclasses.replace(config, total_steps=4_000, resume=True)
    sebulba.train(more, algorithm=algorithm, progress=False)
    with pytest.raises(sebulba.ConfigError, match="'mine' is unknown"):
        sebulba.evaluate_run(config.out)
    assert len(sebulba.evaluate_run(config.out, 3, algorithm=algorithm).returns) == 3


class TestCorridor(EnvBattery):
    """The example keeps the contract of an environment."""

    def make(self, seed: int) -> sebulba.Env:
        import own_environment

        return own_environment.Corridor(8, seed)


def test_options_of_an_own_environment() -> None:
    import own_environment  # noqa: F401

    env = sebulba.envs.make("Corridor", 3, seed=0, options={"length": 2})
    timestep = env.reset()
    for _ in range(2):
        timestep = env.step(np.ones(3, np.int32))
    assert set(timestep.observation[:, 0].tolist()) == {1.0}
    with pytest.raises(ValueError, match=r"unknown option of Corridor 'lenght'.*length"):
        sebulba.envs.make("Corridor", 3, seed=0, options={"lenght": 2})
