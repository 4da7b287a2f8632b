"""A plan on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from sebulba.planning.plan import Plan, Row


def render(plan: Plan) -> RenderableType:
    """One column for each layout that compiles, what was assumed, and the recommendation."""
    hosts = f"{plan.hosts} host{'s' if plan.hosts > 1 else ''}"
    table = Table(
        "estimates in italics",
        title=(
            f"{plan.preset} · {plan.env} · {plan.slice} ({plan.shape}): {hosts} of "
            f"{plan.devices_per_host} devices and {plan.cpus_per_host} CPUs"
        ),
        box=None,
        padding=(0, 1),
    )
    compiled = [row for row in plan.rows if row.refused is None]
    cells = [_cells(row, plan) for row in compiled]
    for row in compiled:
        style = "bold" if row.layout == plan.recommended else ""
        table.add_column(row.layout, justify="right", header_style=style, overflow="fold")
    for label in cells[0] if cells else ():
        table.add_row(label, *(column[label] for column in cells))
    lines = [
        "Of each host's devices, those after a act, and those after l learn.",
        *(f"{row.layout} is refused: {row.refused}" for row in plan.rows if row.refused),
        *(f"{row.layout} needs {row.changes}" for row in compiled if row.changes),
        f"by itself, training takes {plan.chosen_note or plan.chosen}",
        f"Operations, bytes and memory are of one device, by the compiler (libtpu "
        f"{plan.versions['libtpu']}). Times and frames/s, of the whole slice, are estimates: what "
        "those counts and the chip's peaks allow, without calls, and with no transfers but those "
        "of a replay in host memory. Of devices that also learn, 80% is counted. An actor waits "
        "for its environments after each step.",
        _assumed(plan),
    ]
    return Group(
        table,
        *map(Text, lines),
        f"[bold]{plan.recommended or 'no layout'}[/] is recommended: {escape(plan.why)}.",
    )


def _assumed(plan: Plan) -> str:
    """What is assumed of the environments, where from, and whether it matters."""
    least, most = plan.steps_per_core
    if least == most:
        return f"Assumed: {least:,.0f} environment steps/s on each CPU."
    return (
        f"Assumed: {least:,.0f} to {most:,.0f} environment steps/s on each CPU, as EnvPool's "
        "authors measured with Atari on a TPU VM (synchronously, and at most). For others, measure "
        "one and set --steps-per-core. Where acting or environments are the bound, this moves the "
        "answer."
    )


def _cells(row: Row, plan: Plan) -> dict[str, str]:
    act, update, rates, best = row.act, row.update, row.estimate, row.at_best
    assert act is not None and update is not None and rates is not None and best is not None
    return {
        "compiles in": f"{act.seconds + update.seconds:.0f} s",
        "act, operations": si(act.flops),
        "act, bytes": si(act.bytes, "B"),
        "update, operations": si(update.flops),
        "update, bytes": si(update.bytes, "B"),
        "update, all-reduce": si(update.all_reduce_bytes, "B"),
        "peak memory": f"{si(row.hbm, 'B')} ({row.hbm / plan.hbm_bytes:.0%})",
        "act": f"[italic]{rates.act_seconds * 1e3:.3g} ms[/]",
        "update": f"[italic]{rates.update_seconds * 1e3:.3g} ms[/]",
        "replay": f"[italic]{rates.replay_seconds * 1e3:.3g} ms[/]",
        "update bound by": f"[italic]{rates.update_bound}[/]",
        "acting, frames/s": f"[italic]{_range(rates.acting, best.acting)}[/]",
        "learning, frames/s": f"[italic]{_range(rates.learning, best.learning)}[/]",
        "CPUs for it, per host": f"[italic]{best.cores_per_host:,.0f} to "
        f"{rates.cores_per_host:,.0f}[/]",
        "CPUs allow, frames/s": f"[italic]{_range(rates.environments, best.environments)}[/]",
        "frames/s": f"[italic]{_range(rates.frames, best.frames)}[/]",
        "bound by": f"[italic]{' to '.join(dict.fromkeys((rates.bound, best.bound)))}[/]",
    }


def _range(least: float, most: float) -> str:
    return si(least) if si(least) == si(most) else f"{si(least)} to {si(most)}"


def si(number: float, unit: str = "") -> str:
    """Three digits and a prefix: 1.23 G."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()
