"""The prioritized replay of one host: a shard for each of its learner devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import jax
import numpy as np

from sebulba.devices import distributed
from sebulba.learners.replay import snapshot
from sebulba.learners.replay.capacity import check_memory
from sebulba.learners.replay.shard import ReplayShard, Sample
from sebulba.learners.replay.storage import Block, DeviceStorage, Geometry, HostStorage, nbytes
from sebulba.types import Trajectory, Unroll
from sebulba.validation import Count, Positive, Share

Errors = Callable[[Trajectory], jax.Array]
Priority = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayConfig:
    """Prioritized replay of sequences, one for each host."""

    capacity: Count = 100_000
    """Sequences kept on each host."""
    min_size: Count = 5_000
    """Sequences on each host before learning starts."""
    storage: Literal["host", "device"] = "host"
    """host: NumPy arrays, batches are sent to the learner devices; device: on those devices."""
    samples_per_insert: Positive = 1.0
    """Sequences trained on for each sequence inserted; kept by counting, never by time."""
    priority_exponent: Share = 0.9
    """Of the priorities (Kapturowski et al. 2019, section 2.3)."""
    importance_exponent: Share = 0.6
    """Of the importance weights, normalized by the largest of the whole batch on all hosts."""
    priority_eta: Share = 0.9
    """Weight of the largest TD error of a sequence, against the mean (same section)."""


class HostReplay:
    """Each learner device replays what came to it; all draw equally many sequences.

    Importance weights make up for shards that differ, since probabilities are those within a
    shard.

    Attributes:
      inserted: sequences completed so far.
      learned_from: those among them that made updates due, since learning started.
      trained: sequences that updates have learned from.
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
        """Nothing is kept until ``allocate``.

        Args:
          config: sizes and exponents.
          blocks: shapes of one unroll of an actor's environments on one device, ``[B, T, ...]``.
          lanes: actors of this host.
          span: unrolls of one sequence.
          batch_size: sequences of one update; ``devices`` must divide it.
          seed: of the draws.
          devices: learner devices of this host.
        """
        self._config = config
        self._blocks = blocks
        self._batch_size = batch_size
        self._seed = seed
        self._devices = tuple(devices)
        num_envs = blocks.action.shape[0]
        slots = -(-config.capacity // (lanes * num_envs * len(devices))) + span
        self._geometry = Geometry(lanes, slots, num_envs, span)
        self._shards: list[ReplayShard] = []
        self.inserted = 0
        self.learned_from = 0
        self.trained = 0
        self._samples = 0
        self._snapshot: snapshot.Snapshot | None = None

    @property
    def bytes_per_device(self) -> int:
        """Memory that the share of one learner device takes."""
        return nbytes(self._blocks, self._geometry)

    def allocate(self) -> str:
        """Take the memory; returns a line about it.

        Raises:
          ConfigError: there is not enough.
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
        """Insert a turn's unrolls; returns how many updates are due now, by counting."""
        completed = 0
        for unroll in unrolls:
            lane = unroll.lane
            pairs = zip(self._shards, unroll.shards, strict=True)
            for number, (shard, part) in enumerate(pairs):
                if self._snapshot is not None:
                    self._snapshot.keep(number, lane, shard.next_slot(lane))
                completed += shard.insert(lane, part, errors(part), priority)
        self.inserted += completed
        if self.inserted < self._config.min_size:
            return 0
        before = self._updates()
        self.learned_from += completed
        return self._updates() - before

    def sample(self) -> list[Sample]:
        """One sample of each shard. Random numbers follow from the number of the sample."""
        samples = []
        for number, shard in enumerate(self._shards):
            where = jax.process_index() * len(self._shards) + number
            random = np.random.default_rng([self._seed, where, self._samples])
            samples.append(shard.sample(self._batch_size // len(self._shards), random))
        self._samples += 1
        return samples

    def sizes(self) -> list[int]:
        """Sequences that can be drawn from each shard."""
        return [shard.size for shard in self._shards]

    def update(self, samples: Sequence[Sample], priorities: Sequence[np.ndarray]) -> None:
        """Set new priorities, ``[N]`` for the sample of each shard."""
        for shard, sample, new in zip(self._shards, samples, priorities, strict=True):
            shard.update(sample, new)

    def metrics(self) -> dict[str, float]:
        """Size, the replay ratio reached since learning started, quantiles of the priorities."""
        row: dict[str, float] = {
            "replay_size": sum(self.sizes()),
            "replay_ratio": self.trained / max(1, self.learned_from),
        }
        powers = np.concatenate([shard.priorities.powers for shard in self._shards])
        powers = powers[powers > 0]
        exponent = self._config.priority_exponent
        if powers.size and exponent > 0:
            for quantile in (10, 50, 90):
                value = np.percentile(powers, quantile) ** (1 / exponent)
                row[f"priority_quantile_{quantile}"] = float(value)
        return row

    def save(self, path: Path) -> None:
        """Start writing everything, as it is now, to the directory ``path``.

        The learner goes on meanwhile. A save that is still under way is completed first.
        """
        self.finish()
        counts = [self.inserted, self.learned_from, self.trained, self._samples]
        self._snapshot = snapshot.Snapshot(path, self._shards, np.array(counts))

    def load(self, path: Path) -> str | None:
        """Read the last that ``save`` completed in the folder of ``path``, on all hosts or on none.

        What a host was writing when it was killed is not there, so it may be of another turn than
        ``path``. The counts, from which all hosts tell alike how many updates are due, are those of
        the host with the fewest.

        Returns:
          A line to print where it was not ``path`` that was read.
        """
        found = snapshot.newest(path.parent, self._shards)
        turns = distributed.gather(np.array(int(found.name) if found else -1))
        if found is None or turns.min() < 0:
            hosts = np.flatnonzero(turns < 0).tolist()
            return f"no replay of this size in {path.parent} (host(s) {hosts}): it starts empty"
        counts = distributed.gather(snapshot.load(found, self._shards)).min(axis=0)
        self.inserted, self.learned_from, self.trained, self._samples = counts.tolist()
        found_turns = sorted(set(turns.tolist()))
        if found_turns == [int(path.name)]:
            return None
        return f"the replay is that of turn(s) {found_turns}, the checkpoint that of {path.name}"

    def _updates(self) -> int:
        """Updates that were due so far: from the whole count, so that no rounding adds up."""
        sequences = self.learned_from * self._config.samples_per_insert
        return int(sequences / self._batch_size)

    def finish(self) -> None:
        """Wait for a save under way, and raise what went wrong in it."""
        if self._snapshot is not None:
            under_way, self._snapshot = self._snapshot, None
            under_way.finish()
