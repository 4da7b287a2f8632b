"""The report of throughput.py: its machine, its summary, a table and a plot.

    python benchmarks/throughput_report.py REPORT.json

writes the table and the plot of a report once more, beside it.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax

import sebulba

Report = dict[str, Any]
Summary = dict[str, Any]

TITLES = {
    "a": "environments alone",
    "b": "act alone",
    "c": "update alone",
    "d": "slowest transfer alone",
    "bound": "bound",
    "e": "training, recorded data",
    "f": "training",
}
GREEN, BLUE, ORANGE, RED = "#4c9f70", "#4a78b5", "#d98a3d", "#b5445a"
GREY, PALE, INK = "#9aa0a6", "#d9dce0", "#30343b"
COLORS = dict(zip(TITLES, (GREEN, BLUE, ORANGE, GREY, INK, "#d9a0ab", RED), strict=True))
THREADS = {
    "learner": {
        "learner_update": ("update", ORANGE),
        "learner_publish": ("publish", "#8a6bb0"),
        "learner_queue_wait": ("wait: unrolls", PALE),
    },
    "actors": {
        "actor_environment": ("environments", GREEN),
        "actor_act": ("act", BLUE),
        "actor_transfer": ("hand over", "#7a9cc6"),
        "actor_params_wait": ("wait: parameters", "#b9bec4"),
        "actor_queue_wait": ("wait: queue", PALE),
    },
}
REST = ("the rest", "#f3f0e8")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    device = jax.devices()[0]
    return {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "cpu": _cpu_model(),
        "cpu_count": os.cpu_count(),
        "cpus_to_use": len(os.sched_getaffinity(0)),
        "device": device.device_kind,
        "platform": device.platform,
        "devices": jax.device_count(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "envpool": importlib.metadata.version("envpool"),
        "sebulba": sebulba.__version__,
        "git": _revision(),
        "environment": {
            name: os.environ[name] for name in ("XLA_FLAGS", "JAX_PLATFORMS") if name in os.environ
        },
        "load_at_start": os.getloadavg(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _revision() -> str | None:
    """Of the library that is measured; None where it is no checkout."""
    directory = Path(sebulba.__file__).parent
    command = ["git", "-C", str(directory), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return done.stdout.strip() or None


def summarize(report: Report) -> Summary:
    """For each part, its setting and the median, least and most of its agent steps/s.

    ``bound``, ``efficiency`` and ``shares`` (of each thread's time in f) are there where the parts
    that they need were measured.
    """
    repeats = report["repeats"]
    summary: Summary = {}
    for name in sorted(repeats[0]):
        setting = _setting(report, name)
        values = [repeat[name][setting]["steps_per_second"] for repeat in repeats]
        summary[name] = {"setting": setting, **_spread(values)}
    if {"a", "b", "c"} <= set(summary):
        rates = zip(*(summary[name]["values"] for name in "abc"), strict=True)
        summary["bound"] = _spread([_bound(report, *row) for row in rates])
    if {"bound", "f"} <= set(summary):
        pairs = zip(summary["f"]["values"], summary["bound"]["values"], strict=True)
        summary["efficiency"] = _spread([training / bound for training, bound in pairs])
    if "f" in summary:
        shares = [repeat["f"][summary["f"]["setting"]]["shares"] for repeat in repeats]
        summary["shares"] = {
            activity: statistics.median(row[activity] for row in shares) for activity in shares[0]
        }
    return summary


def _setting(report: Report, name: str) -> str:
    """The fastest; of acting on a CPU, at the preset's batch size; of transfers, the slowest."""
    candidates = dict(report["repeats"][0][name])
    if name == "b" and _on_cpu(report):
        size = report["config"]["envs_per_actor"]
        candidates = {key: row for key, row in candidates.items() if row["num_envs"] == size}
    medians = {setting: median_of(report, name, setting) for setting in candidates}
    chosen: str = (min if name == "d" else max)(medians, key=medians.__getitem__)
    return chosen


def median_of(report: Report, name: str, setting: str, key: str = "steps_per_second") -> float:
    """Over the repeats."""
    return float(statistics.median(repeat[name][setting][key] for repeat in report["repeats"]))


def _spread(values: list[float]) -> dict[str, Any]:
    return {
        "median": statistics.median(values),
        "min": min(values),
        "max": max(values),
        "values": values,
    }


def _bound(report: Report, a: float, b: float, c: float) -> float:
    """Agent steps/s; why is in throughput.py."""
    return 1 / (1 / a + 1 / b + 1 / c) if _on_cpu(report) else min(a, b, c)


def _on_cpu(report: Report) -> bool:
    return bool(report["machine"]["platform"] == "cpu")


def write(report: Report, out: Path) -> None:
    """OUT.json, OUT.md and OUT.png."""
    report["summary"] = summarize(report)
    Path(f"{out}.json").write_text(json.dumps(report, indent=1) + "\n")
    Path(f"{out}.md").write_text(table(report) + "\n")
    try:
        plot(report, Path(f"{out}.png"))
    except ModuleNotFoundError as error:
        print(f"no plot, since {error.name} is not installed: draw it elsewhere from {out}.json")


def table(report: Report) -> str:
    """The summary and every setting, in Markdown."""
    skip, on, count = report["frame_skip"], report["machine"], len(report["repeats"])
    summary = summarize(report)
    lines = [
        f"# Throughput: {report['config']['preset']}, {report['config']['env']}",
        "",
        f"`{report['command']}`",
        "",
        f"{on['date']}; {on['cpus_to_use']} cores ({on['cpu']}); {report['layout']}; "
        f"jax {on['jax']}, jaxlib {on['jaxlib']}, envpool {on['envpool']}, "
        f"sebulba {on['sebulba']} ({on['git']}). Agent steps/s, median of {count} (least to most)"
        + (f"; frames are {skip} times that." if skip > 1 else "."),
        "",
        "| | | setting | steps/s | frames/s |",
        "|---|---|---|---:|---:|",
    ]
    for name, title in TITLES.items():
        if name in summary:
            row = summary[name]
            letter = name if len(name) == 1 else ""
            lines.append(
                f"| {letter} | {title} | {row.get('setting', '')} | {_range(row)} "
                f"| {row['median'] * skip:,.0f} |"
            )
    if "bound" in summary:
        lines += ["", _bound_in_words(report)]
    if "efficiency" in summary:
        row = summary["efficiency"]
        middle, least, most = (f"{row[key]:.2f}" for key in ("median", "min", "max"))
        lines += ["", f"Efficiency, f / bound: **{middle}** ({least} to {most})."]
    return "\n".join([*lines, *_settings(report), *_threads(summary)])


def _bound_in_words(report: Report) -> str:
    if _on_cpu(report):
        return "The bound is 1 / (1/a + 1/b + 1/c): the three works share the cores."
    return (
        "The bound is min(a, b, c), each at its best setting: the three works overlap, also where "
        "one device acts and learns."
    )


def _range(row: dict[str, Any]) -> str:
    return f"{row['median']:,.0f} ({row['min']:,.0f} to {row['max']:,.0f})"


def _settings(report: Report) -> list[str]:
    """Every setting that was measured."""
    lines = ["", "| | every setting | steps/s | |", "|---|---|---:|---:|"]
    first = report["repeats"][0]
    for name in sorted(first):
        for setting, row in first[name].items():
            values = [repeat[name][setting]["steps_per_second"] for repeat in report["repeats"]]
            more = ""
            if "updates_per_second" in row:
                updates = median_of(report, name, setting, "updates_per_second")
                more = f"{updates:,.4g} updates/s"
                if "replay" in report["config"]:
                    sequences = updates * report["config"]["batch_size"]
                    more += f", {sequences:,.4g} sequences/s"
            if "bytes_per_second" in row:
                speed = median_of(report, name, setting, "bytes_per_second")
                more = f"{speed / 1e6:,.4g} MB/s, {row['bytes_per_step']:,.4g} bytes/step"
            lines.append(f"| {name} | {setting} | {_range(_spread(values))} | {more} |")
    return lines


def _threads(summary: Summary) -> list[str]:
    """Where the time of each thread goes in f."""
    if "shares" not in summary:
        return []
    lines = ["", "| where the time goes in f | | share |", "|---|---|---:|"]
    for thread in THREADS:
        for label, _, share in _stack(summary, thread):
            lines.append(f"| {thread} | {label} | {share:.1%} |")
    return lines


def _stack(summary: Summary, thread: str) -> list[tuple[str, str, float]]:
    """(label, color, share) of one thread's activities; with the rest they are the whole."""
    known = [
        (label, color, summary["shares"][key]) for key, (label, color) in THREADS[thread].items()
    ]
    # An unroll's times come with it, so those of an actor may be a little more than the window.
    return [*known, (*REST, max(0.0, 1 - sum(share for _, _, share in known)))]


def plot(report: Report, path: Path) -> None:
    """Left: the parts and the bound. Right: where the time goes, for each thread."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    summary, config, on = summarize(report), report["config"], report["machine"]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(12, 4.8), width_ratios=(3, 2), layout="constrained"
    )
    _plot_bars(left, summary, report["frame_skip"])
    _plot_threads(right, summary)
    title = f"{config['preset']}, {config['env']}"
    if "efficiency" in summary:
        title += f": training at {summary['efficiency']['median']:.0%} of the bound"
    figure.suptitle(title, fontsize=13, fontweight="bold", color=INK)
    device = "" if on["platform"] == "cpu" else f"{on['devices']} x {on['device']}, "
    figure.supxlabel(
        f"{device}{on['cpus_to_use']} cores of {on['cpu']}; jax {on['jax']}; "
        f"median of {len(report['repeats'])}, whiskers from least to most",
        fontsize=8,
        color="#6b7078",
    )
    figure.savefig(path, dpi=140)
    pyplot.close(figure)


def _plot_bars(axes: Any, summary: Summary, frame_skip: int) -> None:
    names = [name for name in TITLES if name in summary]
    shown = [name for name in names if name not in "abcd"] or names
    # Transfers, say, can be a thousand times faster than the rest: such bars are cut off.
    limit = 6 * max(summary[name]["max"] for name in shown)
    longest = max(min(limit, summary[name]["max"]) for name in names)
    for place, name in enumerate(names):
        row = summary[name]
        middle = row["median"]
        cut = row["max"] > limit
        width = limit if cut else middle
        axes.barh(place, width, height=0.66, color=COLORS[name], zorder=2)
        end = width
        if not cut:
            errors = [[middle - row["min"]], [row["max"] - middle]]
            axes.errorbar(middle, place, xerr=errors, color="#000000", capsize=3, lw=1, zorder=3)
            end = row["max"]
        text = f"{middle:,.0f}" + (" ⟶" if cut else "")
        axes.text(end + 0.015 * longest, place, text, va="center", fontsize=9, color=INK)
    labels = [f"{TITLES[name]}  {name if len(name) == 1 else '–'}" for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * longest)
    unit = "agent steps/s" + (f" (frames/s: times {frame_skip})" if frame_skip > 1 else "")
    axes.set_xlabel(unit)
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="x", nbins=5)  # Millions beside each other need the room.
    axes.grid(axis="x", color="#e4e6e9", zorder=0)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _plot_threads(axes: Any, summary: Summary) -> None:
    if "shares" not in summary:
        axes.set_axis_off()
        return
    for place, thread in enumerate(THREADS):
        bottom = 0.0
        for label, color, share in _stack(summary, thread):
            axes.bar(place, share, 0.26, bottom, color=color, edgecolor="white", zorder=2)
            if share >= 0.04:  # The height of its text.
                text = f"{label} {share:.0%}"
                middle = bottom + share / 2
                axes.text(place + 0.16, middle, text, va="center", fontsize=9, color=INK)
            bottom += share
    axes.set_xticks(range(len(THREADS)), list(THREADS))
    axes.set_xlim(-0.25, len(THREADS) - 0.15)
    axes.set_ylim(0, None)
    axes.set_title("where the time of each thread goes in f", fontsize=10, color=INK)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.tick_params(axis="x", length=0)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    write(json.loads(source.read_text()), source.with_suffix(""))
