"""``sebulba plan``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated

import tyro

from sebulba.cli import options, output, plan_table
from sebulba.config import Config


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """What the command takes."""

    slice: Annotated[str, tyro.conf.arg(metavar="NAME")]
    """v3-8, v4-4096, v5litepod-16, v5e-16, v5p-8, v6e-8, tpu7x-8, ..."""
    steps_per_core: float | None = None
    """Agent steps/s of the environment on one CPU. None: 458 to 958, which EnvPool's authors
    measured with Atari on a TPU VM."""
    json: bool = False
    """For machines: print one JSON object."""
    config: Annotated[Config, options.UNPREFIXED]


def run(words: Sequence[str]) -> None:
    """Say what a preset would do on a Cloud TPU slice, without one.

    Compiles the preset's inference step and update with the real TPU compiler, and estimates what
    each sensible layout could sustain: in a0-l1,2,3, device 0 of each host acts, and devices 1 to 3
    learn. It needs Linux and the extra tpu, and no TPU.
    """
    default = options.preset(words, "plan", run.__doc__)

    import jax

    from sebulba.planning import plan

    given = options.parse(
        Options(slice=tyro.MISSING, config=default),
        words[1:],
        f"sebulba plan {default.preset}",
        run.__doc__,
    )
    # The compiler works for devices that are not here; those that are must be left alone.
    jax.config.update("jax_platforms", "cpu")
    made = plan.make(given.config, given.slice, given.steps_per_core)
    if given.json:
        output.write(json.dumps(dataclasses.asdict(made), indent=1))
    else:
        output.show(plan_table.render(made))
