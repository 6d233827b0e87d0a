"""Compile kernels for GPUs that are not here, and say what became of them: registers, spills, shared memory, tensor cores.

What is compiled is what would be launched: the host code runs on fake tensors, which have no data, and its launches are kept
instead of made. (So it also cannot have read a tensor's data, which on a GPU is a synchronisation.) Needs TRITON_INTERPRET unset.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import torch
import triton
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

SHARED_MEMORY = {80: 163 << 10, 89: 99 << 10, 90: 227 << 10}  # compute capability: bytes a program can have
TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64",
    torch.int8: "*i8", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
LAUNCH_OPTIONS = ("num_warps", "num_stages", "maxnreg")


@dataclass(frozen=True)
class Launch:
    """A kernel, the type of each argument ("constexpr" for a constant), constants, arguments divisible by 16, launch options."""

    kernel: JITFunction
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, object], ...]
    aligned: tuple[str, ...]
    options: tuple[tuple[str, int], ...]

    @property
    def name(self) -> str:
        return self.kernel.fn.__name__

    def describe(self) -> str:
        """Constants, without the arguments that were left out, and launch options."""
        return " ".join(
            f"{k}={v}"
            for k, v in (*self.constants, *self.options)
            if k.isupper() and v is not None or k in LAUNCH_OPTIONS
        )


@dataclass(frozen=True)
class Compiled:
    """Registers a thread; stores to local memory, which spills are; bytes of shared memory; products of matrices in the
    kernel, and tensor-core instructions in its machine code."""

    registers: int
    spill_stores: int
    shared: int
    products: int
    tensor_core: int


def faults(compiled: Compiled, capability: int, half: bool) -> list[str]:
    """What is wrong with a kernel: spills, more shared memory than there is, or matrices of a half type without tensor cores."""
    wrong = []
    if compiled.spill_stores:
        wrong.append("spills")
    if compiled.shared > SHARED_MEMORY[capability]:
        wrong.append("too much shared memory")
    if half and compiled.products and not compiled.tensor_core:
        wrong.append("no tensor cores")
    return wrong


def record(run: Callable[[], object]) -> list[Launch]:
    """The different launches that `run` makes, under fake tensors."""
    launches = {}

    def keep(kernel, *args, grid, warmup, **options):
        launches[_launch(kernel, dict(zip(kernel.arg_names, args)) | options)] = None

    with mock.patch.object(JITFunction, "run", keep), FakeTensorMode():
        run()
    return list(launches)


def _launch(kernel: JITFunction, values: dict) -> Launch:
    types, constants, aligned = [], [], []
    for parameter in kernel.params:
        name, value = parameter.name, values.get(parameter.name, parameter.default if parameter.has_default else None)
        if isinstance(value, torch.Tensor):
            types.append((name, TYPES[value.dtype]))
            aligned.append(name)  # as all memory of PyTorch is
        elif parameter.is_constexpr or value is None or _one(value) and not parameter.do_not_specialize:
            types.append((name, "constexpr"))
            constants.append((name, value))
        else:
            types.append((name, "fp32" if isinstance(value, float) else "i32"))
            if not isinstance(value, float) and value % 16 == 0 and not parameter.do_not_specialize:
                aligned.append(name)
    options = tuple((name, values[name]) for name in LAUNCH_OPTIONS if name in values)
    return Launch(kernel, tuple(types), tuple(constants), tuple(aligned), options)


def _one(value) -> bool:
    return value == 1 and not isinstance(value, float)


def compile_for(launch: Launch, capability: int) -> Compiled:
    """Compile for the compute capability (80, 89, 90)."""
    place = {name: (i,) for i, name in enumerate(launch.kernel.arg_names)}
    source = ASTSource(
        launch.kernel,
        dict(launch.types),
        {place[name]: value for name, value in launch.constants},
        {place[name]: [["tt.divisibility", 16]] for name in launch.aligned},
    )
    binary = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(launch.options))
    usage, code = (_cuobjdump(binary.asm["cubin"], flag) for flag in ("--dump-resource-usage", "-sass"))
    return Compiled(
        registers=int(re.search(r"REG:(\d+)", usage)[1]),
        spill_stores=len(re.findall(r"\bSTL\b", code)),
        shared=binary.metadata.shared,
        products=binary.asm["ttir"].count("tt.dot"),
        tensor_core=len(re.findall(r"\bHG?MMA\b", code)),
    )


def _cuobjdump(cubin: bytes, flag: str) -> str:
    """Output of the tool that comes with Triton."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        return subprocess.run([tool, flag, file.name], capture_output=True, text=True, check=True).stdout
