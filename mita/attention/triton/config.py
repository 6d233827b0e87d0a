"""Tile sizes of the forward kernels: the largest found that spill no register on sm_80, sm_89 and sm_90 in half precision.

Of float32 not every size was compiled.
BM is a tile of landmarks, BQ of queries, BN of keys. Numbers a table gives for a dim hold up to it. A row that ends in ALL lets a
thread have as many registers as there are: ptxas would rather spill a few to hold more threads.
"""

import torch
import triton

ALL = 255  # registers a thread can have

# greatest padded head dim: (BM, BN, warps, stages)
PROBE = {64: (64, 32, 4, 2), 128: (64, 32, 8, 2), 256: (32, 32, 8, 2)}
PROBE_FLOAT32 = {64: (32, 32, 4, 2), 128: (16, 32, 8, 2), 256: (16, 16, 4, 1)}
# (greatest dim, BQ): (BN, warps, stages)
ATTEND = {
    (64, 128): (64, 8, 2), (64, 64): (32, 4, 2), (64, 32): (64, 4, 2), (64, 16): (64, 2, 2),
    (128, 128): (32, 8, 2), (128, 64): (64, 8, 2), (128, 32): (32, 4, 2), (128, 16): (32, 2, 2),
    (256, 64): (32, 8, 2), (256, 32): (32, 8, 2), (256, 16): (16, 4, 2, ALL),
}  # fmt: skip
# dim: (BQ, BN, warps, stages)
ATTEND_FLOAT32 = {64: (16, 32, 4, 2, ALL), 128: (16, 16, 4, 2, ALL), 256: (16, 16, 8, 1, ALL)}
GATE = {64: (64, 64, 4, 2), 128: (64, 64, 4, 2), 256: (64, 32, 4, 2)}  # dim: (BQ, BN, warps, stages)
GATE_FLOAT32 = {64: (32, 32, 4, 2), 128: (32, 32, 4, 1), 256: (16, 32, 4, 1)}

CUT_ENTRIES = 256  # entries of lists that a warp holds in registers
PROGRAMS = 1024  # enough for the largest GPU a few times over; a function of nothing but sizes, so that results are too
# greatest sizes of a short problem: sm_89 has no shared memory for more
SHORT = {"keys": 256, "masked keys": 128, "landmarks": 32, "dim": 64}


def _row(table: dict, dim: int) -> tuple[int, ...]:
    return table[min(size for size in table if size >= dim)]


def launch(warps: int, stages: int, registers: int | None = None) -> dict[str, int]:
    """Launch options, from the end of a row."""
    return {"num_warps": warps, "num_stages": stages} | ({"maxnreg": registers} if registers else {})


def probe(dtype: torch.dtype, dim: int, top_k: int) -> dict[str, int]:
    """Sizes of `probe_kernel`."""
    BM, BN, warps, stages = _row(PROBE_FLOAT32 if dtype == torch.float32 else PROBE, dim)
    return {"BM": BM, "BN": BN, **_lists(BM, top_k + 2 * BN, warps), **launch(warps, stages, ALL)}


def merge(capacity: int) -> dict[str, int]:
    """Sizes of `merge_kernel`, for lists of that capacity."""
    return {"BM": 16, "BN": 32, **_lists(16, capacity, 4), "num_warps": 4, "maxnreg": ALL}


def _lists(rows: int, capacity: int, warps: int) -> dict[str, int]:
    """Entries of a list, at least; how many lists are cut at once, and how many of their entries are in registers at once."""
    capacity = max(16, triton.next_power_of_2(capacity))
    wide = min(capacity, CUT_ENTRIES * warps)
    return {"CAPACITY": capacity, "HEIGHT": min(rows, CUT_ENTRIES * warps // wide), "WIDE": wide}


def parts(programs: int, keys: int, bytes_of_keys: int, bytes_of_lists: int) -> int:
    """In how many parts landmarks read the keys: enough for a GPU, long enough to be worth it, lists no larger than the keys."""
    return max(1, min(PROGRAMS // programs, keys // 2048, bytes_of_keys // max(bytes_of_lists, 1)))


def gate(dtype: torch.dtype, dim: int) -> dict[str, int]:
    """Sizes of `gate_kernel`."""
    BQ, BN, warps, stages = _row(GATE_FLOAT32 if dtype == torch.float32 else GATE, dim)
    return {"BQ": BQ, "BN": BN, "num_warps": warps, "num_stages": stages}


def attend(dtype: torch.dtype, dim: int, rows_an_expert: int) -> dict[str, int]:
    """Sizes of `attend_kernel`: smaller tiles of queries where an expert has few, for its last tile is half empty."""
    if dtype == torch.float32:
        BQ, BN, *options = _row(ATTEND_FLOAT32, dim)
    else:
        size = min(size for size, _ in ATTEND if size >= dim)
        BQ = max(BQ for d, BQ in ATTEND if d == size and (rows_an_expert >= 3 * BQ or BQ == 16))
        BN, *options = ATTEND[size, BQ]
    return {"BQ": BQ, "BN": BN, **launch(*options)}


def short(keys: int, landmarks: int, top_k: int) -> dict[str, int]:
    """Sizes of `short_kernel`. Narrower heads are padded as well: it would hold them in registers, more than there are."""
    BM, BN, BK = (max(16, triton.next_power_of_2(n)) for n in (landmarks, keys, top_k))
    D = SHORT["dim"]
    return {"D": D, "E": D, "BQ": 32, "BM": BM, "BN": BN, "BK": BK, **launch(8, 1)}


def is_short(
    dtype: torch.dtype, keys: int, landmarks: int, top_k: int, dim: int, slots: int, branches: str, masked: bool
) -> bool:  # fmt: skip
    """Whether `short_kernel` can take the problem."""
    fits = max(keys, top_k) <= SHORT["masked keys" if masked else "keys"]
    fits = fits and landmarks <= SHORT["landmarks"] and dim <= SHORT["dim"]
    return fits and slots == 1 and branches != "compress" and dtype != torch.float32


def shares(heads: int, queries: int) -> int:
    """In how many shares the queries of a short sequence are taken; each probes the keys again."""
    return max(1, min(256 // heads, queries // 64))
