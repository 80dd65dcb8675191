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

// 16 bytes to registers; the address is a multiple of that.
__device__ __forceinline__ void load_16(u32 (&to)[4], const void* from) {
    const uint4 found = *static_cast<const uint4*>(from);
    to[0] = found.x, to[1] = found.y, to[2] = found.z, to[3] = found.w;
}

// Four bytes of eight, by the digits of a selector in base 16: 0 to 3 are those of `low`, 4 to 7 those of `high`.
__device__ __forceinline__ u32 pick_bytes(u32 low, u32 high, u32 selector) { return __byte_perm(low, high, selector); }

// The signs of the same byte of two words: 16 bits each, all of them the sign.
__device__ __forceinline__ u32 two_signs(u32 low, u32 high, int byte) {
    u32 signs;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(signs) : "r"(low), "r"(high), "r"(0xCC88 + 0x1111 * byte));
    return signs;
}

// The larger of two, NaN if one of them is.
__device__ __forceinline__ float larger(float a, float b) {
    float found;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

// 1 where the first is larger or one of them is NaN, otherwise 0.
__device__ __forceinline__ float is_larger(float a, float b) {
    float found;
    asm("set.gtu.f32.f32 %0, %1, %2;" : "=f"(found) : "f"(a), "f"(b));
    return found;
}

// What this thread has written to shared memory, by copies or by itself, is there for products after the next barrier.
__device__ __forceinline__ void publish() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Which group of four warps this is: the same for all of its threads, and the compiler knows that.
__device__ __forceinline__ int warp_group() { return __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0); }

// Groups of four warps leave registers to each other: so many a thread from here on. Who takes waits for those who give.
template <int COUNT> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

template <int COUNT> __device__ __forceinline__ void set_zero(float (&sums)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) sums[i] = 0;
}

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// From here on the products that were asked for run by themselves.
__device__ __forceinline__ void products_go() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_end() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// All products have ended but those that were asked for last.
__device__ __forceinline__ void products_end_but_last() { asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory"); }

// A barrier, 1 to 15, of so many threads: some wait at it, others only pass. Two groups of four warps take turns with two of
// them: one waits until the other has passed the turn on.
__device__ __forceinline__ void wait_for_turn(int barrier, int threads = 256) {
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ void pass_turn(int barrier, int threads = 256) {
    asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}

__device__ __forceinline__ u16 to_bf16(float value) {
    u16 rounded;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
    return rounded;
}

// Two numbers as bf16, 0 for those below 0.
__device__ __forceinline__ u32 to_two_bf16_with_relu(float low, float high) {
    u32 rounded;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(rounded) : "f"(high), "f"(low));
    return rounded;
}

__device__ __forceinline__ u32 float_bits(float value) { return __float_as_uint(value); }

__device__ __forceinline__ float bits_float(u32 bits) { return __uint_as_float(bits); }

__device__ __forceinline__ float shuffle_down(float value, int apart) { return __shfl_down_sync(~0u, value, apart); }

__device__ __forceinline__ u32 shuffle_xor(u32 value, int mask) { return __shfl_xor_sync(~0u, value, mask); }

// The shared memory of a block of threads, as many bytes as it was launched with.
#define SHARED(name) extern __shared__ __align__(128) u8 name[]

#define SUMS_4(s, i) "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3])
#define SUMS_16(s, i) SUMS_4(s, i), SUMS_4(s, i + 4), SUMS_4(s, i + 8), SUMS_4(s, i + 12)
#define NAMES_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_1 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_2 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_3 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_4 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"

// 64 × `columns` sums of a group of four warps, in as many registers as are needed: sums += A Bᵀ over 16 of
// K. K is the contiguous dimension of an operand in shared memory; where it is M or N instead, the operand is `TURNED`.
#define MULTIPLY(columns, names, a_name, b_name, turned_a_name, turned_b_name, ...)                                        \
    template <int TURNED_A, int TURNED_B, int SIZE>                                                                        \
    __device__ __forceinline__ void multiply_64_##columns(float (&sums)[SIZE], u64 a, u64 b) {                             \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" names "}, " a_name ", " b_name     \
                     ", 1, 1, 1, " turned_a_name ", " turned_b_name ";"                                                    \
                     : __VA_ARGS__                                                                                         \
                     : "l"(a), "l"(b), "n"(TURNED_A), "n"(TURNED_B));                                                      \
    }

MULTIPLY(32, NAMES_0, "%16", "%17", "%18", "%19", SUMS_16(sums, 0))
MULTIPLY(48, NAMES_0 ", %16, %17, %18, %19, %20, %21, %22, %23", "%24", "%25", "%26", "%27", SUMS_16(sums, 0),
         SUMS_4(sums, 16), SUMS_4(sums, 20))
MULTIPLY(64, NAMES_0 ", " NAMES_1, "%32", "%33", "%34", "%35", SUMS_16(sums, 0), SUMS_16(sums, 16))
MULTIPLY(96, NAMES_0 ", " NAMES_1 ", " NAMES_2, "%48", "%49", "%50", "%51", SUMS_16(sums, 0),
         SUMS_16(sums, 16), SUMS_16(sums, 32))
MULTIPLY(128, NAMES_0 ", " NAMES_1 ", " NAMES_2 ", " NAMES_3, "%64", "%65", "%66", "%67", SUMS_16(sums, 0),
         SUMS_16(sums, 16), SUMS_16(sums, 32), SUMS_16(sums, 48))
MULTIPLY(160, NAMES_0 ", " NAMES_1 ", " NAMES_2 ", " NAMES_3 ", " NAMES_4, "%80", "%81", "%82", "%83", SUMS_16(sums, 0),
         SUMS_16(sums, 16), SUMS_16(sums, 32), SUMS_16(sums, 48), SUMS_16(sums, 64))
