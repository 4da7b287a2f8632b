"""What a checkpoint says of its arrays, so that damage is told from another config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Contents = dict[str, list[Any]]
"""Of each array, under its dotted name: its type, such as float32[3,4], and its checksum."""
_SHOWN = 5


def describe(tree: Any, sums: np.ndarray) -> Contents:
    """The contents of a tree of arrays with these checksums, in the order of its leaves."""
    pairs = zip(types(tree).items(), sums.tolist(), strict=True)
    return {name: [kind, checksum] for (name, kind), checksum in pairs}


def differences(there: Contents, tree: Any) -> str:
    """How the arrays of a checkpoint and those of ``tree`` differ in words; "" if they do not."""
    return differences_of_types({name: kind for name, (kind, _) in there.items()}, types(tree))


def differences_of_types(there: Mapping[str, str], here: Mapping[str, str]) -> str:
    """As ``differences``, of what ``types`` gives."""
    found = []
    for name in sorted(there.keys() | here.keys()):
        if name not in here:
            found.append(f"{name} is only there")
        elif name not in there:
            found.append(f"{name} is only here")
        elif there[name] != here[name]:
            found.append(f"{name} is {there[name]} there and {here[name]} here")
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return ", ".join(found[:_SHOWN] + more)


def changed(there: Contents, tree: Any) -> list[str]:
    """Names of the arrays that are not what was written. The types must be the same."""
    sums = np.asarray(checksums(tree)).tolist()
    return [
        name for name, checksum in zip(types(tree), sums, strict=True) if there[name][1] != checksum
    ]


def types(tree: Any) -> dict[str, str]:
    """Of each array, under its dotted name: its type, such as float32[3,4]."""
    return {
        name: f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
        for name, leaf in named(tree).items()
    }


def named(tree: Any) -> dict[str, Any]:
    """The leaves of a tree under their dotted names."""
    return {name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def name(path: Any) -> str:
    """The dotted name of a path in a tree."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def digest(record: Mapping[str, Any]) -> str:
    """Of anything that JSON can hold."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


@jax.jit
def checksums(tree: Any) -> jax.Array:
    """``uint32[leaves]``, computed on the devices of ``tree``; any one bit changes them."""
    # The files have checksums for the index alone, and not for what is in the arrays.
    sums = [_checksum(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.stack(sums) if sums else jnp.zeros(0, jnp.uint32)


def _checksum(leaf: jax.Array) -> jax.Array:
    words = _words(leaf).ravel().astype(jnp.uint32)
    # By odd numbers, so that no change of one word is lost, and an exchange of two is seen.
    factors = 2 * jnp.arange(words.size, dtype=jnp.uint32) + 1
    return jnp.sum(words * factors, dtype=jnp.uint32)


def data(leaf: Any) -> jax.Array:
    """An array as it is, and an array of random keys as the numbers that they are made of."""
    leaf = jnp.asarray(leaf)
    is_keys = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_keys else leaf


def _words(leaf: jax.Array) -> jax.Array:
    """The bits of an array as unsigned numbers of up to 32 bits."""
    leaf = data(leaf)
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag])
    sizes = {1: jnp.uint8, 2: jnp.uint16}
    return jax.lax.bitcast_convert_type(leaf, sizes.get(leaf.dtype.itemsize, jnp.uint32))
