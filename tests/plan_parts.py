"""What several tests of planning need."""

from __future__ import annotations

from sebulba.devices.compiler import Program

NEEDS_LIBTPU = "needs the TPU compiler: pip install 'sebulba[tpu]'"
ACT = Program(flops=61.5e9, bytes=1e6, hbm=1, all_reduce_bytes=0, collectives={}, seconds=1.0)
UPDATE = Program(flops=1e6, bytes=9e9, hbm=1, all_reduce_bytes=10**9, collectives={}, seconds=1.0)
