"""How a trainer listens for env-hosts; no part of a config, since each host may do so otherwise."""

from __future__ import annotations

import dataclasses
from typing import Literal

from sebulba.remote.security import SecurityOptions
from sebulba.validation import NotNegativeInt, Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class Listen(SecurityOptions):
    """Where env-hosts connect to, who may, and what becomes of a run that loses one."""

    listen: str | None = None
    """HOST:PORT where env-hosts connect to, with --remote-lanes; 0.0.0.0:PORT for all addresses of
    this host."""
    min_lanes: NotNegativeInt = 1
    """Remote lanes that must be connected before learning starts."""
    lost_lane: Literal["wait", "end"] = "wait"
    """What a run does that loses a remote lane. wait: it goes on, with --policy-lag any without the
    lane, and otherwise once that is back; end: it ends."""
    step_seconds: Positive = 60.0
    """An env-host that takes longer for one step, or to make its environments, is dropped."""
