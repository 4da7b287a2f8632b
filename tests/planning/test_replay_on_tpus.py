"""The replay on a learner device, compiled for TPUs that are not there."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from paths import ROOT

CODE = """
import dataclasses, json, sys
import jax
jax.config.update("jax_platforms", "cpu")
from sebulba import algorithms, presets
from sebulba.devices import tpu_slices
from sebulba.devices.topology import Topology
from sebulba.learners.replay.storage import (
    DevicePrograms, Geometry, block_shapes, nbytes, nbytes_of_sequence
)
from sebulba.runners.environments import default_make_env, probe

devices = tpu_slices.devices(tpu_slices.parse(sys.argv[1]))
topology = Topology.split(None, devices)
learners, config = len(topology.learners), presets.get("r2d2-atari")
config = algorithms.of(config).fit(config, learners)
envs, count = config.envs_per_actor // learners, config.batch_size // learners
spec = probe(default_make_env(config))._replace(num_envs=config.envs_per_actor)
agent = algorithms.of(config).make_agent(config, spec, "training")
shapes = block_shapes(agent, spec, envs, config.unroll_length)
lanes = len(topology.inference) * config.actors_per_device
geometry = Geometry(lanes, config.replay.capacity // (lanes * envs * learners) + 3, envs, 2)
found = {"stored": nbytes(shapes, geometry), "slot": nbytes(shapes, Geometry(1, 1, envs, 2))}
found["batch"] = count * nbytes_of_sequence(shapes, geometry)
programs = DevicePrograms(shapes, geometry).lower(topology.learners[0], count)
for name, program in zip(("read", "write"), programs):
    memory = program.compile().memory_analysis()
    found[name] = {
        "arguments": memory.argument_size_in_bytes,
        "besides": memory.output_size_in_bytes - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
    }
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.parametrize("slice_name", ["v4-8", "v5e-8", "v5p-8", "v6e-8", "tpu7x-8"])
def test_it_is_neither_padded_nor_copied(slice_name: str) -> None:
    pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install 'sebulba[tpu]'")
    words = [sys.executable, "-c", CODE, slice_name]
    result = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    stored, slot, batch = found["stored"], found["slot"], found["batch"]
    assert stored > 100 * batch
    assert stored <= found["read"]["arguments"] < 1.02 * stored
    # Frames as bytes are padded, in some layouts twice: a few times the batch, not the replay.
    assert found["read"]["besides"] < 12 * batch
    assert found["write"]["arguments"] < 1.02 * stored + 3 * slot
    assert found["write"]["besides"] < 15 * slot
