"""``sebulba export``: an agent to keep and share, without the run that trained it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from sebulba import algorithms
from sebulba.algorithms import Algorithm
from sebulba.metrics.meter import Row
from sebulba.rundir import export as files
from sebulba.rundir.run import load_run
from sebulba.runners.environments import probe
from sebulba.runners.restoring import Checkpoint, Restored, restore
from sebulba.types import Agent, EnvSpec, MakeEnv, Timestep
from sebulba.validation import ConfigError
from sebulba.version import __version__

Format = Literal["safetensors", "jax"]
FUNCTION = "agent.jax"
_PLATFORMS = ("cpu", "cuda", "tpu")


def export(
    run: Path | str,
    directory: Path | str,
    *,
    format: Format = "safetensors",
    checkpoint: Checkpoint = None,
    greedy: bool = False,
    num_envs: int = 1,
    make_env: MakeEnv | None = None,
    agent: Agent | None = None,
    algorithm: Algorithm[Any] | None = None,
) -> None:
    """Write the agent of a run into a directory, with a model card.

    Args:
      run: a run directory.
      directory: a new or empty one.
      format: ``safetensors`` for ``sebulba.load``: parameters, config and specs. ``jax`` writes one
        file, the agent as a compiled function that needs nothing but jax and flatbuffers
        (``jax.export``); the card says how to call it.
      checkpoint: the number of turns behind it, or "best"; None takes the newest.
      greedy: with ``jax``, always take the best action. (``sebulba.load`` has its own ``greedy``.)
      num_envs: with ``jax``, how many environments the function acts in at once.
      make_env: the one given to ``train``, if any.
      agent: the one given to ``train``, if any.
      algorithm: the one given to ``train``, if any.

    Raises:
      ConfigError: ``run`` is not a run directory, it holds no such checkpoint, ``directory`` is not
        empty, or safetensors is missing.
    """
    directory = _fresh(Path(directory).expanduser())
    if format == "safetensors" and (greedy or num_envs != 1):
        raise ConfigError(
            "greedy and num_envs are for the format jax: give them to sebulba.load, which acts in "
            "as many environments as it gets observations of."
        )
    restored = restore(
        run,
        checkpoint=checkpoint,
        greedy=greedy,
        make_env=make_env,
        agent=agent,
        algorithm=algorithm,
    )
    spec = probe(restored.make_env)
    name = (algorithm or algorithms.of(restored.config)).name
    if format == "safetensors":
        files.write(directory, name, restored.config, spec, restored.params)
        how = _LOAD
    else:
        function = _function(restored, spec, num_envs)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FUNCTION).write_bytes(function)
        how = _call(restored.agent, spec, num_envs)
    card = _card(restored, name, spec, load_run(run).metrics, how)
    (directory / "README.md").write_text(card)


def _fresh(directory: Path) -> Path:
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(
            f"{directory} is there already, and nothing is overwritten: choose another directory."
        )
    return directory


def _function(restored: Restored, spec: EnvSpec, num_envs: int) -> bytes:
    """``act`` with its parameters, of flat arguments: what unpacks it need not know our types."""
    state = restored.agent.initial_state(num_envs)
    structure = jax.tree.structure(state)

    def act(
        observation: Any,
        reward: jax.Array,
        first: jax.Array,
        state: list[Any],
        seed: Any,
        step: Any,
    ) -> tuple[Any, list[Any]]:
        timestep = Timestep(observation, reward, jnp.ones_like(reward), first)
        key = jax.random.fold_in(jax.random.key(seed), step)
        output, new = restored.agent.act(
            restored.params, key, timestep, jax.tree.unflatten(structure, state)
        )
        return output.action, jax.tree.leaves(new)

    def shaped(told: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_envs, *told.shape), told.dtype)

    scalar = jax.ShapeDtypeStruct((), jnp.uint32)
    exported = jax.export.export(jax.jit(act), platforms=_PLATFORMS)(
        jax.tree.map(shaped, spec.observation),
        jax.ShapeDtypeStruct((num_envs,), jnp.float32),
        jax.ShapeDtypeStruct((num_envs,), jnp.bool_),
        [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)],
        scalar,
        scalar,
    )
    try:
        return bytes(exported.serialize())
    except ImportError as error:
        raise ConfigError(
            f"the format jax needs flatbuffers ({error}): install the extra export, "
            "pip install -e '.[export]' in a clone."
        ) from error


_LOAD = """\
```python
import sebulba

agent = sebulba.load("THIS_DIRECTORY")
agent.reset()
action = agent.act(observation)  # of one environment, or [B, ...] of several
```

It is read without running any code of its own. sebulba needs its extra `export` for that."""


def _call(agent: Agent, spec: EnvSpec, num_envs: int) -> str:
    state = jax.tree.leaves(agent.initial_state(num_envs))
    zeros = ", ".join(f"np.zeros({leaf.shape}, np.{leaf.dtype.name})" for leaf in state)
    return f"""\
```python
import jax, numpy as np
from jax import export

with open("{FUNCTION}", "rb") as file:
    act = export.deserialize(bytearray(file.read())).call
state = [{zeros}]
reward, first = np.zeros({num_envs}, np.float32), np.ones({num_envs}, bool)
action, state = act(observation, reward, first, state, np.uint32(0), np.uint32(0))
```

It needs nothing but `pip install jax flatbuffers`. The observation is
{_shown(spec.observation, num_envs)}. `reward` is
that for the last action, `first` says where an episode begins, and the last two arguments are a
seed and the number of the step, from which the random numbers come."""


def _shown(told: Any, num_envs: int) -> str:
    if isinstance(told, dict):
        inner = ", ".join(f'"{name}": {_shown(each, num_envs)}' for name, each in told.items())
        return "{" + inner + "}"
    return f"{told.dtype}{[num_envs, *told.shape]}"


def _card(
    restored: Restored, algorithm: str, spec: EnvSpec, metrics: list[Row] | Any, how: str
) -> str:
    config = restored.config
    rows = [row for row in metrics if (row.get("update") or 0) <= restored.update]
    means = [mean for row in rows if (mean := row.get("episode_return_mean_100")) is not None]
    steps = f"{rows[-1]['steps']:,}" if rows else "unknown"
    return f"""\
# {config.preset or algorithm} on {config.env}

| | |
| --- | --- |
| environment | `{config.env}` |
| algorithm | {algorithm} |
| trained for | {steps} steps, {restored.update:,} updates |
| return in training, mean of 100 episodes | {f"{means[-1]:.4g}" if means else "unknown"} |
| observation | {_shown(spec.observation, 1).replace("[1, ", "[").replace("[1]", "[]")} |
| action | {spec.action} |
| seed | {config.seed} |

{how}

It was trained with sebulba {__version__}. It knows the environment that it was trained in, and
nothing else.
"""
