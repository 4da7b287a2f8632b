"""Averaging within a host and then over hosts; test_pod.py does it with two."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import r2d2_parts
import test_learner
from whole_runs import tiny

import sebulba
from sebulba import ConfigError, hosts
from sebulba.learners import R2D2Learner, VTraceLearner
from sebulba.topology import Averaging, Topology


def topology(averaging: Averaging = "hosts") -> Topology:
    """Two learner devices, neither of which is the host's first CPU device."""
    return Topology.split(1, jax.devices()[:3], averaging=averaging)


def placed(tree: Any, averaging: Averaging = "hosts") -> Any:
    return jax.device_put(tree, topology(averaging).replicated())


TREE = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.int32(7)}


@pytest.mark.parametrize("how", ["mean", "sum", "max"])
def test_of_one_host_it_is_what_that_has_on_every_learner_device(how: Any) -> None:
    combined = hosts.combine(how, placed(TREE), topology())
    jax.tree.map(np.testing.assert_array_equal, combined, TREE)
    for leaf in jax.tree.leaves(combined):
        assert leaf.sharding == topology().replicated()


def test_nothing_is_done_where_the_mesh_spans_all_hosts() -> None:
    tree = placed(TREE, "devices")
    for function in (hosts.to_all, hosts.from_all):
        assert function(tree, topology("devices")) is tree
    assert hosts.combine("sum", tree, topology("devices")) is tree


def close(a: Any, b: Any) -> None:
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), a, b)


def test_there_and_back() -> None:
    spanning = hosts.to_all(placed(TREE), topology())
    assert spanning["b"].sharding.device_set == {jax.devices("cpu")[0]}
    back = hosts.from_all(spanning, topology())
    jax.tree.map(np.testing.assert_array_equal, back, TREE)
    assert back["a"].sharding == topology().replicated()


def test_the_cpu_platform_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(platform: str) -> None:
        raise RuntimeError(f"Unknown backend {platform}")

    hosts._network.cache_clear()
    monkeypatch.setattr(jax, "devices", none)
    with pytest.raises(ConfigError, match="JAX_PLATFORMS=tpu,cpu"):
        hosts.combine("sum", {}, Topology.split(1, jax.local_devices(), averaging="hosts"))


@pytest.mark.parametrize("pieces", [1, 2])
def test_vtrace_updates_are_the_same(pieces: int) -> None:
    """In one call, in pieces, and averaged over hosts in the end."""
    states = []
    for averaging in ("devices", "hosts"):
        where = topology(averaging)
        config = dataclasses.replace(test_learner.CONFIG, gradient_accumulation=pieces)
        like = test_learner.make_learner()
        learner = VTraceLearner(config, like._agent, like._distribution, like._optimiser, where)
        state = learner.init(jax.random.key(0))
        for seed in range(2):
            whole = jax.tree.map(jnp.asarray, test_learner.random_trajectory(seed))
            parts = [
                jax.device_put(part, device)
                for part, device in zip(test_learner.split(whole, 2), where.learners, strict=True)
            ]
            learner.add([sebulba.learners.Delivery(0, parts)])
            state, logs = learner.update(state)
        states.append(jax.device_get((state, logs)))
    close(*states)


def test_r2d2_updates_are_the_same() -> None:
    states = []
    for averaging in ("devices", "hosts"):
        learner = R2D2Learner(
            r2d2_parts.CONFIG,
            r2d2_parts.AGENT,
            r2d2_parts.SPEC,
            r2d2_parts.OPTIMISER,
            topology(averaging),
        )
        for unroll in r2d2_parts.unrolls():
            parts = r2d2_parts.deliver(unroll, 2).parts
            learner.add([sebulba.learners.Delivery(0, parts)])
        state, logs = learner.update(learner.init(jax.random.key(0)))
        states.append(jax.device_get((state, logs)))
    close(*states)


def test_a_run_and_its_checkpoint(tmp_path: Path) -> None:
    """The data do not depend on timing, so both ways end alike; each resumes the other's run."""
    results = []
    for averaging, other in (("devices", "hosts"), ("hosts", "devices")):
        out = tmp_path / averaging
        for way, steps, resume in ((averaging, 200, False), (other, 400, True)):
            config = tiny(out=out, total_steps=steps, averaging=way, policy_lag="0", resume=resume)
            result = sebulba.train(config, topology=topology(way), progress=False)
        results.append(result)
    assert results[0].updates == results[1].updates
    close(*(jax.device_get(result.params) for result in results))
