"""The memory that a replay takes, and where there is not enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from replay_parts import (
    LEARNERS,
    STORAGES,
    B,
    T,
    make_replay,
)

from sebulba import (
    ArraySpec,
    ConfigError,
    DiscreteSpec,
    EnvSpec,
    QAgent,
    R2D2Config,
    presets,
)
from sebulba.devices.compiler import Refused
from sebulba.learners.replay import capacity, host
from sebulba.learners.replay.host import HostReplay
from sebulba.learners.replay.storage import block_shapes


@pytest.mark.parametrize("kind", STORAGES)
def test_memory_that_is_not_there_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step, state = 2 * 3 * 1 + 4 + 4 + 4 + 1 + 4, 2 * 5 * 4
    per_unroll = 2 * B * (T * step + state)
    unrolls = 2**30 // per_unroll + 1

    monkeypatch.setattr(capacity, "_available_host_memory", lambda: 2**29)
    large = make_replay(kind, capacity=unrolls * 2 * B)
    # On a device with the padding of the rows.
    size = r"1\.00" if kind == "host" else r"[2-9]\.\d\d"
    refused = rf"takes {size} GiB .*0\.50 GiB are free\. Set replay\.capacity to less"
    with pytest.raises(ConfigError, match=refused):
        large.allocate()
    small = make_replay(kind)
    line = small.allocate()
    assert line.startswith("replay takes 0.00 GiB of ") and "0.50 GiB free" in line
    total = 2 * (6 // 2 * 2 + 2) * per_unroll  # Lanes, slots: capacity and a span more.
    held = [leaf.nbytes for s in small._shards for leaf in jax.tree.leaves(s.storage._data)]  # type: ignore[attr-defined]
    if kind == "host":
        assert sum(held) == total == LEARNERS * small.bytes_per_device
    else:  # What the compiler counts: the rows, and what a sample or an insert takes besides.
        assert total < sum(held) < LEARNERS * small.bytes_per_device < 1.5 * sum(held)


def test_a_replay_that_the_compiler_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(program: Any) -> Any:
        raise Refused("19.65G of 15.75G hbm")

    monkeypatch.setattr(host, "inspect", refuse)
    with pytest.raises(ConfigError, match=r"not fit .*19\.65G of 15\.75G.*Set replay\.capacity"):
        make_replay("device").allocate()
    make_replay("host").allocate()


def test_memory_of_a_container(tmp_path: Path) -> None:
    free = capacity._free_of_container
    assert free(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert free(tmp_path) is None
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert free(tmp_path) == 450


def test_memory_of_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    class Device:
        platform = "gpu"

        def memory_stats(self) -> dict[str, int]:
            return {"bytes_limit": 3 * 2**30, "bytes_in_use": 2**30}

    devices: Any = (Device(), Device())
    assert "4.00 GiB free" in capacity.check_memory(2**32, "device", devices)
    with pytest.raises(ConfigError, match=r"takes 4\.00 GiB of memory of 2 learner device"):
        capacity.check_memory(2**32 + 1, "device", devices)
    monkeypatch.setattr(capacity, "_available_host_memory", lambda: None)
    assert capacity.check_memory(2**60, "host", devices).endswith("of host memory")


def test_the_preset_for_one_machine_fits_8_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    config = presets.get("r2d2-atari-small")
    assert isinstance(config, R2D2Config)
    frame = {
        "observation": ArraySpec((84, 84), np.dtype(np.uint8)),
        "last_action": ArraySpec((), np.dtype(np.int32)),
    }
    spec = EnvSpec(frame, DiscreteSpec(18), config.envs_per_actor)
    monkeypatch.setattr(capacity, "_available_host_memory", lambda: 0)
    agent, lanes = QAgent(config.network, spec), config.actors_per_device
    replay = HostReplay(
        config.replay,
        block_shapes(agent, spec, config.envs_per_actor, config.unroll_length),
        lanes=lanes,
        span=2,
        batch_size=config.batch_size,
        seed=0,
        devices=jax.devices()[:1],
    )
    with pytest.raises(ConfigError, match=r"takes [5-7]\.\d\d GiB") as caught:
        replay.allocate()
    # One frame for each step, not a stack; the stack's other frames once for each unroll.
    slots = -(-config.replay.capacity // (lanes * config.envs_per_actor)) + 2
    unroll = 40 * (84 * 84 + 4 + 4 + 4 + 1 + 4) + 3 * 84 * 84 + 2 * 4 * config.network.core_size
    gib = lanes * slots * config.envs_per_actor * unroll / 2**30
    assert f"{gib:.2f} GiB" in str(caught.value)
