"""Compiles the Triton kernels for a GPU that is not there: the interpreter lets pass what compilers do not.

Run by ``test_triton_compiles.py`` in a process of its own, since Triton either interprets or compiles. Prints
one line for each kernel: its name, registers and bytes of stack; first those whose speed counts, then the
others, then those of the fast convolutions, where all do, of the random numbers, of the descent, of norms and
of depthwise convolutions.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import spatial_transformer as st
from spatial_transformer.experiments import (
    depthwise_triton,
    descent_triton,
    fast_convolutions,
    fast_convolutions_triton,
    norms_triton,
)
from spatial_transformer.experiments.data import random_numbers_triton
from spatial_transformer.implementations import fused_triton
from spatial_transformer.implementations.job import Job

TARGET = GPUTarget("cuda", 90, 32)
REST, CONVOLUTIONS, NUMBERS, DESCENT, NORMS, DEPTHWISE = (
    "the others", "convolutions", "random numbers", "descent", "norms", "depthwise"
)  # fmt: skip
POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}


def source(kernel, arguments):
    """The kernel with the types, constants and alignments that a launch would give it."""
    signature, constants, attributes = {}, {}, {}
    aligned = [["tt.divisibility", 16]]
    for i, (parameter, value) in enumerate(zip(kernel.params, arguments, strict=True)):
        name, special = parameter.name, not parameter.do_not_specialize
        if parameter.is_constexpr or (special and isinstance(value, int) and value == 1):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[(i,)] = POINTERS[value.dtype], aligned
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
            if special and value % 16 == 0:
                attributes[(i,)] = aligned
    return ASTSource(kernel, signature, constants, attributes)


def compiled_instead(kernel, arguments, **options):
    compiled = triton.compile(source(kernel, arguments), target=TARGET, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()
    print(kernel.__name__, registers, stack, flush=True)


def compile_plan(plan, device, *tensors):
    given = *fused_triton.in_every_place(tensors), *plan.rest
    compiled_instead(plan.kernel, given, num_warps=plan.warps)


def compile_launch(kernel, grid, blocks, *arguments):
    compiled_instead(kernel, arguments, num_warps=blocks.warps, num_stages=blocks.stages)


def compile_case(
    shape, family, *, out=None, kernel="bilinear", padding="zeros", limit=1.0, dtype=torch.float32,
    compute=torch.float32, channels_last=False, basis=False, copies=1,
):  # fmt: skip
    dims = len(shape) - 2
    size = tuple(out or shape[2:])
    image = torch.zeros(shape, dtype=dtype)
    if channels_last:
        image = image.contiguous(memory_format=torch.channels_last if dims == 2 else torch.channels_last_3d)
    if family is None:
        layers = 1 + dims if limit > 1 else 1
        kind, numbers, found = "grid", torch.zeros(shape[0], copies, layers, *size, dims, dtype=compute), None
    else:
        theta = torch.zeros(shape[0], copies, family.num_params, dtype=compute)
        kind, numbers, found = family.source(theta, shape[2:], size, False, slopes=limit > 1)
        if kind == "matrix":
            numbers = numbers.reshape(shape[0], copies, -1, dims + 1)
    fill = torch.zeros(shape[1], dtype=compute) if padding == "fill" else None
    job = Job(kind, size, kernel, padding, False, limit)
    output = fused_triton.forward(image, numbers, found, fill, job)
    wanted = (True, True, basis and found is not None)
    fused_triton.backward(output, image, numbers, found, fill, job, wanted)


def compile_convolutions(size, kernel, filters, next_kernel, pool):
    """Forward and backward of two convolutions, the first of one channel, at batch 256."""

    def empty(*shape):
        return torch.empty(shape, device="meta", requires_grad=True)

    given = (empty(256, 1, size, size), empty(filters, 1, kernel, kernel), empty(filters))
    activations = fast_convolutions.OneChannel.apply(*given)
    given += (empty(filters, filters, next_kernel, next_kernel), empty(filters))
    output = fast_convolutions.ManyChannels.apply(activations, *given[3:], pool, False, "implicit")
    torch.autograd.grad(output, given, torch.empty_like(output))


def compile_norm(channels, side, dtype=torch.bfloat16, *, added=False, **ways):
    """Forward and backward of a norm at batch 64."""
    norm = torch.nn.BatchNorm2d(channels, device="meta")
    x = torch.empty(64, channels, side, side, dtype=dtype, device="meta", requires_grad=True)
    x = x.contiguous(memory_format=torch.channels_last)
    found = norms_triton.normalised(x, norm, added=x if added else None, **ways)
    torch.autograd.grad(found, [norm.weight, norm.bias], torch.empty_like(found))


def compile_depthwise(channels, kernel, stride, side, dtype=torch.bfloat16):
    """Forward and backward of a convolution at batch 64."""
    padding = kernel // 2 if stride == 1 else 0
    convolution = torch.nn.Conv2d(
        channels, channels, kernel, stride, padding, groups=channels, bias=False, device="meta"
    )
    x = torch.empty(64, channels, side, side, dtype=dtype, device="meta")
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    found = depthwise_triton.convolved(x, convolution)
    torch.autograd.grad(found, [x, convolution.weight], torch.empty_like(found))


def main() -> None:
    fused_triton.Plan.__call__ = compile_plan
    fast_convolutions_triton.launch = compile_launch
    spline, learned = st.ThinPlateSpline((4, 4)), st.LearnedBasis(9, (12, 12))
    compile_case((256, 1, 28, 28), st.Affine())
    compile_case((64, 3, 224, 224), st.Affine(), dtype=torch.bfloat16)
    compile_case((64, 64, 56, 56), st.Affine(), copies=3)
    compile_case((64, 64, 56, 56), st.Affine(), channels_last=True)
    compile_case((16, 1, 60, 60, 60), st.Affine(3))
    compile_case((24, 3, 512, 512), st.Affine())
    compile_case((64, 3, 224, 224), st.Affine(), padding="border")
    compile_case((1024, 1, 42, 42), spline)
    compile_case((64, 3, 448, 448), spline, out=(224, 224))
    compile_case((64, 3, 56, 56), st.Projective(), padding="fill")
    print(REST)
    compile_case((4, 8, 32, 32, 32), st.Affine(3), kernel="bicubic", channels_last=True)
    compile_case((64, 3, 56, 56), st.Projective(), padding="reflection", kernel="bicubic", limit=8.0)
    compile_case((4, 2, 16, 16, 16), st.Projective(3), padding="border", kernel="nearest")
    compile_case((4, 3, 16, 16), spline, limit=3.0, dtype=torch.float16)
    compile_case((4, 3, 12, 12, 12), st.ThinPlateSpline((4, 4, 4)), padding="circular", kernel="bicubic")
    compile_case((4, 3, 12, 12), learned, basis=True, dtype=torch.float64, compute=torch.float64)
    compile_case((4, 3, 16, 16), None, compute=torch.float64)
    compile_case((4, 3, 16, 16), None, limit=2.0, padding="border")
    torch.use_deterministic_algorithms(True)
    compile_case((4, 3, 16, 16), None)
    torch.use_deterministic_algorithms(False)
    print(CONVOLUTIONS)
    compile_convolutions(28, 9, 88, 7, 2)
    compile_convolutions(42, 9, 85, 7, 2)
    compile_convolutions(21, 5, 20, 5, 1)
    print(NUMBERS)
    counter, found = torch.zeros((), dtype=torch.int64), torch.zeros(256)
    compiled_instead(random_numbers_triton._uniform, (counter, found, 256, random_numbers_triton.NUMBERS))
    print(DESCENT)
    labels, rate = torch.zeros(256, dtype=torch.int64), torch.zeros(())
    judged = (found, labels, found, found, 256, 10, descent_triton.ROWS, 16)
    compiled_instead(descent_triton._judged, judged, num_warps=8)
    moved = (found, found, found, rate, rate, 256, 0.9, 0.0, True, descent_triton.NUMBERS)
    compiled_instead(descent_triton._descend, moved)
    print(NORMS)
    norms_triton.launch = lambda kernel, grid, warps, *given: compiled_instead(kernel, given, num_warps=warps)
    compile_norm(32, 112, rectified=True)
    compile_norm(96, 112, rectified=True, zeros=(0, 1, 0, 1))
    compile_norm(16, 112)
    compile_norm(528, 14, rectified=True)
    compile_norm(120, 14, added=True)
    compile_norm(208, 7, torch.float32, added=True)
    compile_norm(100, 7)  # which is no multiple of 8
    print(DEPTHWISE)
    depthwise_triton.launch = lambda kernel, grid, registers, *given: compiled_instead(
        kernel, given, num_warps=depthwise_triton.WARPS, maxnreg=registers
    )
    compile_depthwise(32, 3, 1, 112)
    compile_depthwise(96, 3, 2, 113)
    compile_depthwise(144, 5, 2, 59)
    compile_depthwise(1248, 5, 1, 7)
    compile_depthwise(144, 3, 1, 32)  # eight rows at a time
    compile_depthwise(288, 5, 1, 28, torch.float32)
    compile_depthwise(288, 3, 2, 29, torch.float32)


if __name__ == "__main__":
    sys.exit(main())
