// A block of CUDA threads on a CPU, for kernels that use barriers, shuffles and shared memory: fibers that take turns.
// One that waits hands over to the next, from the first to the last or back, so that a missing barrier shows.

#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

struct alignas(16) double2 {
    double x, y;
};
struct dim {
    int x;
};
using std::fma;
using std::sqrt;

#define __device__ static
#define __forceinline__
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define SHARED(name) double* name = shared_memory

constexpr int DOUBLES = 227 * 128;
alignas(16) static double shared_memory[DOUBLES];
static dim threadIdx, blockIdx;

// Opens when all of its threads have come, and begins anew.
struct Gate {
    int threads = 0, arrived = 0, times = 0;
};

struct Fiber {
    ucontext_t start;
    jmp_buf place;  // a jump there takes a tenth of the time of a switch of contexts, which asks the kernel for signals
    std::unique_ptr<char[]> stack;
    bool begun, done;
};

static std::vector<Fiber> fibers;
static std::vector<Gate> gates;  // of each warp, and of all
static std::vector<uint64_t> exchange;
static jmp_buf scheduler;
static int running, progress;

static void wait_at(Gate& gate) {
    const int now = gate.times;
    ++progress;
    if (++gate.arrived == gate.threads) gate.arrived = 0, ++gate.times;
    while (gate.times == now)
        if (!_setjmp(fibers[running].place)) _longjmp(scheduler, 1);
}

static void __syncthreads() { wait_at(gates.back()); }
static void __syncwarp() { wait_at(gates[threadIdx.x / 32]); }

template <class T>
static T from_lane(T value, int lane) {
    memcpy(&exchange[threadIdx.x], &value, sizeof(T));
    __syncwarp();
    memcpy(&value, &exchange[threadIdx.x / 32 * 32 + lane], sizeof(T));
    __syncwarp();
    return value;
}

static double __shfl_sync(unsigned, double value, int lane) { return from_lane(value, lane); }
static double __shfl_xor_sync(unsigned, double value, int mask) { return from_lane(value, threadIdx.x % 32 ^ mask); }

static unsigned __reduce_max_sync(unsigned, unsigned value) {
    exchange[threadIdx.x] = value;
    __syncwarp();
    for (int lane = 0; lane < 32; ++lane) {
        const unsigned other = unsigned(exchange[threadIdx.x / 32 * 32 + lane]);
        value = other > value ? other : value;
    }
    __syncwarp();
    return value;
}

static bool __all_sync(unsigned, bool value) { return __reduce_max_sync(0, !value) == 0; }

static int __double2hiint(double x) {
    int64_t bits;
    memcpy(&bits, &x, 8);
    return int(bits >> 32);
}

static double __hiloint2double(int high, int low) {
    const uint64_t bits = uint64_t(uint32_t(high)) << 32 | uint32_t(low);
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

static void atomicAdd(unsigned long long* to, unsigned long long value) { *to += value; }
static double reciprocal(double x) { return x == 0 || x - x != 0 ? NAN : 1 / x; }

static void (*kernel)();

static void run_fiber() {
    kernel();
    fibers[running].done = true;
    ++progress;
    _longjmp(scheduler, 1);
}

static void resume(Fiber& fiber) {
    if (_setjmp(scheduler)) return;
    if (fiber.begun) _longjmp(fiber.place, 1);
    fiber.begun = true;
    setcontext(&fiber.start);
}

// Blocks one after another. Shared memory begins as NaN. False if threads wait for each other for ever.
static bool launch(int blocks, int threads, bool backwards, void (*function)()) {
    kernel = function;
    exchange.assign(threads, 0);
    fibers = std::vector<Fiber>(threads);
    for (Fiber& fiber : fibers) fiber.stack = std::make_unique<char[]>(1 << 16);
    for (int block = 0; block < blocks; ++block) {
        blockIdx.x = block;
        memset(shared_memory, 0xFF, sizeof(shared_memory));
        gates.assign(threads / 32 + 1, Gate{32});
        gates.back().threads = threads;
        for (Fiber& fiber : fibers) {
            getcontext(&fiber.start);
            fiber.start.uc_stack.ss_sp = fiber.stack.get();
            fiber.start.uc_stack.ss_size = 1 << 16;
            fiber.start.uc_link = nullptr;
            fiber.begun = fiber.done = false;
            makecontext(&fiber.start, run_fiber, 0);
        }
        int left = threads;
        while (left > 0) {
            progress = left = 0;
            for (int turn = 0; turn < threads; ++turn) {
                running = threadIdx.x = backwards ? threads - 1 - turn : turn;
                if (fibers[running].done) continue;
                resume(fibers[running]);
                left += !fibers[running].done;
            }
            if (left > 0 && progress == 0) return false;
        }
    }
    return true;
}

// One more than the last double that was written to.
static int used_doubles() {
    int last = DOUBLES;
    for (uint64_t bits = ~0ull; last > 0; --last) {
        memcpy(&bits, shared_memory + last - 1, 8);
        if (bits != ~0ull) break;
    }
    return last;
}
