// The instructions of a Hopper GPU that the kernels are made of, one function each. What they compute is elsewhere.
//
// Operands of a product lie in shared memory in blocks of 8 rows of 16 bytes, rows and blocks one after another, without
// a swizzle: a descriptor may then begin at any row, and a window of pixels that is moved by one is the same descriptor
// plus one (it counts in 16 bytes).

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// `across`: bytes from one block of 8 to the next along M or N; `along`: the same along K.
__device__ __forceinline__ u64 describe(const void* begin, u32 across, u32 along) {
    return static_cast<u64>((shared_address(begin) & 0x3FFFF) >> 4) | static_cast<u64>(along >> 4) << 16 |
           static_cast<u64>(across >> 4) << 32;
}

// 16 bytes to shared memory, zeros unless `live`; the source has to be a valid address either way.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool live) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(to)), "l"(from), "r"(live ? 16 : 0) : "memory");
}

// What this thread has written to shared memory, by copies or by itself, is there for products after the next barrier.
__device__ __forceinline__ void publish() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Which group of four warps this is: the same for all of its threads, and the compiler knows that.
__device__ __forceinline__ int warp_group() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0); }

template <int COUNT> __device__ __forceinline__ void set_zero(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = 0;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_end() {
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

__device__ __forceinline__ u16 to_bf16(float value) {
    u16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
}

__device__ __forceinline__ float from_bf16(u16 value) { return __uint_as_float(static_cast<u32>(value) << 16); }

__device__ __forceinline__ float shuffle_down(float value, int apart) { return __shfl_down_sync(~0u, value, apart); }

// The shared memory of a block of threads, as many bytes as it was launched with.
#define SHARED(name) extern __shared__ __align__(128) u8 name[]

#define SUMS_4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define SUMS_16(s, i) SUMS_4(s, i), SUMS_4(s, i + 4), SUMS_4(s, i + 8), SUMS_4(s, i + 12)

// 64 × 128 sums of a group of four warps: sums += A Bᵀ over 16 of K, which is the contiguous dimension of both.
__device__ __forceinline__ void multiply_64_128(float (&sums)[64], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, 1, 1, 1, 0, 0;"
        : SUMS_16(sums, 0), SUMS_16(sums, 16), SUMS_16(sums, 32), SUMS_16(sums, 48)
        : "l"(a), "l"(b));
}

// 64 × 32 sums. An operand of which M or N is the contiguous dimension instead of K is `TURNED`.
template <int TURNED_A, int TURNED_B>
__device__ __forceinline__ void multiply_64_32(float (&sums)[16], u64 a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "%16, %17, 1, 1, 1, %18, %19;"
        : SUMS_16(sums, 0)
        : "l"(a), "l"(b), "n"(TURNED_A), "n"(TURNED_B));
}
