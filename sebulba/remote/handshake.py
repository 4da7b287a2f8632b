"""What a trainer and an env-host must agree on before the first timestep."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sebulba.envs.base import named_arrays
from sebulba.types import BoxSpec, EnvSpec
from sebulba.version import __version__

Facts = dict[str, str]
"""What one side has, by name. Both sides have the same names."""

_REMEDIES = {
    "sebulba": "install the same version on both",
    "env": "set --env",
    "env_options": "set --env-options",
    "atari_protocol": "set --atari-protocol",
    "envs": "set --envs of env-host, or --envs-per-actor of train",
}
_LONGEST = 200


class Refused(Exception):
    """The other side does not take part.

    Attributes:
      is_final: whether trying again is of no use.
    """

    def __init__(self, message: str, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


def facts(env: str, options: Mapping[str, Any], atari_protocol: str, spec: EnvSpec) -> Facts:
    """All that must be equal on both sides.

    Args:
      env: name of the environments.
      options: their options.
      atari_protocol: ``"machado"`` or ``"impala"``.
      spec: of one lane of them.
    """
    return {
        "sebulba": __version__,
        "env": env,
        "env_options": json.dumps(options, sort_keys=True),
        "atari_protocol": atari_protocol,
        "envs": str(spec.num_envs),
        **{
            f"observation{path}": f"{told.dtype} {list(told.shape)}"
            for path, told in named_arrays(spec.observation)
        },
        "action": _action_in_words(spec),
        "action_names": json.dumps(spec.action_names),
        "frame_skip": str(spec.frame_skip),
    }


def difference(ours: Facts, theirs: Mapping[str, Any]) -> str | None:
    """The first fact that differs, by name, and what to do; None if all are equal.

    Args:
      ours: the trainer's.
      theirs: what the env-host says, which may be anything.
    """
    for name in [*ours, *sorted(theirs.keys() - ours.keys())]:
        if ours.get(name) != theirs.get(name):
            remedy = _REMEDIES.get(name, "give both the same environment and the same options")
            return (
                f"{short(name)} is {short(theirs.get(name))} on the env-host and "
                f"{short(ours.get(name))} on the trainer: both must have the same, so {remedy}."
            )
    return None


def short(value: object) -> str:
    """What someone else has sent, for a message."""
    # By repr, since what a stranger sends must not write lines of its own to a log.
    text = repr(value)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _action_in_words(spec: EnvSpec) -> str:
    if isinstance(spec.action, BoxSpec):
        return f"BoxSpec {spec.action.low.tolist()} {spec.action.high.tolist()}"
    return f"{type(spec.action).__name__} {spec.action.num_actions}"
