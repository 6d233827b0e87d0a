"""Tile sizes of the backward kernels: the largest found that spill no register and fit in shared memory on sm_80, sm_89, sm_90.

`tools/compile_kernels.py` measures that. BN is a tile of keys, BQ one of queries (in `keys_kernel` also of experts and entries).
"""

import torch

# kernel: {greatest dim: (BN, BQ, warps, stages)}
HALF = {
    "landmarks_kernel": {64: (64, 64, 4, 2), 128: (64, 32, 8, 2), 256: (32, 32, 8, 2)},
    "expert_kernel": {64: (64, 32, 4, 2), 128: (64, 32, 8, 2), 256: (32, 32, 8, 2)},
    "keys_kernel": {64: (64, 32, 4, 2), 128: (64, 32, 8, 2), 256: (32, 32, 8, 2)},
    "queries_kernel": {64: (64, 64, 4, 2), 128: (32, 64, 4, 2), 256: (32, 32, 8, 2)},
    "probes_kernel": {64: (64, 64, 4, 2), 128: (32, 64, 4, 2), 256: (32, 32, 8, 2)},
}
FLOAT32 = {  # without tensor cores
    "landmarks_kernel": {64: (32, 32, 4, 2), 128: (32, 32, 8, 2), 256: (16, 16, 8, 2)},
    "expert_kernel": {64: (32, 32, 4, 2), 128: (32, 32, 8, 2), 256: (32, 16, 8, 1)},
    "keys_kernel": {64: (32, 32, 4, 2), 128: (32, 16, 8, 2), 256: (16, 16, 8, 2)},
    "queries_kernel": {64: (16, 32, 4, 2), 128: (16, 32, 8, 2), 256: (16, 32, 8, 1)},
    "probes_kernel": {64: (16, 32, 4, 2), 128: (16, 32, 8, 2), 256: (16, 32, 8, 1)},
}


def sizes(kernel, dtype: torch.dtype, dim: int) -> dict[str, int]:
    """The constants and launch options of a kernel for the greater of the padded head dims."""
    name = kernel.fn.__name__
    if name == "delta_kernel":
        return {"BQ": 64, "num_warps": 4}
    table = (FLOAT32 if dtype == torch.float32 else HALF)[name]
    BN, BQ, warps, stages = table[min(size for size in table if size >= dim)]
    return {"BN": BN, "BQ": BQ, "num_warps": warps, "num_stages": stages}
