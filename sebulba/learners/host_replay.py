"""The prioritised replay of one host: a shard for each of its learner devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np

from sebulba import distributed
from sebulba.config import ConfigError, R2D2Config
from sebulba.learners import snapshot
from sebulba.learners.base import Delivery
from sebulba.learners.memory import check_memory
from sebulba.learners.pieces import num_pieces
from sebulba.learners.replay import ReplayShard, Sample
from sebulba.learners.storage import Block, DeviceStorage, Geometry, HostStorage, nbytes
from sebulba.topology import Topology
from sebulba.types import Agent, EnvSpec, Timestep, Trajectory

Errors = Callable[[Trajectory], jax.Array]
Priority = Callable[[np.ndarray], np.ndarray]


class HostReplay:
    """Each learner device replays what came to it; all draw equally many sequences.

    Importance weights make up for shards that differ, since probabilities are those within a
    shard.

    Attributes:
      memory: one line on the memory it takes.
      steps_to_fill: agent steps of all hosts, or a few less, until learning starts.
      inserted: sequences completed so far.
      learned_from: those among them that made updates due, since learning started.
      trained: sequences that updates have learned from.
    """

    def __init__(self, config: R2D2Config, agent: Agent, spec: EnvSpec, topology: Topology) -> None:
        """Allocates everything.

        Raises:
          ConfigError: the batch does not divide over the learner devices, or memory is short.
        """
        self._config = config
        self._per_device = _divide(config, topology)
        devices = topology.learners
        lanes = len(topology.inference) * config.actors_per_device
        num_envs = config.envs_per_actor // len(devices)
        span = config.sequence_length // config.unroll_length
        slots = -(-config.replay.capacity // (lanes * config.envs_per_actor)) + span
        geometry = Geometry(lanes, slots, num_envs, span)
        steps = config.unroll_length * topology.num_hosts
        self.steps_to_fill = steps * (span * lanes * config.envs_per_actor + config.replay.min_size)
        shapes = _block_shapes(config, agent, spec, num_envs)
        placement = config.replay.placement
        self.memory = check_memory(nbytes(shapes, geometry) * len(devices), placement, devices)
        storage = HostStorage if placement == "host" else DeviceStorage
        self._shards = [
            ReplayShard(
                storage(shapes, geometry, device), geometry, config.replay.priority_exponent
            )
            for device in devices
        ]
        self.inserted = 0
        self.learned_from = 0
        self.trained = 0
        self._samples = 0
        self._snapshot: snapshot.Snapshot | None = None

    def insert(self, deliveries: Sequence[Delivery], errors: Errors, priority: Priority) -> int:
        """Insert a turn's unrolls; returns how many updates are due now, by counting."""
        completed = 0
        for lane, parts in deliveries:
            for number, (shard, part) in enumerate(zip(self._shards, parts, strict=True)):
                if self._snapshot is not None:
                    self._snapshot.keep(number, lane, shard.next_slot(lane))
                completed += shard.insert(lane, part, errors(part), priority)
        self.inserted += completed
        if self.inserted < self._config.replay.min_size:
            return 0
        before = self._updates()
        self.learned_from += completed
        return self._updates() - before

    def sample(self) -> list[Sample]:
        """One sample of each shard. Random numbers follow from the number of the sample."""
        samples = []
        for number, shard in enumerate(self._shards):
            where = jax.process_index() * len(self._shards) + number
            random = np.random.default_rng([self._config.seed, where, self._samples])
            samples.append(shard.sample(self._per_device, random))
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
        exponent = self._config.replay.priority_exponent
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
        sequences = self.learned_from * self._config.replay.ratio
        return int(sequences / self._config.sequences_per_update)

    def finish(self) -> None:
        """Wait for a save under way, and raise what went wrong in it."""
        if self._snapshot is not None:
            under_way, self._snapshot = self._snapshot, None
            under_way.finish()


def _block_shapes(config: R2D2Config, agent: Agent, spec: EnvSpec, num_envs: int) -> Block:
    def stacked(shape: tuple[int, ...], dtype: object) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_envs, config.unroll_length, *shape), dtype)

    observation = jax.tree.map(
        lambda array: stacked(tuple(array.shape), array.dtype),
        spec.observation,
        is_leaf=lambda node: hasattr(node, "dtype"),
    )
    number, flag = stacked((), np.float32), stacked((), np.bool_)
    state = jax.eval_shape(lambda: agent.initial_state(num_envs))
    return Block(Timestep(observation, number, number, flag), stacked((), np.int32), state)


def _divide(config: R2D2Config, topology: Topology) -> int:
    """Sequences of one update for each learner device."""
    learners = len(topology.learners)
    per_device, rest = divmod(config.sequences_per_update, learners)
    pieces = num_pieces(config, topology)
    if rest or per_device % pieces:
        raise ConfigError(
            f"sequences_per_update {config.sequences_per_update} does not divide over {learners} "
            f"learner devices in {pieces} piece(s): make it a multiple of {learners * pieces}."
        )
    return per_device
