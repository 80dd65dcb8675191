"""What limits the kernels of the digits' network for Hopper: each is timed again without one of the things it does.

    PYTHONPATH=src python benchmarks/digit_layer_limits.py                # 500 pictures, n = 5
    PYTHONPATH=src python benchmarks/digit_layer_limits.py --compile      # needs no GPU: compile all variants, no more

Needs a Hopper GPU. What a kernel leaves out is substituted in its source as it is today. Its results are then wrong,
and its time says what the rest takes: that of one kernel, launched as the library launches it, in a CUDA graph. At
first a probe counts the cycles of products of the kernels' shapes; the floor is half as many as columns.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from unittest.mock import patch

import torch

from newton_losses_bench.kernels import digit_layers_hopper as layers
from newton_losses_bench.kernels.nvrtc import HERE, Kernels, compiled, compiler

HEIGHT, WIDTH, LAUNCHES, REPLAYS = 28, 112, 25, 5
PROBE_PLACES = 227 * 64  # times 16 bytes: all the shared memory that there is


class Variant(NamedTuple):
    kernel: str
    without: str
    changes: tuple[tuple[str, str], ...] = ()  # texts that stand in the sources once, and what is put in their places


def joined(*files: str) -> str:
    return "".join((HERE / name).read_text(encoding="utf-8") for name in files)


def only_if(condition: str, statement: str) -> tuple[str, str]:
    return statement, f"if ({condition}) {statement}"


# A product becomes a comment in the assembler. The compiler must not know then what is stored.
NO_PRODUCTS = (
    ('asm volatile("wgmma.mma_async', 'asm volatile("// wgmma.mma_async'),
    ("sums[i] = 0;", "sums[i] = __uint_as_float(threadIdx.x * (i + 1) + blockIdx.x);"),
)
NO_STRIPS_FORWARD = only_if("count < 0", "copy_strips(strips, pictures + number *")
NO_STORE_FIRST = ("if (column >= columns) continue;", "if (sums[0] != 12345.678f) continue;")
NO_STRIPS_BACKWARD = only_if("count < 0", "copy_strips(strips, pictures + number /")
NO_UNFOLD_FIRST = ("if (row + 1 < rows) store_row(", "if (row > rows) store_row(")
NO_PIXELS_FORWARD = only_if("number == blockIdx.x", "copy_pixels<WIDE")
NO_STORE_SECOND = only_if("sums[0] == 12345.678f", "store_pooled(sums")
NO_SLOPES_BY_PIXELS = only_if("number == blockIdx.x", "unfold<NARROW"), ("ask(number + gridDim.x);", "")
NO_STORE_BY_PIXELS = only_if("sums.both[0] == 12345.678f", "store_pixels(sums")
NO_PIXELS_BY_WEIGHT = only_if("number == part", "copy_pixels<ROW_APART")
NO_SLOPES_BY_WEIGHT = only_if("number == part", "unfold<SLOPES_ROW_APART"), ("ask(number + step);", "")

PROGRAM = joined(*layers.FILES)
VARIANTS = (
    Variant("first_layer_forward", "nothing is left out"),
    Variant("first_layer_forward", "no pooling, and no features and codes are stored", (NO_STORE_FIRST,)),
    Variant("first_layer_forward", "no pictures are read and no strips made of them", (NO_STRIPS_FORWARD,)),
    Variant("first_layer_forward", "no products", NO_PRODUCTS),
    Variant("first_layer_backward", "nothing is left out"),
    Variant("first_layer_backward", "no slopes are unfolded but those of the first row", (NO_UNFOLD_FIRST,)),
    Variant("first_layer_backward", "no pictures are read and no strips made of them", (NO_STRIPS_BACKWARD,)),
    Variant("first_layer_backward", "no products", NO_PRODUCTS),
    Variant("second_layer_forward", "nothing is left out"),
    Variant("second_layer_forward", "no pooling, and no features and codes are stored", (NO_STORE_SECOND,)),
    Variant("second_layer_forward", "no pixels are brought but those of the first job", (NO_PIXELS_FORWARD,)),
    Variant("second_layer_forward", "neither of the two", (NO_STORE_SECOND, NO_PIXELS_FORWARD)),
    Variant("second_layer_forward", "no products", NO_PRODUCTS),
    Variant("second_layer_by_pixels", "nothing is left out"),
    Variant("second_layer_by_pixels", "no slopes are unfolded but those of the first job", NO_SLOPES_BY_PIXELS),
    Variant("second_layer_by_pixels", "no gradients are stored", (NO_STORE_BY_PIXELS,)),
    Variant("second_layer_by_pixels", "no products", NO_PRODUCTS),
    Variant("second_layer_by_weight", "nothing is left out"),
    Variant("second_layer_by_weight", "no pixels are brought but those of the first job", (NO_PIXELS_BY_WEIGHT,)),
    Variant("second_layer_by_weight", "no slopes are unfolded but those of the first job", NO_SLOPES_BY_WEIGHT),
    Variant("second_layer_by_weight", "neither of the two", (NO_PIXELS_BY_WEIGHT, *NO_SLOPES_BY_WEIGHT)),
    Variant("second_layer_by_weight", "no products", NO_PRODUCTS),
)

# Columns; whether A and B are turned; how far blocks are apart, across and along A and B, in 16 bytes.
PROBES = {
    "first_layer_backward": (48, 1, 1, 65, 8, 65, 8),
    "second_layer_forward": (128, 0, 0, 8, 65, 8, 777),
    "second_layer_by_pixels": (64, 0, 1, 8, 481, 65, 8),
    "second_layer_by_pixels, outer rows": (32, 0, 1, 8, 481, 65, 8),
    "second_layer_by_weight": (160, 1, 1, 65, 8, 69, 8),
    "second_layer_by_weight, last column": (96, 1, 1, 65, 8, 69, 8),
}
PROBE = """
extern "C" __global__ void __launch_bounds__(256, 1) probe(long long* cycles, int offset) {
    SHARED(memory);
    clear(memory, %d), publish(), __syncthreads();
    constexpr int COLUMNS = %d, TURNED_A = %d, TURNED_B = %d;
    const u64 a = describe(memory, %d * 16, %d * 16) + offset, b = describe(memory + 65536, %d * 16, %d * 16) + offset;
    float sums[COLUMNS / 2], all = 0;
    set_zero(sums), products_begin();
    const long long begin = clock64();
#pragma unroll 1
    for (int i = 0; i < 64; ++i)
#pragma unroll
        for (int j = 0; j < 16; ++j) multiply_64_%d<TURNED_A, TURNED_B>(sums, a + j %% 2 * 64, b + j %% 4 * 64);
    products_go(), products_end();
    const long long end = clock64();
    for (float sum : sums) all += sum;
    if (threadIdx.x == 0) cycles[blockIdx.x] = end - begin + (all == 12345.678f);
}
"""


class Alone(Kernels):
    """Of all kernels that the library launches, one."""

    def __init__(self, kernel: str, program: str) -> None:
        super().__init__(torch.cuda.current_device(), program)
        self.kernel = kernel

    def launch(self, name: str, *arguments: torch.Tensor | int) -> None:  # type: ignore[override]
        if name == self.kernel:
            super().launch(name, *arguments)


def source(variant: Variant, program: str = PROGRAM) -> str:
    """The sources of all kernels without what a variant leaves out."""
    for old, new in variant.changes:
        if (times := program.count(old)) != 1:
            place = f"{variant.kernel}, {variant.without}: this stands {times} times in the sources of the kernels"
            raise ValueError(f"{place} instead of once, and the change has to be fitted to them:\n{old}")
        program = program.replace(old, new)
    return program


def probe_source(columns: int, *shape: int) -> str:
    return joined("hopper.cu", "pooling.cu") + PROBE % (PROBE_PLACES, columns, *shape, columns)


def microseconds(function: Callable[[], object]) -> float:
    function()
    graph = torch.cuda.CUDAGraph()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            function()
    graph.replay()
    begin.record()
    for _ in range(REPLAYS):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / (LAUNCHES * REPLAYS)


def calls(count: int) -> dict[str, Callable[[], object]]:
    """What launches each kernel, perhaps beside others."""
    generator = torch.Generator("cuda").manual_seed(0)
    normal = partial(torch.randn, generator=generator, device="cuda")
    pictures = torch.randint(0, 256, (count, HEIGHT, WIDTH), generator=generator, device="cuda", dtype=torch.uint8)
    first = pictures, 0.1 * normal(32, 1, 5, 5), normal(32)
    pixels, codes_1 = layers.first_layer(*first)
    second = pixels, layers.packed(0.1 * normal(64, 32, 5, 5)), normal(64)
    features, codes_2 = layers.second_layer(*second)
    slope_1, slope_2 = normal(*pixels.shape).bfloat16(), normal(*features.shape).bfloat16()
    second_backward = partial(layers.second_layer_gradients, slope_2, codes_2, *second[:2])
    return {
        "first_layer_forward": partial(layers.first_layer, *first),
        "first_layer_backward": partial(layers.first_layer_gradients, slope_1, codes_1, pictures),
        "second_layer_forward": partial(layers.second_layer, *second),
        "second_layer_by_pixels": second_backward,
        "second_layer_by_weight": second_backward,
    }


def print_cycles(programs: list[str]) -> None:
    print("cycles a product; one group of warps, then two, operands at whole 128 bytes, then 16 bytes behind")
    cycles = torch.zeros(
        torch.cuda.get_device_properties("cuda").multi_processor_count, dtype=torch.int64, device="cuda"
    )
    for (name, (columns, *_)), program in zip(PROBES.items(), programs, strict=True):
        probe, found = Alone("probe", program), []
        for groups, offset in ((1, 0), (1, 1), (2, 0), (2, 1)):
            probe.launch("probe", len(cycles), 128 * groups, 16 * PROBE_PLACES, cycles, offset)
            found.append(f"{cycles.double().median().item() / 1024 / groups:6.1f}")
        print(f"    {' '.join(found)}  {columns:3} columns, floor {columns / 2:.0f}: {name}", flush=True)


def print_times(programs: list[str], count: int) -> None:
    call = calls(count)
    for (kernel, without, _), program in zip(VARIANTS, programs, strict=True):
        with patch.object(layers, "_kernels", return_value=Alone(kernel, program)):
            print(f"{microseconds(call[kernel]):8.1f} µs  {kernel}: {without}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--compile", action="store_true", help="only compile all variants")
    options = parser.parse_args()
    if not options.compile and (not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0)):
        parser.error("there is no Hopper GPU here, and these kernels are for no other. --compile needs none.")
    if compiler() is None:
        parser.error("CUDA C cannot be compiled here: NVRTC comes with torch's builds for CUDA, and this is another.")
    sources = [probe_source(*shape) for shape in PROBES.values()] + [source(variant) for variant in VARIANTS]
    with TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        programs = [str(Path(folder) / f"{i}.cu") for i in range(len(sources))]
        for name, text in zip(programs, sources, strict=True):
            Path(name).write_text(text, encoding="utf-8")
        list(pool.map(compiled, programs))  # which keeps what it has compiled
    print(f"{len(programs)} programs compiled")
    if options.compile:
        return
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, {options.pictures} pictures of {HEIGHT}×{WIDTH}")
    print_cycles(programs[: len(PROBES)])
    print_times(programs[len(PROBES) :], options.pictures)


if __name__ == "__main__":
    main()
