"""Drawing by priority: a cumulative sum, a sum tree, and flashbax where it is installed."""

from __future__ import annotations

import gc
import importlib.metadata
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from sebulba.learners.replay.sampler import Priorities

SIZES = (1_000, 10_000, 100_000)
BATCH = 64


class SumTree:
    """Binary tree of sums over N priorities, in NumPy; all of a batch go down or up together."""

    def __init__(self, powers: np.ndarray) -> None:
        self._leaves = 1 << (len(powers) - 1).bit_length()
        self._sums = np.zeros(2 * self._leaves)
        self.set(np.arange(len(powers)), powers)

    def set(self, indices: np.ndarray, powers: np.ndarray) -> None:
        nodes = indices + self._leaves
        self._sums[nodes] = powers
        while nodes[0] > 1:
            nodes = nodes // 2
            self._sums[nodes] = self._sums[2 * nodes] + self._sums[2 * nodes + 1]

    def draw(self, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        total = self._sums[1]
        targets = (np.arange(count) + random.random(count)) * (total / count)
        nodes = np.ones(count, np.int64)
        while nodes[0] < self._leaves:
            left = self._sums[2 * nodes]
            right = targets >= left
            targets = np.where(right, targets - left, targets)
            nodes = 2 * nodes + right
        return nodes - self._leaves, self._sums[nodes] / total


def compare_draws(repeats: int) -> list[dict[str, Any]]:
    """Draw a batch and set its priorities, by every method and size."""
    rows = []
    for size in SIZES:
        methods = dict(draw_methods(size))
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(repeats):
            for name, method in methods.items():
                times[name].append(seconds(method, 200))
        for name, values in times.items():
            rows.append({"sequences": size, "method": name, "milliseconds": spread(values)})
            print(f"draw+update {size:>7} sequences  {name:<15} {show(values)}", flush=True)
    return rows


def draw_methods(size: int) -> Iterator[tuple[str, Callable[[], None]]]:
    rng = np.random.default_rng(0)
    powers, new = rng.random(size) + 1e-3, rng.random(BATCH) + 1e-3
    priorities = Priorities(size, 0.9)
    priorities.set(np.arange(size), powers)
    tree = SumTree(powers**0.9)

    def cumulative_sum() -> None:
        priorities.set(priorities.draw(BATCH, rng).indices, new)

    def sum_tree() -> None:
        tree.set(tree.draw(BATCH, rng)[0], new**0.9)

    yield "cumulative sum", cumulative_sum
    yield "sum tree", sum_tree
    try:
        yield f"flashbax {importlib.metadata.version('flashbax')}", flashbax(size, new)
    except importlib.metadata.PackageNotFoundError:
        print("flashbax is not installed: left out")


def flashbax(size: int, new: np.ndarray) -> Callable[[], None]:
    """Its buffer of sequences of two numbers, so that what it copies is nothing."""
    import flashbax as fbx

    buffer = fbx.make_prioritized_trajectory_buffer(
        add_batch_size=1,
        sample_batch_size=BATCH,
        sample_sequence_length=2,
        period=1,
        min_length_time_axis=2,
        max_length_time_axis=size,
        priority_exponent=0.9,
        device=jax.default_backend(),
    )
    state = buffer.init(np.float32(0))
    state = jax.jit(buffer.add, donate_argnums=0)(state, np.zeros((1, size), np.float32))
    sample, update = jax.jit(buffer.sample), jax.jit(buffer.set_priorities, donate_argnums=0)
    keys = itertools.cycle(jax.random.split(jax.random.key(0), 100))
    values = jax.numpy.float32(new)

    def draw_and_update() -> None:
        nonlocal state
        drawn = sample(state, next(keys))
        np.asarray(drawn.indices)  # The host needs them, as it does with the others.
        state = update(state, drawn.indices, values)
        jax.block_until_ready(state)

    return draw_and_update


def seconds(function: Callable[[], None], calls: int) -> float:
    """Of one call, after some to warm up and compile."""
    for _ in range(3):
        function()
    gc.collect()
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Median, minimum, maximum and all values, in milliseconds."""
    scaled = np.array(values) * 1e3
    numbers = {name: float(getattr(np, name)(scaled)) for name in ("median", "min", "max")}
    return {**numbers, "values": scaled.tolist()}


def show(values: Sequence[float]) -> str:
    of = spread(values)
    return f"{of['median']:8.3f} ms ({of['min']:.3f} to {of['max']:.3f})"
