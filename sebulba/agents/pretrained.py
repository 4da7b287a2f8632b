"""An agent that starts with parameters which were learned before."""

from __future__ import annotations

from typing import Any

import jax

from sebulba.types import Agent, Params


class Pretrained:
    """An agent whose first parameters are ``params``; in all else it is ``agent``."""

    def __init__(self, agent: Agent, params: Params) -> None:
        self.agent = agent
        self._params = params

    def init(self, key: jax.Array) -> Params:
        """The parameters that were given, whatever the ``key``."""
        return self._params

    def __getattr__(self, name: str) -> Any:
        return getattr(self.agent, name)
