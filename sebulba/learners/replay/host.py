"""The prioritized replay of one host, with one shard for each of its learner devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from sebulba.devices import distributed
from sebulba.devices.compiler import Refused, inspect
from sebulba.learners.base import Upkeep
from sebulba.learners.replay import saved, snapshot
from sebulba.learners.replay.capacity import check_memory
from sebulba.learners.replay.shard import ReplayShard, Sample
from sebulba.learners.replay.storage import (
    Block,
    DevicePrograms,
    DeviceStorage,
    Geometry,
    HostStorage,
    nbytes,
    nbytes_of_sequence,
)
from sebulba.types import Histogram, Trajectory, Unroll
from sebulba.validation import ConfigError, Count, Fields, Positive, Share

Errors = Callable[[Trajectory], jax.Array]
"""Absolute TD errors ``[T, B]`` of an unroll, -1 where there is none."""
Priority = Callable[[np.ndarray], np.ndarray]
"""Priorities ``[B]`` of sequences, from their TD errors ``[S, B]``."""
_BINS = 30
"""Of the histogram of priorities: as many as TensorBoard draws."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig(Fields):
    """Prioritized replay of sequences, one on each host."""

    capacity: Count = 100_000
    """Sequences kept on each host."""
    min_size: Count = 5_000
    """Sequences inserted on each host before learning starts."""
    storage: Literal["host", "device"] = "host"
    """host: in host memory, batches are sent to the learner devices; device: on those devices."""
    samples_per_insert: Positive = 1.0
    """Sequences learned from for each one inserted; kept by counting, whatever the timing."""
    priority_exponent: Share = 0.9
    """Exponent of the priorities (Kapturowski et al. 2019, section 2.3)."""
    importance_exponent: Share = 0.6
    """Exponent of the importance weights, which are divided by the largest in the whole batch."""
    priority_eta: Share = 0.9
    """Weight of the largest TD error of a sequence; the mean has the rest (same section)."""


class HostReplay:
    """Each learner device replays the unrolls that it received; all draw equally many sequences.

    The shards may have different priorities in total. The importance weights correct for that,
    because each uses the probability within its own shard.

    Attributes:
      inserted: sequences completed so far.
      learned_from: those completed since learning started, which make updates due.
      trained: sequences that updates have learned from, with repetitions.
    """

    def __init__(
        self,
        config: ReplayConfig,
        blocks: Block,
        *,
        lanes: int,
        span: int,
        batch_size: int,
        seed: int,
        devices: Sequence[jax.Device],
    ) -> None:
        """Nothing is allocated until ``allocate``.

        Args:
          config: sizes and exponents.
          blocks: shapes of one actor's unroll on one device, ``[B, T, ...]``.
          lanes: actors of this host.
          span: unrolls in one sequence.
          batch_size: sequences of one update; the number of devices must divide it.
          seed: of the random draws.
          devices: learner devices of this host.
        """
        self._config = config
        self._blocks = blocks
        self._batch_size = batch_size
        self._seed = seed
        self._devices = tuple(devices)
        num_envs = blocks.action.shape[0]
        # A sequence also needs the timestep after its ``span`` unrolls. So in a full ring, none can
        # start in the newest ``span`` slots, and these come on top of the capacity.
        slots = -(-config.capacity // (lanes * num_envs * len(devices))) + span
        self._geometry = Geometry(lanes, slots, num_envs, span)
        self._shards: list[ReplayShard] = []
        self.inserted = 0
        self.learned_from = 0
        self.trained = 0
        self._unrolls = 0
        self._samples = 0
        self._snapshot: snapshot.Snapshot | None = None

    @property
    def bytes_per_device(self) -> int:
        """Bytes of the shard of one learner device.

        On the device itself these are what its compiler says, with the padding, and with what an
        insert or a sample needs besides.

        Raises:
          ConfigError: its compiler says that it does not fit.
        """
        if self._config.storage == "host":
            return nbytes(self._blocks, self._geometry)
        try:
            return max(inspect(program).hbm for program, _ in self.upkeep().programs)
        except Refused as refused:
            raise ConfigError(
                f"the replay does not fit on a learner device ({refused}). Set replay.capacity to "
                "less, on the command line with --replay.capacity, or change replay.storage, with "
                "--replay.storage."
            ) from refused

    def upkeep(self) -> Upkeep:
        """What inserts and samples cost for each update, in the long run."""
        devices, batch = self._devices, self._batch_size
        # Each block that is inserted completes one sequence.
        blocks = batch / self._config.samples_per_insert
        if self._config.storage == "device":
            programs = DevicePrograms(self._blocks, self._geometry)
            read, write = programs.lower(devices[0], batch // len(devices))
            inserts = blocks / (self._geometry.num_envs * len(devices))
            return Upkeep(programs=((read, 1.0), (write, inserts)))
        block = nbytes(self._blocks, self._geometry._replace(lanes=1, slots=1))
        return Upkeep(
            gathered=batch * nbytes_of_sequence(self._blocks, self._geometry),
            stored=blocks * block / self._geometry.num_envs,
        )

    def allocate(self) -> str:
        """Allocate the memory; returns a line about it.

        Raises:
          ConfigError: there is not enough memory.
        """
        config, needed = self._config, self.bytes_per_device * len(self._devices)
        line = check_memory(needed, config.storage, self._devices)
        storage = HostStorage if config.storage == "host" else DeviceStorage
        self._shards = [
            ReplayShard(
                storage(self._blocks, self._geometry, device),
                self._geometry,
                config.priority_exponent,
            )
            for device in self._devices
        ]
        return line

    def insert(self, unrolls: Sequence[Unroll], errors: Errors, priority: Priority) -> int:
        """Insert a turn's unrolls.

        Args:
          unrolls: one trajectory for each shard in each of them.
          errors: see ``Errors``; computed on the shard's device.
          priority: see ``Priority``; computed on the host once a sequence is complete.

        Returns:
          How many updates are due now. It follows from counts alone, so all hosts agree on it.
        """
        completed = 0
        for unroll in unrolls:
            lane = unroll.lane
            completed += self._completes()
            self._unrolls += 1
            pairs = zip(self._shards, unroll.shards, strict=True)
            for number, (shard, part) in enumerate(pairs):
                # The snapshot that is being written may still need what this insert overwrites.
                if self._snapshot is not None:
                    self._snapshot.keep(number, lane, shard.next_slot(lane))
                shard.insert(lane, part, errors(part), priority, unroll.continues)
        self.inserted += completed
        # The sequences that filled the replay make no updates due: otherwise all of those updates
        # would come at once, in the turn in which learning starts.
        if self.inserted < self._config.min_size:
            return 0
        before = self._updates()
        self.learned_from += completed
        return self._updates() - before

    def sample(self) -> list[Sample]:
        """One sample of each shard: those that were drawn ahead, if there are any."""
        ahead = [shard.drawn for shard in self._shards]
        for shard in self._shards:
            shard.drawn = None
        drawn = [sample for sample in ahead if sample is not None]
        return drawn if len(drawn) == len(self._shards) else self._draw()

    def draw_ahead(self) -> None:
        """Draw what ``sample`` returns next; a snapshot holds it."""
        for shard, sample in zip(self._shards, self._draw(), strict=True):
            shard.drawn = sample

    def _draw(self) -> list[Sample]:
        """New samples.

        The random numbers depend on the seed, the shard and the number of the sample alone, so a
        resumed run needs no stored state of a generator.
        """
        if not all(self.sizes()):
            raise RuntimeError(
                f"there is no whole sequence in the replay after {self.inserted:,}: remote lanes "
                "are lost before they complete one. See to it that env-hosts live longer."
            )
        samples = []
        for number, shard in enumerate(self._shards):
            # Numbered over all hosts, so that no two shards draw with the same random numbers.
            where = jax.process_index() * len(self._shards) + number
            random = np.random.default_rng([self._seed, where, self._samples])
            samples.append(shard.sample(self._batch_size // len(self._shards), random))
        self._samples += 1
        return samples

    def sizes(self) -> list[int]:
        """Sequences that can be drawn from each shard."""
        return [shard.size for shard in self._shards]

    def update(self, samples: Sequence[Sample], priorities: Sequence[np.ndarray]) -> None:
        """Set new priorities ``[N]`` of the sequences in each shard's sample."""
        for shard, sample, new in zip(self._shards, samples, priorities, strict=True):
            shard.update(sample, new)

    def metrics(self) -> dict[str, float]:
        """Size, replay ratio since learning started, and quantiles of the priorities."""
        row: dict[str, float] = {
            "replay_size": sum(self.sizes()),
            "samples_per_insert": self.trained / max(1, self.learned_from),
        }
        powers = self._powers()
        if powers.size:
            for quantile in (10, 50, 90):
                value = self._priorities_of(np.percentile(powers, quantile))
                row[f"priority_quantile_{quantile}"] = float(value)
        return row

    def histograms(self) -> dict[str, Histogram]:
        """Those of the priorities, if there are any."""
        powers = self._powers()
        if not powers.size:
            return {}
        counts, edges = np.histogram(powers, _BINS, (0.0, powers.max()))
        return {"priority": Histogram(self._priorities_of(edges), counts)}

    def _powers(self) -> np.ndarray:
        """The powers of all priorities of which some are known."""
        # Only the powers are stored. With an exponent of 0 all of them are 1: the priorities are
        # lost.
        if self._config.priority_exponent == 0:
            return np.empty(0)
        powers = np.concatenate([shard.priorities.powers for shard in self._shards])
        return powers[powers > 0]

    def _priorities_of(self, powers: Any) -> Any:
        return powers ** (1 / self._config.priority_exponent)

    def save(self, path: Path) -> None:
        """Start writing everything, as it is now, to the directory ``path``.

        The learner continues meanwhile, but waits here for an earlier save that is still under way.
        """
        self.finish()
        counts = [self.inserted, self.learned_from, self.trained, self._samples]
        self._snapshot = snapshot.Snapshot(path, self._shards, np.array(counts))

    def load(self, path: Path) -> str | None:
        """Read ``path`` or else the newest snapshot in its folder, on all hosts or on none.

        A host that was killed while it wrote ``path`` still has an older snapshot, so hosts may
        read different turns. All take the counts of the host with the fewest, because the number
        of updates due must be the same on every host.

        Returns:
          A line to print if any host read something else than ``path``, or nothing at all.
        """
        # Both calls of ``gather`` wait for all hosts: all must take the same branches between them.
        found = saved.newest(path, self._shards)
        turns = distributed.gather(np.array(-1 if found is None else found.turn))
        if found is None or turns.min() < 0:
            hosts = np.flatnonzero(turns < 0).tolist()
            return (
                f"no replay of this size that can be read in {path.parent} (host(s) {hosts}): it "
                "starts empty"
            )
        found.fill(self._shards)
        own = [*found.counts, self._shards[0].unrolls]
        counts = distributed.gather(np.array(own)).min(axis=0)
        (self.inserted, self.learned_from, self.trained, self._samples, self._unrolls) = (
            counts.tolist()
        )
        for shard in self._shards:
            # Of another batch size, after a change of options.
            if shard.drawn and len(shard.drawn.indices) != self._batch_size // len(self._shards):
                shard.drawn = None
        found_turns = sorted(set(turns.tolist()))
        if found_turns == [int(path.name)]:
            return None
        return f"the replay is that of turn(s) {found_turns}, the checkpoint that of {path.name}"

    def _completes(self) -> int:
        """Sequences that the next unroll completes, in all shards.

        Where lanes are lost or taken from out of order, it completes none, or those of others do
        so sooner. Counted are those of lanes that take turns, since all hosts must count the same.
        """
        filled = self._unrolls >= self._geometry.span * self._geometry.lanes
        return self._geometry.num_envs * len(self._shards) if filled else 0

    def _updates(self) -> int:
        """Updates due so far, from the total count, so that rounding errors do not add up."""
        sequences = self.learned_from * self._config.samples_per_insert
        return int(sequences / self._batch_size)

    def finish(self) -> None:
        """Wait for a save that is under way, and raise the error that stopped it, if any."""
        if self._snapshot is not None:
            under_way, self._snapshot = self._snapshot, None
            under_way.finish()
