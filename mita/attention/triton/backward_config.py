"""Tile sizes of the backward kernels: in half precision none spills a register or lacks shared memory on sm_80, sm_89, sm_90.

`tools/compile_kernels.py` measures that; of float32 not every size was compiled.

BN is a tile of keys, BQ one of queries (in `keys_kernel` also of experts and entries);
one of the two stays while tiles of the other pass by. ALL as in `config.py`.
"""

import torch

from .config import ALL, launch

STAYS = {
    "landmarks_kernel": "BN",
    "expert_kernel": "BN",
    "keys_kernel": "BN",
    "queries_kernel": "BQ",
    "probes_kernel": "BQ",
}
# kernel: {greatest padded head dim: {tile that stays: (tile that passes, warps, stages[, ALL])}}
HALF = {
    "landmarks_kernel": {
        64: {32: (32, 4, 2), 64: (32, 8, 2), 128: (32, 8, 2)}, 128: {64: (32, 8, 2)}, 256: {32: (32, 8, 2)}
    },
    "expert_kernel": {
        64: {32: (32, 4, 2), 64: (32, 4, 2), 128: (32, 8, 2)}, 128: {64: (32, 8, 2)}, 256: {32: (32, 8, 2)}
    },
    "keys_kernel": {
        16: {128: (32, 8, 2)}, 32: {128: (32, 8, 2, ALL)}, 64: {128: (32, 8, 2)}, 128: {64: (16, 8, 2)},
        256: {32: (32, 8, 2, ALL)},
    },
    "queries_kernel": {
        16: {16: (32, 1, 2), 32: (64, 2, 2), 64: (32, 4, 2)}, 32: {16: (32, 1, 2), 32: (64, 2, 2, ALL), 64: (32, 4, 2)},
        64: {16: (32, 1, 2), 32: (64, 2, 2), 64: (32, 4, 2)}, 128: {16: (32, 2, 2), 32: (32, 2, 2), 64: (32, 4, 2)},
        256: {32: (32, 8, 2)},
    },
    "probes_kernel": {64: {32: (64, 4, 2), 64: (64, 4, 2)}, 128: {64: (32, 4, 2)}, 256: {32: (32, 8, 2)}},
}  # fmt: skip
FLOAT32 = {  # without tensor cores
    "landmarks_kernel": {64: {32: (32, 4, 1, ALL)}, 128: {32: (32, 8, 2)}, 256: {16: (16, 8, 1, ALL)}},
    "expert_kernel": {64: {32: (32, 4, 1, ALL)}, 128: {32: (32, 8, 2)}, 256: {32: (16, 8, 1)}},
    "keys_kernel": {64: {32: (16, 4, 1, ALL)}, 128: {32: (16, 8, 2)}, 256: {16: (16, 8, 1, ALL)}},
    "queries_kernel": {64: {32: (16, 4, 2, ALL)}, 128: {32: (16, 8, 2, ALL)}, 256: {32: (16, 8, 1, ALL)}},
    "probes_kernel": {64: {32: (16, 4, 2, ALL)}, 128: {32: (16, 8, 2, ALL)}, 256: {32: (16, 8, 1, ALL)}},
}


def sizes(kernel, dtype: torch.dtype, dim: int, rows: int) -> dict[str, int]:
    """Tile sizes and launch options: of the tiles for the greater of the padded head dims, the smallest that holds `rows`."""
    name = kernel.fn.__name__
    tables = (FLOAT32 if dtype == torch.float32 else HALF)[name]
    table = tables[min(size for size in tables if size >= dim)]
    stays = min((tile for tile in table if tile >= rows), default=max(table))
    passes, *options = table[stays]
    BN, BQ = (stays, passes) if STAYS[name] == "BN" else (passes, stays)
    return {"BN": BN, "BQ": BQ, **launch(*options)}
