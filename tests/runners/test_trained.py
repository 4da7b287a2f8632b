"""Trained agents by themselves, from run directories and from exports."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from whole_runs import on, tiny, tiny_pqn, tiny_r2d2

import sebulba
from sebulba import NetworkConfig, envs
from sebulba.agents import distributions
from sebulba.inference import EpisodeTracker
from sebulba.runners import environments
from sebulba.types import ArraySpec
from sebulba.validation import ConfigError

LSTM = NetworkConfig(core="lstm", hidden_sizes=(8,), core_size=8)
KINDS: dict[str, Callable[..., Any]] = {
    "vtrace, lstm": lambda **more: tiny(network=LSTM, **more),
    "vtrace, pendulum": lambda **more: tiny(env="Pendulum-v1", **more),
    "vtrace, frames": lambda **more: tiny(
        network=NetworkConfig(hidden_sizes=(8,), frame_stack=3, normalize_observations=True), **more
    ),
    "r2d2, lstm": lambda **more: tiny_r2d2(network=LSTM, **more),
    "pqn": tiny_pqn,
}


FAST = ("vtrace, frames",)


@pytest.fixture(
    scope="module",
    params=[pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in KINDS],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "run"
    sebulba.train(KINDS[request.param](out=out), topology=on(1), progress=False)
    return out


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("exported") / "agent"
    sebulba.export(run, directory)
    return directory


def returns_of(agent: sebulba.TrainedAgent, config: sebulba.Config, episodes: int) -> list[float]:
    """As ``evaluate`` plays one episode in each environment, whose returns come in their order."""
    env = environments.bare_make_env(config)(episodes, 5)
    timestep = env.reset()
    tracker = EpisodeTracker(timestep)
    ended: list[tuple[float, int]] = []
    while len(ended) < episodes:
        action = agent.act(timestep.observation, timestep.reward, timestep.first)
        timestep = env.step(action)
        tracker.update(timestep)
        ended += tracker.ended()
    env.close()
    return [episode_return for episode_return, _ in ended[:episodes]]


@pytest.mark.parametrize("greedy", [False, True])
def test_it_acts_as_in_evaluation(run: Path, exported: Path, greedy: bool) -> None:
    config = sebulba.load_run(run).config
    expected = sebulba.evaluate_run(run, 4, seed=5, greedy=greedy).returns.tolist()
    for directory in (run, exported):
        agent = sebulba.load(directory, seed=5, greedy=greedy)
        assert returns_of(agent, config, 4) == expected


def test_one_environment_and_its_reset(run: Path) -> None:
    config = sebulba.load_run(run).config
    env = environments.bare_make_env(config)(1, 0)
    one, batch, fresh = (sebulba.load(run, greedy=True) for _ in range(3))
    timestep = env.reset()
    actions = []
    for _ in range(5):
        single = jax.tree.map(lambda array: array[0], timestep.observation)
        actions.append(one.act(single, float(timestep.reward[0])))
        expected = batch.act(timestep.observation, timestep.reward)
        np.testing.assert_array_equal(actions[-1], expected[0])
        timestep = env.step(expected)
    env.close()
    # A new episode begins where ``reset`` or ``first`` says so, and nothing is left of the last.
    single = jax.tree.map(lambda array: array[0], timestep.observation)
    one.reset()
    expected = fresh.act(single)
    np.testing.assert_array_equal(one.act(single), expected)
    np.testing.assert_array_equal(batch.act(timestep.observation, 0.0, True)[0], expected)


def test_an_environment_may_have_names_of_the_last_action() -> None:
    hint = ArraySpec((3,), np.dtype(np.float32))
    bare = envs.probe(envs.Catch)
    inside = {"observation": bare.observation, "last_action": hint}
    outside = {"observation": inside, "last_action": ArraySpec((), np.dtype(np.int32))}
    spec = bare._replace(observation=outside)
    agent = sebulba.PolicyAgent(LSTM, spec, distributions.make(spec.action))
    params = agent.init(jax.random.key(0))
    seen = {"observation": np.ones((10, 5), np.float32), "last_action": np.ones(3, np.float32)}
    batched = {name: part[None] for name, part in seen.items()}
    actions = [
        np.ravel(sebulba.TrainedAgent(agent, params, spec, 0).act(given)).tolist()
        for given in (seen, batched, {"observation": batched, "last_action": np.zeros(1, np.int32)})
    ]
    assert actions[0] == actions[1] == actions[2]


def test_the_jax_file_needs_nothing_but_jax(run: Path, tmp_path: Path) -> None:
    sebulba.export(run, tmp_path / "agent", format="jax", num_envs=2, greedy=True)
    env = environments.bare_make_env(sebulba.load_run(run).config)(2, 0)
    observation = env.reset().observation
    env.close()
    expected = sebulba.load(run, greedy=True).act(observation)
    spec = sebulba.load(run).spec
    if isinstance(spec.observation, dict):
        observation = {"observation": observation, "last_action": np.zeros(2, np.int32)}
    np.savez(tmp_path / "observation.npz", observation)
    card = (tmp_path / "agent" / "README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    program = (
        "import sys\nimport numpy as np\n"
        "observation = np.load('../observation.npz', allow_pickle=True)['arr_0']\n"
        "observation = observation.item() if observation.dtype == object else observation\n"
        f"{code}\nassert not [name for name in sys.modules if name.startswith('sebulba')]\n"
        "print(np.asarray(action).tolist())"
    )
    told = subprocess.check_output(
        [sys.executable, "-c", program], cwd=tmp_path / "agent", text=True
    )
    np.testing.assert_allclose(json.loads(told), expected, rtol=1e-6)


@pytest.fixture(scope="module")
def catch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("catch") / "run"
    sebulba.train(tiny(out=out), topology=on(1), progress=False)
    return out


def test_wrong_observations(catch: Path) -> None:
    agent = sebulba.load(catch)
    (shape,) = {agent.spec.observation.shape}
    agent.act(np.zeros(shape))
    with pytest.raises(
        ValueError, match=r"is of 3 environments, but the last one was of 1: .*rese"
    ):
        agent.act(np.zeros((3, *shape)))
    with pytest.raises(ValueError, match=r"the observation has the shape \(7,\): it must be"):
        agent.act(np.zeros(7))
    with pytest.raises(ValueError, match="the observation is not as"):
        agent.act({"pixels": np.zeros(shape)})
    agent.reset()
    for wrong in ({"first": [True, False]}, {"reward": np.zeros((3, 1))}):
        with pytest.raises(ValueError, match=r"has the shape .* or \(3,\), one for each"):
            agent.act(np.zeros((3, *shape)), **wrong)
    # Nothing was begun by them.
    assert agent.act(np.zeros((2, *shape)), reward=[0, 1], first=True).shape == (2,)


def test_damaged_exports(catch: Path, tmp_path: Path) -> None:
    sebulba.export(catch, tmp_path / "agent")
    about = tmp_path / "agent" / "agent.json"
    arrays = tmp_path / "agent" / "params.safetensors"
    whole, bytes_of = json.loads(about.read_text()), arrays.read_bytes()

    about.write_text(json.dumps({**whole, "format": 2}))
    with pytest.raises(ConfigError, match="has the format 2, and this version reads 1"):
        sebulba.load(tmp_path / "agent")
    about.write_text("{")
    with pytest.raises(ConfigError, match="is damaged"):
        sebulba.load(tmp_path / "agent")
    network = {**whole["config"]["network"], "hidden_sizes": [9]}
    about.write_text(json.dumps({**whole, "config": {**whole["config"], "network": network}}))
    with pytest.raises(ConfigError, match="holds the parameters of another agent"):
        sebulba.load(tmp_path / "agent")
    about.write_text(json.dumps(whole))
    arrays.write_bytes(bytes_of[:-10])
    with pytest.raises(ConfigError, match="is damaged"):
        sebulba.load(tmp_path / "agent")


@pytest.mark.slow
def test_no_module_is_imported_for_an_export(catch: Path, tmp_path: Path) -> None:
    sebulba.export(catch, tmp_path / "agent")
    about = tmp_path / "agent" / "agent.json"
    found = json.loads(about.read_text())
    found["config"]["preset"] = "this_module_raises:preset"
    about.write_text(json.dumps(found))
    (tmp_path / "this_module_raises.py").write_text("raise RuntimeError")
    program = f"import sebulba; sebulba.load({str(tmp_path / 'agent')!r}); print('loaded')"
    assert (
        subprocess.check_output([sys.executable, "-c", program], cwd=tmp_path, text=True)
        == "loaded\n"
    )


def test_what_cannot_be_exported(catch: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is overwritten"):
        sebulba.export(catch, catch)
    with pytest.raises(ConfigError, match="are for the format jax"):
        sebulba.export(catch, tmp_path / "agent", greedy=True)
    with pytest.raises(ConfigError, match="is not a run directory"):
        sebulba.export(tmp_path, tmp_path / "agent")
    assert not (tmp_path / "agent").exists()


@pytest.mark.parametrize(
    ("format", "package"), [("safetensors", "safetensors.numpy"), ("jax", "flatbuffers")]
)
def test_a_missing_package_is_named(
    format: Any, package: str, catch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It may have been imported before.
    monkeypatch.delitem(sys.modules, "jax._src.export.serialization", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"install the extra export"):
        sebulba.export(catch, tmp_path / "agent", format=format)
    assert not (tmp_path / "agent").exists()


def test_an_agent_of_ones_own(tmp_path: Path) -> None:
    config = dataclasses.replace(tiny(), out=tmp_path / "run")
    spec = environments.probe(sebulba.envs.Catch)
    own = sebulba.algorithms.make_policy_agent(tiny(), spec)
    sebulba.train(config, agent=own, make_env=sebulba.envs.Catch, topology=on(1), progress=False)
    sebulba.export(tmp_path / "run", tmp_path / "agent", agent=own, make_env=sebulba.envs.Catch)
    # Neither the environment nor the way it was made is needed.
    found = sebulba.load(tmp_path / "agent", agent=own)
    assert 0 <= found.act(np.zeros(found.spec.observation.shape)) < 3
    with pytest.raises(ConfigError, match="chooses its actions itself"):
        sebulba.load(tmp_path / "agent", agent=own, greedy=True)
