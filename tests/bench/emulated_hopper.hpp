// A block of CUDA threads on a CPU: what hopper.cu offers to kernels, done by threads of the host, one after another
// where the device is asynchronous. With it the kernels of both layers compile as C++.

#include <algorithm>
#include <atomic>
#include <barrier>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
struct uint4 {
    u32 x, y, z, w;
};
struct dim {
    int x;
};
using std::min;

#define __device__ static
#define __global__
#define __launch_bounds__(...)
#define SHARED(name) u8* name = shared

constexpr int SHARED_BYTES = 227 * 1024;
alignas(128) static u8 shared[SHARED_BYTES];
// One byte more than the farthest that a kernel has written, or read by a product.
static std::atomic<int> used;
static std::unique_ptr<std::barrier<>> everybody;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static std::vector<float> exchange;
static thread_local dim threadIdx;
static dim blockIdx, blockDim, gridDim;

// A barrier that some wait at and others only pass; it opens when enough have come, and begins anew.
struct Turn {
    std::mutex mutex;
    std::condition_variable opened;
    int arrived = 0, times = 0;

    void arrive(int threads, bool wait) {
        std::unique_lock<std::mutex> lock(mutex);
        const int now = times;
        if (++arrived == threads) {
            arrived = 0, ++times;
            opened.notify_all();
        } else if (wait) {
            opened.wait(lock, [&] { return times != now; });
        }
    }
};

static std::unique_ptr<Turn> turns[9];

static void wait_for_turn(int barrier, int threads = 256) { turns[barrier]->arrive(threads, true); }
static void pass_turn(int barrier, int threads = 256) { turns[barrier]->arrive(threads, false); }

static void __syncthreads() { everybody->arrive_and_wait(); }

static u64 describe(const void* begin, u32 across, u32 along) {
    return u64((const u8*)begin - shared) >> 4 | u64(along >> 4) << 16 | u64(across >> 4) << 32;
}

static void copy_16(void* to, const void* from, bool live) {
    if (live)
        memcpy(to, from, 16);
    else
        memset(to, 0, 16);
}

static void publish() {}
template <int COUNT>
static void give_registers() {}
template <int COUNT>
static void take_registers() {}

static int warp_group() { return threadIdx.x / 128; }

template <int COUNT>
static void set_zero(float (&sums)[COUNT]) {
    for (float& sum : sums) sum = 0;
}

static void products_begin() {}
static void products_go() {}
static void products_end() {}
static void products_end_but_last() {}

static float bits_float(u32 bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static u32 float_bits(float value) {
    u32 bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static void load_16(u32 (&to)[4], const void* from) { memcpy(to, from, 16); }

static u32 pick_bytes(u32 low, u32 high, u32 selector) {
    const u64 all = u64(high) << 32 | low;
    u32 found = 0;
    for (int i = 0; i < 4; ++i) found |= u32(all >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
    return found;
}

static u32 two_signs(u32 low, u32 high, int byte) {
    return (low >> 8 * byte & 0x80 ? 0xFFFFu : 0) | (high >> 8 * byte & 0x80 ? 0xFFFF0000u : 0);
}

static float larger(float a, float b) { return a != a || b != b ? bits_float(0x7FFFFFFF) : a > b ? a : b; }
static float is_larger(float a, float b) { return a <= b ? 0 : 1; }

static u16 to_bf16(float value) {
    const u32 bits = float_bits(value);
    if (value != value) return 0x7FFF;
    return u16((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static u32 to_two_bf16_with_relu(float low, float high) {
    return to_bf16(low < 0 ? 0 : low) | u32(to_bf16(high < 0 ? 0 : high)) << 16;
}

static float shuffle_down(float value, int apart) {
    const int warp = threadIdx.x / 32;
    exchange[threadIdx.x] = value;
    warps[warp]->arrive_and_wait();
    const float found = threadIdx.x % 32 + apart < 32 ? exchange[threadIdx.x + apart] : value;
    warps[warp]->arrive_and_wait();
    return found;
}

static u32 shuffle_xor(u32 value, int mask) {
    const int warp = threadIdx.x / 32;
    exchange[threadIdx.x] = bits_float(value);
    warps[warp]->arrive_and_wait();
    const u32 found = float_bits(exchange[threadIdx.x ^ mask]);
    warps[warp]->arrive_and_wait();
    return found;
}

// Element (across, along) of an operand: blocks of 8 rows of 8 numbers; turned, the rows are along K.
static float operand(u64 description, bool turned, int across, int along) {
    const u64 begin = (description & 0x3FFF) << 4, step_along = (description >> 16 & 0x3FFF) << 4;
    const u64 step_across = (description >> 32 & 0x3FFF) << 4;
    const int row = turned ? along : across, column = turned ? across : along;
    const u64 at = begin + across / 8 * step_across + along / 8 * step_along + row % 8 * 16 + column % 8 * 2;
    u16 value;
    memcpy(&value, shared + at, 2);
    const int end = int(at) + 2;
    for (int before = used; before < end && !used.compare_exchange_weak(before, end);) continue;
    return bits_float(u32(value) << 16);
}

template <int COLUMNS, int SIZE>
static void multiply(float (&sums)[SIZE], u64 a, u64 b, bool turned_a, bool turned_b) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    for (int i = 0; i < COLUMNS / 2; ++i) {
        const int row = 16 * warp + lane / 4 + 8 * (i / 2 % 2), column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
        for (int k = 0; k < 16; ++k) sums[i] += operand(a, turned_a, row, k) * operand(b, turned_b, column, k);
    }
}

#define MULTIPLY(columns)                                                                                     \
    template <int TURNED_A, int TURNED_B, int SIZE>                                                           \
    static void multiply_64_##columns(float (&sums)[SIZE], u64 a, u64 b) {                                    \
        multiply<columns>(sums, a, b, TURNED_A, TURNED_B);                                                    \
    }

MULTIPLY(32)
MULTIPLY(48)
MULTIPLY(64)
MULTIPLY(96)
MULTIPLY(128)
MULTIPLY(160)

// Blocks one after another, the threads of each at the same time. Shared memory begins as anything but zeros.
static void launch(int blocks, int threads, const std::function<void()>& kernel) {
    everybody = std::make_unique<std::barrier<>>(threads);
    warps.clear();
    for (int i = 0; i < threads / 32; ++i) warps.push_back(std::make_unique<std::barrier<>>(32));
    exchange.assign(threads, 0);
    gridDim.x = blocks, blockDim.x = threads, used = 0;
    for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        for (auto& turn : turns) turn = std::make_unique<Turn>();
        memset(shared, 0xFF, SHARED_BYTES);
        std::vector<std::thread> running;
        for (int thread = 0; thread < threads; ++thread)
            running.emplace_back([&kernel, thread] {
                threadIdx.x = thread;
                kernel();
            });
        for (auto& one : running) one.join();
        for (int at = SHARED_BYTES; at > used; --at)
            if (shared[at - 1] != 0xFF) used = at;
    }
}
