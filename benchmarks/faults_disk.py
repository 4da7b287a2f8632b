"""Faults of the run directory: kills while files are written, full disks, damaged files, locks."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

from fault import RUN, checkpoints, fault, program, resumes, sebulba, small
from faults import FROM_CHECKPOINT, NOTHING, PARTS, TRAIN

RESUMES = "`--resume` goes on from the last complete checkpoint"


@fault(
    "kill -9",
    "at a random moment of a run that writes checkpoints all the time",
    RESUMES,
    FROM_CHECKPOINT,
    times=20,
)
def kill_anywhere(chance: random.Random) -> None:
    with sebulba(*small("--checkpoint.interval", "2")) as run:
        run.wait_for(checkpoints)
        time.sleep(chance.uniform(0, 2))
        run.kill()
    resumes()


@fault(
    "kill -9 while a checkpoint is written",
    "when its folder has a temporary name",
    RESUMES,
    FROM_CHECKPOINT,
)
def kill_saving(chance: random.Random) -> None:
    with sebulba(*small("--checkpoint.interval", "2")) as run:
        run.wait_for(lambda: checkpoints() and list(Path(RUN, "checkpoints").glob("*tmp*")))
        time.sleep(chance.uniform(0, 0.02))
        run.kill()
    resumes()


R2D2 = (
    *("--checkpoint.save-replay", "--checkpoint.interval", "20", "--batch-size", "8"),
    *("--replay.min-size", "200", "--replay.capacity", "20000"),
)


@fault(
    "kill -9 while a replay is written",
    "when its folder has a temporary name",
    RESUMES,
    f"{FROM_CHECKPOINT}; the replay is that of the checkpoint, or begins empty, which a line says",
)
def kill_replay(chance: random.Random) -> None:
    with sebulba(*small(*R2D2, preset="r2d2-catch")) as run:
        run.wait_for(lambda: checkpoints() and list(Path(RUN, "replay", "host-0").glob("*.tmp")))
        time.sleep(chance.uniform(0, 0.05))
        run.kill()
    resumes("--batch-size", "8", preset="r2d2-catch")


FULL = """
import errno
def full(*args):
    print("full", flush=True)
    raise OSError(errno.ENOSPC, "No space left on device")
"""


@fault(
    "the disk is full while logging",
    "writing a row of metrics fails with ENOSPC",
    "the run ends with the error",
    FROM_CHECKPOINT,
)
def full_disk_logging(chance: random.Random) -> float:
    patch = (
        FULL
        + f"""
from sebulba.metrics.writer import MetricsWriter
kept, rows = MetricsWriter.write, []
def write(self, row, histograms):
    rows.append(row)
    full() if len(rows) > {chance.randrange(2, 9)} else kept(self, row, histograms)
MetricsWriter.write = write
"""
    )
    return _ends_on_a_full_disk(patch)


@fault(
    "the disk is full while a checkpoint is written",
    "a limit on the size of files, which writing it exceeds",
    "the run ends with the error; older checkpoints stay",
    FROM_CHECKPOINT,
)
def full_disk_saving(chance: random.Random) -> float:
    patch = f"""
import resource
def hook(update):
    if update == {chance.randrange(12, 30)}:
        print("full", flush=True)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, resource.RLIM_INFINITY))
"""
    return _ends_on_a_full_disk(patch, "algorithm=hooked_learner(hook)")


def _ends_on_a_full_disk(patch: str, parts: str = "") -> float:
    with program(PARTS + patch + TRAIN.format(parts=parts)) as run:
        run.says("full")
        seconds = run.end(60, code=1)
    assert checkpoints()
    return seconds


def finished_run() -> None:
    """A run in ``RUN`` with several checkpoints."""
    with sebulba(*small("--total-steps", "6000", "--log-every", "1")) as run:
        run.end(120)
    assert len(checkpoints()) > 1


def files_of(turn: int) -> list[Path]:
    return [
        p
        for p in sorted(Path(RUN, "checkpoints", str(turn)).rglob("*"))
        if p.is_file() and p.stat().st_size
    ]


DAMAGED = "`--resume` goes on from the newest checkpoint that can be read, and says so"


@fault(
    "a checkpoint is cut short",
    "one of its files, at random, loses its second half",
    DAMAGED,
    "the steps since then",
)
def cut_checkpoint(chance: random.Random) -> None:
    _damage(chance, lambda data: data[: len(data) // 2])


@fault(
    "a checkpoint has flipped bytes",
    "20 bytes of one of its files, at random",
    DAMAGED,
    "the steps since then",
)
def flipped_bytes(chance: random.Random) -> None:
    def flip(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(20):
            changed[chance.randrange(len(data))] ^= 0xFF
        return bytes(changed)

    _damage(chance, flip)


def _damage(chance: random.Random, change: object) -> None:
    finished_run()
    path = chance.choice(files_of(checkpoints()[-1]))
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    print("damaged", path)
    words = ["train", "vtrace-catch", "--out", RUN, "--resume", "--total-steps", "26000"]
    with sebulba(*words, name="resumed") as again:
        # Some files are not needed to resume; if one is, an older checkpoint is, or it is refused.
        again.end(120, code=(0, 2))
        assert "Traceback" not in again.text(), again.text()
        assert "remove" not in again.text()


@fault(
    "an evaluation beside a run",
    "`evaluate_run` of a run that keeps one checkpoint and writes them all the time",
    "the newest checkpoint is evaluated",
    NOTHING,
)
def evaluation_beside_run(chance: random.Random) -> None:
    with sebulba(*small("--checkpoint.interval", "1", "--checkpoint.max-to-keep", "1")) as run:
        run.wait_for(checkpoints)
        time.sleep(chance.uniform(0, 1))
        for name in ("evaluated", "again"):
            with sebulba("eval", RUN, "--episodes", "4", name=name) as evaluated:
                evaluated.end(60)
        assert run.process.poll() is None, run.text()


@fault(
    "environments of forked processes outlive the trainer",
    "kill -9 of a run whose environments have forked",
    "another run may write there at once",
    FROM_CHECKPOINT,
)
def lock_of_workers(chance: random.Random) -> None:
    fork = """
import multiprocessing
def hook(env):
    if env.steps == 60 and env.actor == 1:
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,)).start()
        print("forked", flush=True)
"""
    with program(PARTS + fork + TRAIN.format(parts="make_env=HookedEnvs(on_step=hook)")) as run:
        run.says("forked")
        run.wait_for(checkpoints)
        run.process.send_signal(signal.SIGKILL)
        run.process.wait()
        again = "config = tiny(total_steps=10**9, out='run', resume=True)\n"
        again += "def hook(env):\n    if env.steps == 40: signal.raise_signal(signal.SIGINT)\n"
        again += "made = HookedEnvs(on_step=hook)\n"
        again += "sebulba.train(config, make_env=made, topology=on(1), progress=False)\n"
        with program(PARTS + again, name="again") as second:
            second.end(60, code=(1, 130, -2))
            assert "Interrupted" in second.text() or "KeyboardInterrupt" in second.text(), (
                second.text()
            )


@fault(
    "two runs write to one directory",
    "a second `train --resume` beside the first",
    "refused",
    NOTHING,
)
def two_runs(chance: random.Random) -> float:
    with sebulba(*small()) as run:
        run.wait_for(checkpoints)
        start = time.monotonic()
        with sebulba("train", "vtrace-catch", "--out", RUN, "--resume", name="second") as second:
            second.end(60, code=2)
            assert "another run is writing to" in second.text()
        assert run.process.poll() is None
    return time.monotonic() - start


@fault(
    "an object store as run directory",
    "`--out gs://bucket/run`",
    "refused before anything is written",
    NOTHING,
)
def object_store(chance: random.Random) -> float:
    start = time.monotonic()
    with sebulba("train", "vtrace-catch", "--out", "gs://bucket/run") as run:
        run.end(60, code=2)
    assert not Path("gs:").exists()
    return time.monotonic() - start


@fault(
    "a resume with another schedule",
    "another `decay_to_zero`, and four times the batch",
    "goes on; the learning rate is that of the counted steps",
    NOTHING,
)
def resume_with_other_options(chance: random.Random) -> None:
    finished_run()
    resumes("--optimizer.no-decay-to-zero", "--batch-size", "48", "--envs-per-actor", "48")


@fault(
    "a config with NumPy numbers",
    "`seed=np.int64(3)` and `batch_size=np.int64(4)`, saved and resumed",
    "taken as Python's numbers",
    NOTHING,
)
def numpy_config(chance: random.Random) -> None:
    code = f"""
import dataclasses
from pathlib import Path
from sebulba.rundir.reading import load_config

def train(config):
    sebulba.train(config, topology=on(1), progress=False)

seed = np.int64({chance.randrange(99)})
train(tiny(total_steps=np.int64(400), seed=seed, batch_size=np.int64(4), out="run"))
saved = load_config(Path("run"))
assert saved.seed == seed
train(dataclasses.replace(saved, total_steps=np.int32(800), resume=True))
"""
    with program(PARTS + code) as run:
        run.end(60)


@fault(
    "a disk that is lost",
    "the run directory is removed while a run writes to it",
    "the run ends with an error",
    "all of it",
)
def lost_directory(chance: random.Random) -> float:
    with sebulba(*small()) as run:
        run.wait_for(checkpoints)
        time.sleep(chance.uniform(0, 1))
        shutil.rmtree(RUN, ignore_errors=True)
        shutil.rmtree(RUN, ignore_errors=True)
        return run.end(120, code=(1, 2))
