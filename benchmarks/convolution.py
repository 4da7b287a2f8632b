"""Frames/s of the two Atari networks on CPU: XLA's convolution, ours, and PyTorch's if installed.

    python benchmarks/convolution.py

`act` is a forward pass on uint8 frames of 84x84x4 (ours has the four as planes, as the library has
them); `update` is a loss and its gradient for every parameter. All fold the pixels' scale of
1 / 255 into the first kernel, as the library does. The forms take turns, since other work on the
machine slows all of them, and the table shows the median, the minimum and the maximum over the
turns. OUT.json holds every turn, OUT.md the table.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import throughput_report
import tyro
from jax import lax

from sebulba.ops.convolution import DataFormat, conv2d
from sebulba.ops.pooling import max_pool

Run = Callable[[], Any]
ACTIONS = 18


@dataclasses.dataclass(frozen=True)
class Options:
    """What to measure, and how long."""

    networks: tuple[Literal["shallow", "deep"], ...] = ("shallow", "deep")
    frames: int = 672
    """Frames of an update: 21 steps of 32 environments."""
    microbatches: tuple[int, ...] = (1, 8)
    """Of an update, one after another in a scan (ours only: XLA's is many times as slow there)."""
    turns: int = 5
    seconds: float = 1.0
    """Of each form in each turn, at least one call."""
    out: Path = Path(__file__).resolve().parent / "results" / "convolution"
    """Files to write, without their suffix."""


def native_conv(x: Any, kernel: Any, bias: Any, stride: int, padding: str) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    x = x.astype(kernel.dtype)
    return bias + lax.conv_general_dilated(x, kernel, strides, padding, dimension_numbers=numbers)


def our_conv(x: Any, kernel: Any, bias: Any, stride: int, padding: str) -> Any:
    data_format: DataFormat = "NCHW" if x.dtype == jnp.uint8 else "NHWC"
    return conv2d(x, kernel, bias, stride, padding, data_format)


def native_pool(x: Any) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")


def shallow(conv: Any, pool: Any, params: Iterator[Any], x: Any) -> Any:
    for stride in (4, 2, 1):
        x = jax.nn.relu(conv(x, *next(params), stride, "VALID"))
    return head(params, x)


def deep(conv: Any, pool: Any, params: Iterator[Any], x: Any) -> Any:
    for _ in range(3):
        x = pool(conv(x, *next(params), 1, "SAME"))
        for _ in range(2):
            y = conv(jax.nn.relu(x), *next(params), 1, "SAME")
            x = x + conv(jax.nn.relu(y), *next(params), 1, "SAME")
    return head(params, jax.nn.relu(x))


def head(params: Iterator[Any], x: Any) -> Any:
    weights, bias = next(params)
    x = jax.nn.relu(x.reshape(x.shape[0], -1) @ weights + bias)
    weights, bias = next(params)
    return x @ weights + bias


NETWORKS = {"shallow": shallow, "deep": deep}
ACT_FRAMES = {"shallow": 64, "deep": 32}
SHAPES = {
    "shallow": [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64), (3136, 512), (512, ACTIONS)],
    "deep": [
        *((3, 3, first if n == 0 else size, size) for first, size in
          ((4, 16), (16, 32), (32, 32)) for n in range(5)),
        (3872, 256), (256, ACTIONS),
    ],
}  # fmt: skip


def jax_runs(network: str, native: bool, options: Options) -> Iterator[tuple[str, str, Run]]:
    """(what, form, run) of one network."""
    rng = np.random.default_rng(0)
    params = [
        (jnp.asarray(rng.normal(size=s) / np.prod(s[:-1]) ** 0.5, jnp.float32), jnp.zeros(s[-1]))
        for s in SHAPES[network]
    ]
    conv, pool = (native_conv, native_pool) if native else (our_conv, lambda x: max_pool(x, 3, 2))
    layout = (0, 1, 2, 3) if native else (0, 3, 1, 2)

    def forward(params: Any, pixels: Any) -> Any:
        (kernel, bias), *rest = params
        return NETWORKS[network](conv, pool, iter([(kernel / 255, bias), *rest]), pixels)

    def loss(params: Any, pixels: Any) -> Any:
        return jnp.square(forward(params, pixels)).mean()

    def update(count: int, params: Any, pixels: Any) -> Any:
        if count == 1:
            return jax.grad(loss)(params, pixels)
        zeros = jax.tree.map(jnp.zeros_like, params)
        parts = pixels.reshape(count, -1, *pixels.shape[1:])
        add = functools.partial(jax.tree.map, jnp.add)
        return lax.scan(lambda g, x: (add(g, jax.grad(loss)(params, x)), None), zeros, parts)[0]

    form = f"jax {jax.__version__} {'lax.conv' if native else 'ours'}"
    act = jax.jit(forward)
    few = jnp.asarray(frames(ACT_FRAMES[network]).transpose(layout))
    yield "act", form, lambda: jax.block_until_ready(act(params, few))
    many = jnp.asarray(frames(options.frames).transpose(layout))
    for count in (1,) if native else options.microbatches:
        step = jax.jit(functools.partial(update, count))
        name = form if count == 1 else f"{form}, {count} microbatches"
        yield (
            "update",
            name,
            functools.partial(lambda step: jax.block_until_ready(step(params, many)), step),
        )


def torch_runs(network: str, options: Options) -> Iterator[tuple[str, str, Run]]:
    try:
        import torch
    except ImportError:
        return
    functional = torch.nn.functional
    rng = np.random.default_rng(0)
    params = []
    for s in SHAPES[network]:
        array = torch.tensor(rng.normal(size=s) / np.prod(s[:-1]) ** 0.5, dtype=torch.float32)
        if len(s) == 4:
            array = array.permute(3, 2, 0, 1).contiguous(memory_format=torch.channels_last)
        params.append((array.requires_grad_(), torch.zeros(s[-1], requires_grad=True)))

    def conv(x: Any, kernel: Any, bias: Any, stride: int, padding: str) -> Any:
        return functional.conv2d(x, kernel, bias, stride, 1 if padding == "SAME" else 0)

    def forward(pixels: Any) -> Any:
        x = pixels.permute(0, 3, 1, 2).float()
        (kernel, bias), *rest = params
        left = iter([(kernel / 255, bias), *rest])
        if network == "shallow":
            for stride in (4, 2, 1):
                x = functional.relu(conv(x, *next(left), stride, "VALID"))
        else:
            for _ in range(3):
                x = functional.max_pool2d(conv(x, *next(left), 1, "SAME"), 3, 2, 1)
                for _ in range(2):
                    y = conv(functional.relu(x), *next(left), 1, "SAME")
                    x = x + conv(functional.relu(y), *next(left), 1, "SAME")
            x = functional.relu(x)
        x = x.permute(0, 2, 3, 1).reshape(x.shape[0], -1)
        weights, bias = next(left)
        x = functional.relu(x @ weights + bias)
        weights, bias = next(left)
        return x @ weights + bias

    def act() -> None:
        with torch.no_grad():
            forward(few)

    def update() -> None:
        torch.autograd.grad(forward(many).square().mean(), [a for pair in params for a in pair])

    few = torch.from_numpy(frames(ACT_FRAMES[network]))
    many = torch.from_numpy(frames(options.frames))
    yield "act", f"PyTorch {torch.__version__}", act
    yield "update", f"PyTorch {torch.__version__}", update


def frames(count: int) -> Any:
    return np.random.default_rng(1).integers(0, 256, (count, 84, 84, 4), np.uint8)


def measure(runs: list[Run], options: Options) -> list[list[float]]:
    """For each run, its seconds per call in every turn."""
    for run in runs:
        run()
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(options.turns):
        for run, results in zip(runs, seconds, strict=True):
            start, calls = time.perf_counter(), 0
            while not calls or time.perf_counter() - start < options.seconds:
                run()
                calls += 1
            results.append((time.perf_counter() - start) / calls)
    return seconds


def main(options: Options) -> None:
    report: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/convolution.py", *sys.argv[1:]]),
        "machine": throughput_report.machine(),
        "rows": [],
    }
    for network in options.networks:
        runs = [
            *jax_runs(network, True, options),
            *jax_runs(network, False, options),
            *torch_runs(network, options),
        ]
        for what, count in (("act", ACT_FRAMES[network]), ("update", options.frames)):
            chosen = [(form, run) for kind, form, run in runs if kind == what]
            results = measure([run for _, run in chosen], options)
            for (form, _), seconds in zip(chosen, results, strict=True):
                rates = [count / s for s in seconds]
                row = {"network": network, "what": what, "form": form, "frames": count}
                report["rows"].append(row | {"frames_per_second": rates})
        options.out.parent.mkdir(parents=True, exist_ok=True)
        Path(f"{options.out}.json").write_text(json.dumps(report, indent=1) + "\n")
        Path(f"{options.out}.md").write_text(table(report) + "\n")
    print(table(report))


def table(report: dict[str, Any]) -> str:
    """The medians, in Markdown."""
    on = report["machine"]
    turns = len(report["rows"][0]["frames_per_second"])
    lines = [
        "# The Atari networks alone",
        "",
        f"`{report['command']}`",
        "",
        f"{on['date']}; {on['cpus_to_use']} cores ({on['cpu']}); sebulba {on['sebulba']} "
        f"({on['git']}). Frames/s, median of {turns} (least to most).",
        "",
        "| network | | frames | | frames/s |",
        "|---|---|---:|---|---:|",
    ]
    for row in report["rows"]:
        rates = row["frames_per_second"]
        lines.append(
            f"| {row['network']} | {row['what']} | {row['frames']} | {row['form']} "
            f"| {statistics.median(rates):,.0f} ({min(rates):,.0f} to {max(rates):,.0f}) |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main(tyro.cli(Options))
