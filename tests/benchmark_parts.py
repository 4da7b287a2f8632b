"""What the tests of the benchmarks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Load = Callable[[str], Any]
"""The fixture ``load``: imports a script of benchmarks/."""
