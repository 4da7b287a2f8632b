"""Ask the TPU compiler which learner meshes it accepts, for every slice; needs no TPU.

Run it as: python benchmarks/placement_survey.py sebulba/devices/placement.json
"""

from __future__ import annotations

import datetime
import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax

from sebulba.devices import mesh_probe, placement, tpu_slices
from sebulba.devices.topology import Topology

MOST_DEVICES = 2048
"""Larger slices of a generation behave as its smaller ones, and take minutes each."""


def survey() -> dict[str, Any]:
    """Accepted layouts, and refused ones with the compiler's reason, of every slice."""
    slices = {}
    for name in tpu_slices.names():
        tpu_slice = tpu_slices.parse(name)
        if tpu_slice.hosts * tpu_slice.devices_per_host <= MOST_DEVICES:
            slices[name] = _ask(tpu_slice)
            print(name, slices[name], flush=True)
    return {
        "date": datetime.date.today().isoformat(),
        "jax": version("jax"),
        "libtpu": version("libtpu"),
        "sizes": list(mesh_probe.SIZES),
        "command": "python benchmarks/placement_survey.py sebulba/devices/placement.json",
        "slices": slices,
    }


def _ask(tpu_slice: tpu_slices.Slice) -> dict[str, Any]:
    devices = tpu_slices.devices(tpu_slice)
    first = Topology.split(1, devices)
    every = [first, *placement.alternatives(first, devices)]
    answers = placement.tpu_compiler(tpu_slice)(every)
    named = {topology.layout: why for topology, why in zip(every, answers, strict=True)}
    return {
        "shape": tpu_slice.shape,
        "accepted": [layout for layout, why in named.items() if why is None],
        "refused": {layout: why for layout, why in named.items() if why is not None},
    }


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    Path(sys.argv[1]).write_text(json.dumps(survey(), indent=1) + "\n")
