"""Measurements of the attention core, each checked or counted in the same run that reports it.

memory      peak memory beyond the inputs, in units of the q tensor
attention   CPU time of fused softmax attention over that of MiTA, interleaved medians on one thread
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from mita import TokenLayout, mita_attention  # noqa: E402
from mita.attention import Routing  # noqa: E402
from mita.attention.reference import reference_attention  # noqa: E402
from mita.landmarks import average_pool  # noqa: E402
from mita.reporting.records import git_state  # noqa: E402


def problem(N: int, H: int, d: int) -> list[torch.Tensor]:
    """q, k, v (1, H, N, d) float32, normally distributed."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, H, N, d, generator=generator) for _ in range(3)]


def mita(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: int, top_k: int, **options):
    """MiTA with landmarks pooled in the timed part."""
    landmarks, _ = average_pool(q, TokenLayout((q.shape[2],)), (m,))
    return mita_attention(q, k, v, landmarks, top_k=top_k, **options)


def peak_kib() -> int:
    """High-water mark of this process's memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def measure_memory(N: int, H: int, d: int, m: int, top_k: int, backward: bool) -> float:
    """Peak beyond the inputs in units of q; alone in a fresh process, after a small run that loads what is needed."""
    torch.set_num_threads(1)
    for size in (64, N):
        q, k, v = problem(size, H, d)
        leaves = [t.requires_grad_(backward) for t in (q, k, v)]
        before = peak_kib()
        o = mita(q, k, v, min(m, size), min(top_k, size))
        if backward:
            torch.autograd.grad(o.sum(), leaves)
    return (peak_kib() - before) * 1024 / (q.numel() * q.element_size())


def memory(arguments: argparse.Namespace) -> list[dict]:
    rows = []
    for backward in (False, True):
        sizes = [arguments.tokens, arguments.heads, arguments.dim, arguments.landmarks, arguments.top_k]
        code = f"import benchmark; print(benchmark.measure_memory(*{sizes}, {backward}))"
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
        name = "forward and backward" if backward else "forward"
        rows.append({"N": arguments.tokens, "pass": name, "peak_in_q": float(done.stdout)})
        print(f"N = {arguments.tokens}, {name}: {rows[-1]['peak_in_q']:.2f} q tensors")
    return rows


def checked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: int, top_k: int) -> float:
    """Error of one head at the timed size, against the reference in float64 for 128 of its queries; stops if it is wrong."""
    N, tolerance = q.shape[2], 1e-5 if q.dtype == torch.float32 else 2e-2
    q, k, v = (t[:, :1] for t in (q, k, v))
    landmarks, _ = average_pool(q, TokenLayout((N,)), (m,))
    o, routing = mita_attention(q, k, v, landmarks, top_k=top_k, return_routing=True)
    some = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:128]
    routing = Routing(routing.selected, routing.experts[:, :, some])
    exact, _ = reference_attention(
        q[:, :, some].double(), *(t.double() for t in (k, v, landmarks)), top_k=top_k, routing=routing
    )
    error = (o[:, :, some] - exact).abs().max().item()
    if error > tolerance:
        raise SystemExit(f"MiTA differs from the reference by {error:.1e} at N = {N}; nothing is timed.")
    return error


def attention(arguments: argparse.Namespace) -> list[dict]:
    torch.set_num_threads(1)
    rows = []
    print(f"{'type':>9} {'N':>7} {'m=k':>5} {'pass':>8} {'softmax ms':>11} {'MiTA ms':>9} {'ratio':>7}")
    for dtype, case in itertools.product(arguments.dtypes, arguments.cases):
        N, m = map(int, case.split("/"))
        q, k, v = (t.to(getattr(torch, dtype)) for t in problem(N, max(1, min(4, 16384 // N)), 64))
        error = checked(q, k, v, m, m)
        for backward in (False, True):
            leaves = [t.requires_grad_(backward) for t in (q, k, v)]

            def run(attend, backward=backward, leaves=leaves) -> float:
                began = time.thread_time()
                o = attend()
                if backward:
                    torch.autograd.grad(o.sum(), leaves)
                return 1e3 * (time.thread_time() - began)

            candidates = {
                "softmax": lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
                "mita": lambda q=q, k=k, v=v, m=m: mita(q, k, v, m, m),
            }
            repeats = arguments.repeats if N <= 4096 else 3 if N <= 16384 else 1
            times = {name: [] for name in candidates}
            for repeat in range(repeats + (N <= 16384)):
                for name, attend in candidates.items():
                    milliseconds = run(attend)
                    if repeat or N > 16384:  # the first is a warm-up where it can be afforded
                        times[name].append(milliseconds)
            softmax, ours = (statistics.median(times[name]) for name in ("softmax", "mita"))
            name = "fwd+bwd" if backward else "fwd"
            rows.append({
                "dtype": dtype, "N": N, "m": m, "k": m, "heads": q.shape[1], "pass": name, "error": error,
                "softmax_ms": softmax, "mita_ms": ours, "ratio": softmax / ours,
            })  # fmt: skip
            print(
                f"{dtype:>9} {N:>7} {m:>5} {name:>8} {softmax:>11.1f} {ours:>9.1f} {softmax / ours:>6.2f}x", flush=True
            )
    return rows


def cpu_name() -> str:
    """What the processor calls itself, where Linux tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    part = commands.add_parser("memory", help="peak memory beyond the inputs")
    for name, default in (("tokens", 65536), ("heads", 2), ("dim", 64), ("landmarks", 128), ("top-k", 128)):
        part.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    part.set_defaults(run=memory)
    part = commands.add_parser("attention", help="time against fused softmax attention")
    cases = ["197/25", "1024/49", "1024/128", "4096/128", "16384/128", "65536/128"]
    part.add_argument("--cases", nargs="+", metavar="N/m", default=cases, help="tokens and m = k; default: %(default)s")
    part.add_argument("--repeats", type=int, default=7, help="runs of each up to N = 4096; default: %(default)s")
    part.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16", "float16"), default=["float32"])
    part.set_defaults(run=attention)
    arguments = parser.parse_args()
    rows = arguments.run(arguments)
    commit, dirty = git_state()
    report = {
        "command": arguments.command, "rows": rows, "machine": cpu_name(), "device": "cpu", "threads": 1,
        "vector_instructions": torch.backends.cpu.get_cpu_capability(), "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit, "dirty": dirty,
    }  # fmt: skip
    path = ROOT / "results/benchmarks" / f"{arguments.command}_cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(f"written: {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
