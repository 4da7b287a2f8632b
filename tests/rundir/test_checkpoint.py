"""What is read back is what was written, or it is said what is wrong."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from whole_runs import on, rows_of, tiny

import sebulba
from sebulba import CheckpointConfig, ConfigError
from sebulba.rundir import contents
from sebulba.rundir.checkpoint import Checkpointer
from sebulba.rundir.reading import checkpoint_turns, checkpoints_in

pytestmark = pytest.mark.usefixtures("orbax_may_fail")


class State(NamedTuple):
    params: dict[str, jax.Array]
    moments: tuple[jax.Array, ...]


def state(rows: int = 40, **more: Any) -> State:
    noise = jax.random.normal(jax.random.PRNGKey(0), (rows, 30))
    params = {"kernel": noise, "bias": jnp.arange(30, dtype=jnp.bfloat16), **more}
    return State(params, (noise > 0, jnp.int32(7)))


def save(directory: Path, *turns: int) -> None:
    with Checkpointer(directory, max_to_keep=9) as checkpoints:
        for turn in turns:
            checkpoints.save(turn, state(), state().params, {"steps": turn / 7, "updates": turn})


def restore(directory: Path, template: State | None = None, turn: int = 5) -> Any:
    with Checkpointer(directory) as checkpoints:
        return checkpoints.restore(turn, template or state(), (template or state()).params)


def flip(position: float) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        if data:
            data[min(len(data) - 1, int(position * len(data)))] ^= 0x55
        path.write_bytes(data)

    return change


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGES = {"missing": Path.unlink, "cut": cut} | {
    f"flipped at {share}": flip(share) for share in (0, 0.3, 0.5, 0.8, 1)
}
QUICK = ("missing", "flipped at 0.5")


def damaged_in_turn(
    directory: Path, damage: Callable[[Path], None]
) -> Iterator[tuple[Path, bytes]]:
    """Each file below ``directory``, while it is damaged."""
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        before = path.read_bytes()
        damage(path)
        yield path, before
        path.write_bytes(before)


@pytest.mark.parametrize(
    "damage",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DAMAGES],
)
def test_a_damaged_file_is_noticed_and_not_taken_for_another_config(
    damage: str, tmp_path: Path
) -> None:
    save(tmp_path, 5)
    refused = 0
    for path, _ in damaged_in_turn(tmp_path / "5", DAMAGES[damage]):
        with Checkpointer(tmp_path) as checkpoints:
            for read, expected in (
                (lambda c=checkpoints: c.restore(5, state(), state().params)[0], state()),
                (lambda c=checkpoints: c.restore_params(5, state().params), state().params),
                (lambda c=checkpoints: c.counts(5), {"steps": 5 / 7, "updates": 5}),
            ):
                try:
                    found = read()
                except ConfigError as error:
                    refused += 1
                    assert "is damaged" in str(error) and "remove" not in str(error), path
                else:
                    # Orbax does not need every file.
                    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert refused > 5


def test_random_keys_come_back_as_keys(tmp_path: Path) -> None:
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    written = {
        "single": jax.random.key(3),
        "several": jax.random.split(jax.random.key(5, impl="rbg"), (2, 3)),
        "old": jax.random.PRNGKey(7),
    }
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=device), written
    )
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(5, written, written, {})
    with Checkpointer(tmp_path) as checkpoints:
        state, _, _ = checkpoints.restore(5, written, written)
        params = checkpoints.restore_params(5, shapes)
    for read in (state, params):
        for name, keys in read.items():
            assert (keys.dtype, keys.shape) == (written[name].dtype, written[name].shape)
            np.testing.assert_array_equal(contents.data(keys), contents.data(written[name]))


READS_A_DAMAGED_ONE = """
import sys
from pathlib import Path
import jax
from sebulba.rundir import contents
from sebulba.rundir.checkpoint import Checkpointer

many = {f"layer_{i}": jax.random.normal(jax.random.key(i), (100, 100)) for i in range(40)}
with Checkpointer(Path("run")) as checkpoints:
    checkpoints.save(5, many, many["layer_0"], {"steps": 1})
for path in Path("run/5/arrays").glob(sys.argv[1]):
    data = path.read_bytes()
    path.write_bytes(data[:20] + bytes(20) + data[40:])
for _ in range(10):
    with Checkpointer(Path("run")) as checkpoints:
        try:
            checkpoints.restore(5, many, many["layer_0"])
        except ValueError:
            print("damaged")
"""


@pytest.mark.slow
@pytest.mark.parametrize("files", ["*/[0-9]*", "state.layer_7/[0-9]*", "state.layer_7/.zarray"])
def test_a_damaged_one_is_told_of_in_one_message(tmp_path: Path, files: str) -> None:
    """Not in hundreds of lines about the arrays that arrived after the first one failed."""
    words = [sys.executable, "-c", READS_A_DAMAGED_ONE, files]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (result.stdout, result.stderr) == ("damaged\n" * 10, "")


WRITES = """
from pathlib import Path
import jax.numpy as jnp
from sebulba.rundir import contents
from sebulba.rundir.checkpoint import Checkpointer

with Checkpointer(Path("run")) as checkpoints:
    checkpoints.save(5, {"w": jnp.ones(3)}, {"w": jnp.ones(3)}, {"steps": 1})
"""


def test_writing_one_says_nothing(tmp_path: Path) -> None:
    """In a process of its own: Orbax's logger writes wherever standard error is when it starts."""
    words = [sys.executable, "-c", WRITES]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


COUNTS_THREADS = """
import os
from pathlib import Path
import jax.numpy as jnp
from sebulba.rundir import contents
from sebulba.rundir.checkpoint import Checkpointer

many = {f"layer_{i}": jnp.ones((100, 100)) for i in range(100)}
before = len(os.listdir("/proc/self/task"))
for turn in range(3):
    with Checkpointer(Path("run")) as checkpoints:
        checkpoints.save(turn, many, many, {"steps": 1})
    print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are listed in /proc")
def test_writing_takes_few_threads(tmp_path: Path) -> None:
    """The C library gives heaps to many of them, which hold more memory after each write."""
    words = [sys.executable, "-c", COUNTS_THREADS]
    result = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    # Those of TensorStore for files and for copies, and those of asyncio and Orbax.
    most = 2 * max(4, os.cpu_count() or 1) + 12
    counts = [int(line) for line in result.stdout.split()]
    assert len(counts) == 3 and max(counts) <= most


def test_what_differs_is_named(tmp_path: Path) -> None:
    save(tmp_path, 5)
    for template, says in (
        (state(rows=8), r"params\.kernel is float32\[40,30\] there and float32\[8,30\] here"),
        (state(more=jnp.zeros(2)), r"params\.more is only here"),
        (State({"bias": state().params["bias"]}, state().moments), r"params\.kernel is only ther"),
        (state()._replace(moments=()), r"moments\.0 is only there.*moments\.1 is only there"),
        (state(bias=jnp.zeros(30)), r"params\.bias is bfloat16\[30\] there and float32\[30\] here"),
    ):
        with pytest.raises(ConfigError, match=rf"checkpoint 5 .*does not fit.*{says}") as caught:
            restore(tmp_path, template)
        assert "damage" not in str(caught.value) and "remove" not in str(caught.value)


@pytest.mark.parametrize("kind", [list, tuple])
def test_parts_without_arrays_may_differ(kind: Any, tmp_path: Path) -> None:
    """As of AdamW and Adam, whose states have three parts and two, of which one has arrays."""
    of_adam = optax.adam(1e-3).init(state().params)
    written = {"train": kind([of_adam[0], optax.EmptyState(), optax.EmptyState(), None, {}])}
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(5, written, state().params, {})
        found, *_ = checkpoints.restore(5, {"train": of_adam}, state().params)
    jax.tree.map(np.testing.assert_array_equal, found, {"train": of_adam})
    assert jax.tree.structure(found) == jax.tree.structure({"train": of_adam})


@jax.tree_util.register_pytree_node_class
class Unnamed:
    """Of a library that gives no names to the parts of its nodes."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def tree_flatten(self) -> Any:
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _: Any, parts: Any) -> Unnamed:
        return cls(*parts)


@pytest.mark.parametrize(
    "form",
    [
        lambda *a: {"mlp/~/linear_0": {"w": a[0]}, "a.b": a[1]},
        lambda *a: {2: a[0], 10: {1: a[1]}},
        lambda *a: list(a),
        lambda *a: Unnamed(a[0], Unnamed(a[1])),
        lambda *a: a[0],
    ],
    ids=["names with signs", "numbers", "a list of more than ten", "unnamed", "one array"],
)
def test_trees_of_any_form_come_back(form: Any, tmp_path: Path) -> None:
    params = form(*(jnp.arange(3.0) + number for number in range(12)))
    with Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(5, {"train": params}, params, {})
        found, *_ = checkpoints.restore(5, {"train": params}, params)
    assert jax.tree.structure(found) == jax.tree.structure({"train": params})
    jax.tree.map(np.testing.assert_array_equal, found, {"train": params})


def test_counts_come_back_exactly(tmp_path: Path) -> None:
    save(tmp_path, 5)
    assert restore(tmp_path)[1] == {"steps": 5 / 7, "updates": 5}


def train(out: Path, total_steps: int, **changes: Any) -> sebulba.TrainResult:
    often = CheckpointConfig(interval=4, max_to_keep=9)
    config = tiny(out=out, total_steps=total_steps, log_every=1, checkpoint=often, **changes)
    return sebulba.train(config, topology=on(1))


def break_arrays(checkpoint: Path) -> None:
    """Flip bits all over the largest array of the state, which a run reads."""
    files = (checkpoint / "arrays").glob("state.*/[0-9]*")
    largest = max(files, key=lambda path: path.stat().st_size)
    for tenth in range(1, 10):
        flip(tenth / 10)(largest)


@pytest.mark.slow
def test_a_run_goes_on_from_the_newest_checkpoint_that_can_be_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, 400)
    *_, older, old, newest = checkpoint_turns(tmp_path)
    break_arrays(checkpoints_in(tmp_path) / str(newest))
    shutil.rmtree(checkpoints_in(tmp_path) / str(old) / "counts")
    capfd.readouterr()
    result = train(tmp_path, 600, resume=True)
    said = " ".join(capfd.readouterr().out.split())
    assert f"checkpoint(s) [{old}, {newest}] are damaged" in said
    assert f"goes on from {older}" in said
    assert result.metrics[0]["update"] == older + 1
    assert [row["update"] for row in rows_of(tmp_path)] == list(range(1, result.updates + 1))
    assert sorted(path.name for path in (tmp_path / "damaged").iterdir()) == sorted(
        map(str, (old, newest))
    )
    # What is written under the same names is good.
    for turn in checkpoint_turns(tmp_path):
        with Checkpointer(checkpoints_in(tmp_path)) as checkpoints:
            assert checkpoints.counts(turn)["updates"] == turn
    assert sebulba.evaluate_run(tmp_path, 1, checkpoint=old).update == old


@pytest.mark.slow
def test_no_checkpoint_that_can_be_read_is_said(tmp_path: Path) -> None:
    train(tmp_path, 100)
    turns = checkpoint_turns(tmp_path)
    for turn in turns:
        break_arrays(checkpoints_in(tmp_path) / str(turn))
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=rf"checkpoint {turns[-1]} .*is damaged.*no older one"):
        train(tmp_path, 600, resume=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_evaluation_names_the_checkpoints_that_are_left(tmp_path: Path) -> None:
    train(tmp_path, 200)
    *older, newest = checkpoint_turns(tmp_path)
    for path in (checkpoints_in(tmp_path) / str(newest) / "arrays").glob("params.*"):
        shutil.rmtree(path)
    with pytest.raises(
        ConfigError,
        match=rf"checkpoint {newest} .*is damaged.*Set checkpoint to {older[-1]}, on the com",
    ):
        sebulba.evaluate_run(tmp_path, 1)


def test_another_agent_is_told_what_differs(tmp_path: Path) -> None:
    train(tmp_path, 100)
    agent = sebulba.train(
        tiny(network=sebulba.NetworkConfig(hidden_sizes=(9,))), progress=False, topology=on(1)
    ).agent
    with pytest.raises(ConfigError, match=r"does not fit.*is float32\[50,8\] there and float32\[5"):
        sebulba.evaluate_run(tmp_path, 1, agent=agent)
