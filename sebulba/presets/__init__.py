"""Configurations that work, by name: those of the library, and your own."""

from __future__ import annotations

import dataclasses
import difflib

from sebulba import plugins
from sebulba.config import Config
from sebulba.presets import ppo, pqn, r2d2, vtrace
from sebulba.validation import ConfigError

PRESETS: dict[str, tuple[Config, str]] = {
    config.preset: (config, text)
    for config, text in (*vtrace.PRESETS, *ppo.PRESETS, *pqn.PRESETS, *r2d2.PRESETS)
}
"""Every preset and what it is for."""


def register(config: Config, text: str) -> None:
    """Have ``get`` and the command line know ``config`` by its ``preset``, in place of any before.

    On the command line it is called ``module:preset``, after the module that registers it.

    Args:
      config: with a name of its own as ``preset``.
      text: what it is for, in a line.

    Raises:
      ConfigError: it has no name, or one with a colon.
    """
    if not config.preset or ":" in config.preset:
        raise ConfigError(
            f"preset is {config.preset!r}: a preset must have a name without a colon. Set it with "
            "dataclasses.replace(config, preset=...)."
        )
    PRESETS[config.preset] = (config, text)


def get(name: str) -> Config:
    """The preset called ``name``.

    For ``module:preset``, the module is imported first, to register it. The config says so in its
    ``preset``: whoever loads it from a run directory then does the same.

    Raises:
      ConfigError: there is none; the message says which are close.
    """
    known = plugins.resolve(name)
    if known not in PRESETS:
        module = name.removesuffix(known)
        close = [module + each for each in difflib.get_close_matches(known, PRESETS, 3, 0.3)]
        hint = f"did you mean {' or '.join(close)}?" if close else "see: sebulba presets."
        raise ConfigError(f"preset {name!r} is unknown: it must be one of {list(PRESETS)}; {hint}")
    return dataclasses.replace(PRESETS[known][0], preset=name)
