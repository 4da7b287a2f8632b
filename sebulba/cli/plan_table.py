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
        *(f"{row.layout} does not compile: {row.refused}" for row in plan.rows if row.refused),
        *(f"{row.layout} needs {row.changes}" for row in compiled if row.changes),
        f"by itself, training takes {plan.chosen_note or plan.chosen}",
        f"Operations, bytes and memory are of one device, by the compiler (libtpu "
        f"{plan.versions['libtpu']}). Times and frames/s, of the whole slice, are estimates: what "
        "those counts and the chip's peaks allow, without calls and transfers. CPU cores assume "
        f"{plan.steps_per_core:,.0f} EnvPool steps/s for each.",
    ]
    return Group(
        table,
        *map(Text, lines),
        f"[bold]{plan.recommended or 'no layout'}[/] is recommended: {escape(plan.why)}.",
    )


def _cells(row: Row, plan: Plan) -> dict[str, str]:
    act, update, rates = row.act, row.update, row.estimate
    assert act is not None and update is not None and rates is not None
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
        "update bound by": f"[italic]{rates.update_bound}[/]",
        "acting, frames/s": f"[italic]{si(rates.acting)}[/]",
        "learning, frames/s": f"[italic]{si(rates.learning)}[/]",
        "CPU cores for it, per host": f"[italic]{rates.cores_per_host:,.0f}[/]",
        "CPUs allow, frames/s": f"[italic]{si(rates.environments)}[/]",
        "bound by": f"[italic]{rates.bound}[/]",
    }


def si(number: float, unit: str = "") -> str:
    """Three digits and a prefix: 1.23 G."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()
