"""The shard of a prioritized sequence replay that belongs to one learner device."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from sebulba.learners.replay.sampler import Priorities
from sebulba.learners.replay.storage import Geometry, Sequences, Storage
from sebulba.types import Trajectory


class Sample(NamedTuple):
    """Sequences drawn from one shard.

    Attributes:
      sequences: on the device, ``[N, ...]``.
      indices: ``[N]``, the indices of their priorities.
      ages: ``[N]``, the number of the unroll that each sequence starts with. It tells later whether
        the sequence is still there.
      probabilities: ``[N]``, with which each was drawn.
    """

    sequences: Sequences
    indices: np.ndarray
    ages: np.ndarray
    probabilities: np.ndarray


class ReplayShard:
    """A ring of unrolls for each lane, and the priorities of the sequences in it.

    A sequence can be drawn once all its unrolls and the timestep after them are there, until its
    first unroll is overwritten.

    Attributes:
      storage: the unrolls.
      geometry: their arrangement.
      priorities: one for each block (lane, slot, environment), of the sequence that starts there; 0
        if it cannot be drawn.
      size: sequences that can be drawn.
      drawn: a sample that waits to be used; None if there is none.
    """

    def __init__(self, storage: Storage, geometry: Geometry, exponent: float) -> None:
        """``geometry.slots`` must be greater than ``geometry.span``."""
        self.storage = storage
        self.geometry = geometry
        self.size = 0
        self.drawn: Sample | None = None
        self._shape = (geometry.lanes, geometry.slots, geometry.num_envs)
        self._indices = np.arange(int(np.prod(self._shape))).reshape(self._shape)
        self.priorities = Priorities(self._indices.size, exponent)
        # Unrolls ever inserted in each lane.
        self._unrolls = np.zeros(geometry.lanes, np.int64)
        # TD errors of each lane's last ``span`` unrolls, which belong to the next sequence to be
        # complete. They are fetched only then, when they have long been computed.
        self._coming: list[deque[Any]] = [
            deque(maxlen=geometry.span) for _ in range(geometry.lanes)
        ]

    def next_slot(self, lane: int) -> int:
        """The slot of ``lane`` that its next unroll overwrites."""
        return int(self._unrolls[lane]) % self.geometry.slots

    def insert(
        self,
        lane: int,
        trajectory: Trajectory,
        errors: jax.Array,
        priority: Callable[[np.ndarray], np.ndarray],
        continues: bool = True,
    ) -> int:
        """Append an unroll; returns how many sequences it completes.

        Args:
          lane: the actor that it came from.
          trajectory: ``[T+1, B, ...]``.
          errors: ``[T, B]``, absolute TD errors at collection, -1 where there is none.
          priority: maps such errors of a whole sequence ``[S, B]`` to priorities ``[B]``.
          continues: whether it goes on where the lane's unroll before ended. No sequence has that
            one and this one in it otherwise.
        """
        # An insert frees the oldest unroll, and with it the sequence that starts there, and
        # completes the sequence that started ``span`` unrolls ago.
        span, ring, num_envs = self.geometry.span, self.geometry.slots, self.geometry.num_envs
        number, slot = int(self._unrolls[lane]), self.next_slot(lane)
        self.storage.write(lane, slot, trajectory)
        self._unrolls[lane] += 1
        # Where environments were lost, no sequence starts there.
        freed = self._indices[lane, slot]
        self.size -= int(np.count_nonzero(self.priorities.powers[freed]))
        self.priorities.clear(freed)
        coming = self._coming[lane]
        if not continues:
            coming.clear()
        # This unroll only brings the timestep after the sequence; its own errors belong to the
        # following ones.
        completed = len(coming) == span
        if completed:
            start = self._indices[lane, (number - span) % ring]
            self.priorities.set(start, priority(np.concatenate(jax.device_get(list(coming)))))
            self.size += num_envs
        coming.append(errors)
        return num_envs if completed else 0

    @property
    def unrolls(self) -> int:
        """Unrolls ever inserted, in all lanes."""
        return int(self._unrolls.sum())

    def sample(self, count: int, random: np.random.Generator) -> Sample:
        """Draw ``count`` sequences by their priorities, with replacement."""
        indices, probabilities = self.priorities.draw(count, random)
        lanes, slots, envs = np.unravel_index(indices, self._shape)
        sequences = self.storage.read(lanes, slots, envs)
        return Sample(sequences, indices, self._ages(lanes, slots), probabilities)

    def update(self, sample: Sample, priorities: np.ndarray) -> None:
        """Set the priorities ``[N]`` of a sample, except those of sequences that are gone."""
        lanes, slots, _ = np.unravel_index(sample.indices, self._shape)
        # Inserts may have come since the sample was drawn, and put another unroll in the slot.
        there = self._ages(lanes, slots) == sample.ages
        self.priorities.set(sample.indices[there], priorities[there])

    def state(self) -> dict[str, np.ndarray]:
        """Copies of everything except the unrolls themselves."""
        coming = {
            f"coming_{lane}": np.stack(jax.device_get(list(errors)))
            for lane, errors in enumerate(self._coming)
            if errors
        }
        counts = {"unrolls": self._unrolls.copy(), "size": np.array(self.size)}
        return {**self.priorities.state(), **counts, **coming, **self._drawn_state()}

    def load_state(self, state: dict[str, np.ndarray]) -> None:
        """Restore what ``state`` returned; the unrolls are loaded into ``storage`` separately."""
        self.priorities.load_state(state)
        self._unrolls[:] = state["unrolls"]
        self.size = int(state["size"])
        for lane, errors in enumerate(self._coming):
            errors.clear()
            errors.extend(state.get(f"coming_{lane}", []))
        self.drawn = self._load_drawn(state) if "drawn" in state else None

    def _drawn_state(self) -> dict[str, np.ndarray]:
        # With its sequences, which may have been overwritten since they were drawn.
        if self.drawn is None:
            return {}
        sequences, indices, ages, probabilities = self.drawn
        leaves = jax.device_get(jax.tree.leaves(sequences))
        return {
            "drawn": indices,
            "drawn_ages": ages,
            "drawn_probabilities": probabilities,
            **{f"drawn_{number}": leaf for number, leaf in enumerate(leaves)},
        }

    def _load_drawn(self, state: dict[str, np.ndarray]) -> Sample:
        # Any sequence of the storage says how one is made up, and on which device it belongs.
        like, tree = jax.tree.flatten(self.storage.read(*np.zeros((3, 1), np.int64)))
        leaves = [
            jax.device_put(state[f"drawn_{number}"], leaf.sharding)
            for number, leaf in enumerate(like)
        ]
        sequences = jax.tree.unflatten(tree, leaves)
        return Sample(sequences, state["drawn"], state["drawn_ages"], state["drawn_probabilities"])

    def used(self) -> list[tuple[int, int]]:
        """The (lane, slot) of every unroll that is there, in a fixed order."""
        slots = np.minimum(self._unrolls, self.geometry.slots)
        return [(lane, slot) for lane, count in enumerate(slots) for slot in range(count)]

    def _ages(self, lanes: np.ndarray, slots: np.ndarray) -> np.ndarray:
        """Numbers of the unrolls in these slots."""
        # Unroll n is in slot n % slots, so this is the largest such n up to the lane's newest.
        newest = self._unrolls[lanes] - 1
        return newest - (newest - slots) % self.geometry.slots
