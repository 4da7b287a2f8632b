"""An agent in a folder of its own: arrays as safetensors, everything else as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from sebulba import algorithms
from sebulba.algorithms import Algorithm
from sebulba.config import build, to_json
from sebulba.envs import saved_spec
from sebulba.types import Agent, EnvSpec, Params
from sebulba.validation import ConfigError
from sebulba.version import __version__

ABOUT = "agent.json"
ARRAYS = "params.safetensors"
_FORMAT = 1


def is_export(directory: Path) -> bool:
    """Whether ``write`` wrote a directory."""
    return (directory / ABOUT).is_file()


def write(directory: Path, algorithm: str, config: Any, spec: EnvSpec, params: Params) -> None:
    """Write an agent.

    Args:
      directory: where to; it is made.
      algorithm: name of the algorithm.
      config: of the run.
      spec: of the environments that the agent was trained in.
      params: its parameters.

    Raises:
      ConfigError: safetensors is missing.
    """
    safetensors = _safetensors()
    about = {
        "format": _FORMAT,
        "library": f"sebulba {__version__}",
        "config": json.loads(to_json(config, algorithm)),
        "spec": saved_spec.to_fields(spec),
    }
    directory.mkdir(parents=True, exist_ok=True)
    # Not np.ascontiguousarray, which gives a single number an axis.
    arrays = {name: np.asarray(leaf, order="C") for name, leaf in _named(params).items()}
    safetensors.save_file(arrays, directory / ARRAYS)
    (directory / ABOUT).write_text(json.dumps(about, indent=2) + "\n")


def read(
    directory: Path, greedy: bool, agent: Agent | None, algorithm: Algorithm[Any] | None
) -> tuple[Agent, Params, EnvSpec]:
    """The agent, its parameters and the spec in an export; see ``sebulba.load``."""
    safetensors = _safetensors()
    try:
        about = json.loads((directory / ABOUT).read_text())
        if about["format"] != _FORMAT:
            raise ConfigError(
                f"{directory} has the format {about['format']}, and this version reads {_FORMAT}: "
                f"use the version that wrote it, {about['library']}."
            )
        spec = saved_spec.from_fields(about["spec"])
        fields = dict(about["config"])
        name = str(fields.pop("algorithm"))
        arrays = safetensors.load_file(directory / ARRAYS)
    except ConfigError:
        raise
    # safetensors has an error of its own, which is an Exception only.
    except Exception as error:
        raise ConfigError(f"{directory} is damaged ({error!r}): export the agent again.") from error
    if agent is not None:
        if greedy:
            raise ConfigError(
                f"greedy is True, but {type(agent).__name__} chooses its actions itself: give an "
                "agent that takes the best one."
            )
    else:
        # The module of a preset of one's own is not imported: what was exported elsewhere could
        # name any.
        if algorithm is not None and algorithm.name == name:
            config = build(algorithm.config_class, fields)
        else:
            config = algorithms.from_fields(name, fields)
            algorithm = algorithms.of(config)
        agent = algorithm.make_agent(config, spec, "greedily" if greedy else "evaluating")
    return agent, _fill(agent, arrays, directory), spec


def _fill(agent: Agent, arrays: dict[str, np.ndarray], directory: Path) -> Params:
    """The parameters of ``agent`` with the ``arrays`` in their places."""
    wanted = jax.eval_shape(agent.init, jax.random.key(0))
    named = _named(wanted)
    wrong = sorted(
        name
        for name in named.keys() | arrays.keys()
        if name not in named
        or name not in arrays
        or (named[name].shape, named[name].dtype) != (arrays[name].shape, arrays[name].dtype)
    )
    if wrong:
        raise ConfigError(
            f"{directory} holds the parameters of another agent: {', '.join(wrong[:5])} differ. "
            "Give load the agent that was trained."
        )
    leaves = [jax.numpy.asarray(arrays[name]) for name in named]
    return jax.tree.unflatten(jax.tree.structure(wanted), leaves)


def _named(params: Params) -> dict[str, Any]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }


def _safetensors() -> ModuleType:
    try:
        import safetensors.numpy
    except ImportError as error:
        raise ConfigError(
            f"exports need safetensors ({error}): install the extra export, "
            "pip install -e '.[export]' in a clone."
        ) from error
    return safetensors.numpy
