// The damped Newton step of a batch in one launch, for systems that are too large for the registers of Triton's programs.
//
//     (C + λI)⁻¹gᵢ,   C = (1/N) Σ gᵢgᵢᵀ, or stored
//
// Every block of threads makes the whole system again and eliminates it together with right sides of its own, as in
// `elimination.cu`, which comes before this file: nothing to wait for between blocks. Where λ is far above C, a few terms
// of the Neumann series Σ (−C/λ)ᵏgᵢ/λ are the solution to the last digit, and nothing is eliminated.
//
// Macro: NUMBER is the type of the gradients.

// In shared memory: the matrix, with rows of an odd length, so that a column lies in different banks; and a part of the
// gradients along their longer side, of which a thread multiplies tiles of 4×4, those above the diagonal left out. The
// four are two pairs, half of the matrix apart: so neighbours read pairs that lie side by side.
constexpr int WIDTH = SIZE | 1;
constexpr int PART = 32;
constexpr int PITCH = (SIZE + 3) / 4 * 4 + 2;
constexpr int TILES = (SIZE + 3) / 4 * ((SIZE + 3) / 4 + 1) / 2;
constexpr int TILES_OWN = (TILES + THREADS - 1) / THREADS;
constexpr int HELD = PART / WARPS * ROWS;
constexpr int AT_ONCE = 4;  // rows that a warp loads at a time
constexpr int MOST_SAMPLES = 1024;
constexpr double NEGLIGIBLE = 1.0 / (1ull << (sizeof(NUMBER) == 4 ? 34 : 60));  // beside the rounding of the results
// The most that a round of the series costs. With 147 unknowns it is 3,800 cycles, counted, and a column is 1,700, measured.
constexpr int COLUMNS_PER_ROUND = 3;

enum { RELATIVE = 1, NORMALIZED = 2, MEAN = 4, INDEFINITE = 8, WIDE_MATRIX = 16, WIDE_DAMPING = 32 };

struct Given {
    const NUMBER *gradient, *value;
    const u8* kept;
    const void *matrix, *damping;
    const NUMBER* unit;
    NUMBER* rows;
    u8* used;
    NUMBER* numbers;
    u64* counter;
    double number, largest;
    int samples, outputs, flags;
};

__device__ __forceinline__ double not_a_number() { return __hiloint2double(0x7FF80000, 0); }
__device__ __forceinline__ double size_of(double x) { return x < 0 ? -x : x; }

// The least e with x < 2^e, for a positive x; as far as 2^e and its inverse are numbers.
__device__ __forceinline__ int exponent(double x) {
    const int e = (__double2hiint(x) >> 20 & 0x7FF) - 1022;
    return e < -1000 ? -1000 : e > 1000 ? 1000 : e;
}

__device__ __forceinline__ double power_of_two(int e) { return __hiloint2double((e + 1023) << 20, 0); }

__device__ __forceinline__ double larger(double x, double y) { return y > x ? y : x; }

// The sum or the largest over all threads, in each of them the same.
template <bool IS_SUM>
__device__ double over_block(double x) {
    __shared__ double partial[WARPS];
    for (int apart = 16; apart > 0; apart /= 2) {
        const double other = __shfl_xor_sync(ALL, x, apart);
        x = IS_SUM ? x + other : larger(x, other);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    x = partial[0];
    for (int w = 1; w < WARPS; ++w) x = IS_SUM ? x + partial[w] : larger(x, partial[w]);
    return x;
}

// A stored matrix to shared memory; returns the largest that this thread has seen.
template <class T>
__device__ double load(const T* from, int outputs, double* matrix) {
    const int lane = threadIdx.x % 32;
    double top = 0;
    for (int begin = AT_ONCE * (threadIdx.x / 32); begin < outputs; begin += AT_ONCE * WARPS) {
        T held[AT_ONCE][ROWS];  // all on their way before the first is stored
#pragma unroll
        for (int e = 0; e < AT_ONCE * ROWS; ++e) {
            const int i = begin + e / ROWS, j = lane + 32 * (e % ROWS);
            held[e / ROWS][e % ROWS] = i < outputs && j < outputs ? from[i * outputs + j] : 0;
        }
#pragma unroll
        for (int e = 0; e < AT_ONCE * ROWS; ++e) {
            const int i = begin + e / ROWS, j = lane + 32 * (e % ROWS);
            const double x = held[e / ROWS][e % ROWS];
            if (i < outputs && j < outputs) matrix[i * WIDTH + j] = x;
            top = larger(top, size_of(x));
        }
    }
    return top;
}

// The products of the good samples' scaled gradients, summed along the longer side.
__device__ void multiply(const Given& given, const u8* good, double scale, bool few, double* matrix, double* part) {
    const int unknowns = few ? given.samples : given.outputs, length = few ? given.outputs : given.samples;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = (unknowns + 3) / 4 * 2;
    double sums[TILES_OWN][4][4];
    int high[TILES_OWN], low[TILES_OWN];
#pragma unroll
    for (int t = 0; t < TILES_OWN; ++t) {
        const int tile = threadIdx.x + THREADS * t;
        high[t] = 0;
        while ((high[t] + 1) * (high[t] + 2) / 2 <= tile) ++high[t];
        low[t] = tile - high[t] * (high[t] + 1) / 2;
#pragma unroll
        for (int e = 0; e < 16; ++e) sums[t][e / 4][e % 4] = 0;
    }
    NUMBER held[HELD];
    for (int begin = -PART; begin < length; begin += PART) {
        if (begin >= 0) {
            __syncthreads();
#pragma unroll
            for (int h = 0; h < HELD; ++h) {
                const int k = few ? lane : warp + WARPS * (h / ROWS), i = few ? warp + WARPS * h : lane + 32 * (h % ROWS);
                if (i < SIZE) part[k * PITCH + i] = scale * held[h];
            }
            __syncthreads();
        }
        // The next part is on its way while this one is multiplied. Lanes read along a sample's outputs.
#pragma unroll
        for (int h = 0; h < HELD; ++h) {
            const int k = few ? lane : warp + WARPS * (h / ROWS), i = few ? warp + WARPS * h : lane + 32 * (h % ROWS);
            const int along = begin + PART + k, n = few ? i : along, j = few ? along : i;
            const bool exists = n < given.samples && j < given.outputs && good[n];
            held[h] = exists ? given.gradient[n * given.outputs + j] : 0;
        }
        if (begin < 0) continue;
        const int steps = length - begin < PART ? length - begin : PART;
#pragma unroll
        for (int t = 0; t < TILES_OWN; ++t) {
            if (2 * high[t] >= half) continue;
#pragma unroll 2
            for (int k = 0; k < steps; ++k) {
                const double2* pairs = reinterpret_cast<const double2*>(part + k * PITCH);
                const double2 d0 = pairs[high[t]], d1 = pairs[half / 2 + high[t]];
                const double2 a0 = pairs[low[t]], a1 = pairs[half / 2 + low[t]];
                const double d[4] = {d0.x, d0.y, d1.x, d1.y}, a[4] = {a0.x, a0.y, a1.x, a1.y};
#pragma unroll
                for (int e = 0; e < 16; ++e) sums[t][e / 4][e % 4] += d[e / 4] * a[e % 4];
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES_OWN; ++t)
#pragma unroll
        for (int e = 0; e < 16; ++e) {
            const int i = e / 8 * half + 2 * high[t] + e / 4 % 2, j = e % 4 / 2 * half + 2 * low[t] + e % 2;
            // Of a tile on the diagonal both (i, j) and (j, i) are here, with the same sum.
            if (2 * high[t] < half && i < unknowns && j < unknowns)
                matrix[i * WIDTH + j] = matrix[j * WIDTH + i] = sums[t][e / 4][e % 4];
        }
}

// (C + λI)x = b by rounds of y ← b − Cy/λ, with y = λx and C in its owners' registers. Leaves what `eliminate` leaves.
//
// A warp multiplies its columns by one side after another: the sums of one fit beside C, those of all do not.
__device__ __forceinline__ void iterate(Exchange& to, double (&a)[ROWS][COLUMNS], double* y, double lambda, int rounds) {
    static_assert(OWNERS * (OWNERS + 2) <= WIDTH, "The vectors of all sides have to fit where the matrix was.");
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool is_owner = warp < OWNERS;
    const double inverse = 1 / lambda;
    if (thread < SIZE) to.inverse[thread] = inverse, to.unknown[thread] = thread;
    to.failed = false;
    // By side and unknown, as y; the sums by owner too. The right sides leave registers to loads ahead of the products.
    double *right = y + OWNERS * SIZE, *sums = right + OWNERS * SIZE;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = lane + 32 * r, at = warp * SIZE + i;
        if (is_owner && i < SIZE) y[at] = right[at] = a[r][OWN];
    }
    for (int round = 0; round < rounds; ++round) {
        __syncthreads();
#pragma unroll 1
        for (int side = 0; is_owner && side < OWNERS; ++side) {
            double sum[ROWS] = {};
#pragma unroll
            for (int c = 0; c < OWN; ++c)
#pragma unroll
                for (int r = 0; r < ROWS; ++r) sum[r] += a[r][c] * y[side * SIZE + warp + OWNERS * c];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const int i = lane + 32 * r;
                if (i < SIZE) sums[(OWNERS * warp + side) * SIZE + i] = sum[r];
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = lane + 32 * r, at = warp * SIZE + i;
            if (!is_owner || i >= SIZE) continue;
            double sum = 0;
#pragma unroll
            for (int w = 0; w < OWNERS; ++w) sum += sums[OWNERS * SIZE * w + at];
            y[at] = right[at] - sum * inverse;
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = lane + 32 * r;
        a[r][OWN] = is_owner && i < SIZE ? y[warp * SIZE + i] : 0;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) block_step(const Given given) {
    SHARED(memory);
    __shared__ u8 good[MOST_SAMPLES];
    __shared__ Exchange exchange;
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32, block = blockIdx.x;
    const int samples = given.samples, outputs = given.outputs;
    const bool stored = given.matrix != nullptr, few = !stored && samples < outputs;
    const bool relative = given.flags & RELATIVE, normalized = given.flags & NORMALIZED;
    const bool definite = !(given.flags & INDEFINITE);
    const int unknowns = few ? samples : outputs;

    // Which samples take part, and how large their numbers are.
    double top = 0, squares = 0, seen = 0;
    for (int begin = AT_ONCE * warp; begin < samples; begin += AT_ONCE * WARPS) {
        double largest[AT_ONCE] = {}, sum[AT_ONCE] = {};
        bool fine[AT_ONCE];
#pragma unroll
        for (int q = 0; q < AT_ONCE; ++q) {
            const int n = begin + q < samples ? begin + q : begin;
            fine[q] = (given.kept == nullptr || given.kept[n]) && (given.value == nullptr || is_finite(given.value[n]));
        }
#pragma unroll 4
        for (int j = lane; j < outputs; j += 32)
#pragma unroll
            for (int q = 0; q < AT_ONCE; ++q) {
                const double x = begin + q < samples ? given.gradient[(begin + q) * outputs + j] : 0;
                fine[q] = fine[q] && is_finite(x);
                largest[q] = larger(largest[q], size_of(x));
                sum[q] += x * x;
            }
#pragma unroll
        for (int q = 0; q < AT_ONCE; ++q) {
            fine[q] = __all_sync(ALL, fine[q]) && begin + q < samples;
            if (lane == 0 && begin + q < samples) good[begin + q] = fine[q];
            if (fine[q]) top = larger(top, largest[q]), squares += sum[q], seen += lane == 0;
        }
    }
    top = over_block<false>(top);
    const double count = larger(1, over_block<true>(seen));

    double number = given.number;
    if (given.damping != nullptr)
        number = given.flags & WIDE_DAMPING ? *static_cast<const double*>(given.damping)
                                            : *static_cast<const float*>(given.damping);
    const bool has_number = number > 0 && is_finite(number);

    // The system in units in which nothing leaves the range of numbers: those of the gradients are 2^e, those of a
    // stored matrix 2^matrix_e. A power of two rounds nothing.
    int e = top > 0 ? exponent(top) : -1001, matrix_e = 0;
    if (!stored && !relative && has_number) e = larger(e, (exponent(number) + 1) >> 1);
    e = e < -1000 ? 0 : e;
    const double scale = power_of_two(-e);

    double* matrix = memory;
    double factor = 1 / count, spread = 0, trace = 0;
    if (stored) {
        top = given.flags & WIDE_MATRIX ? load(static_cast<const double*>(given.matrix), outputs, matrix)
                                        : load(static_cast<const float*>(given.matrix), outputs, matrix);
        top = over_block<false>(top);
        matrix_e = top > 0 ? exponent(top) : -1001;
        if (!relative && has_number) matrix_e = larger(matrix_e, exponent(number));
        matrix_e = matrix_e < -1000 ? 0 : matrix_e;
        factor = power_of_two(-matrix_e);
    } else {
        multiply(given, good, scale, few, matrix, memory + (SIZE * WIDTH + 1) / 2 * 2);
        __syncthreads();
    }
    for (int i = warp; i < unknowns; i += WARPS)
        for (int j = lane; j < unknowns; j += 32) {
            const double x = matrix[i * WIDTH + j] *= factor;
            spread += x * x;
            if (i == j) trace += x;
        }

    // λ in these units, and what a solution is multiplied with. Without one, that is NaN, and no sample is kept.
    double lambda, length;
    spread = over_block<true>(spread);
    const double norm = sqrt(spread);
    if (relative) {
        spread = sqrt(spread / outputs);
        lambda = number * spread;
        length = stored ? power_of_two(e) * power_of_two(-matrix_e) : scale;
        if (normalized) {
            if (spread == 0) lambda = 1;
            const double mean = stored ? over_block<true>(squares) * scale * scale / count : over_block<true>(trace);
            length = mean > 0 ? lambda / sqrt(mean / outputs) : 1;
        }
    } else {
        lambda = stored ? number * factor : number * scale * scale;
        length = stored ? power_of_two(e) * factor : scale;
    }
    if (!(lambda > 0 && is_finite(lambda))) length = not_a_number();
    if (given.flags & MEAN) length /= count;
    if (given.unit != nullptr) length *= *given.unit;

    // After k rounds of the series the error is (−C/λ)ᵏ⁺¹ times the solution, at most this ratio to the same power. The
    // series is taken where it is faster. All blocks decide alike: they have the same numbers.
    const double ratio = norm / lambda;
    double error = ratio;
    int rounds = 0;
    for (; error > NEGLIGIBLE && COLUMNS_PER_ROUND * rounds < unknowns; ++rounds) error *= ratio;
    const bool dominates = error <= NEGLIGIBLE;

    __syncthreads();
    if (thread < unknowns && !dominates) exchange.diagonal[thread] = matrix[thread * WIDTH + thread] += lambda;
    __syncthreads();

    // To registers, with this block's right sides.
    double a[ROWS][COLUMNS];
    const int side = OWNERS * block + warp;
    const bool is_owner = warp < OWNERS, has_side = is_owner && side < (few ? outputs : samples) && (few || good[side]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const int i = lane + 32 * r;
#pragma unroll
        for (int c = 0; c < OWN; ++c) {
            const int j = warp + OWNERS * c;
            a[r][c] = is_owner && i < unknowns && j < unknowns ? matrix[i * WIDTH + j] : 0;
        }
        const bool takes_part = has_side && i < unknowns && (!few || good[i]);
        a[r][OWN] = takes_part ? scale * given.gradient[few ? i * outputs + side : side * outputs + i] : 0;
        if (warp < 2) exchange.ahead[warp][i] = a[r][0];
    }
    __syncthreads();
    if (dominates) iterate(exchange, a, memory, lambda, rounds);
    else eliminate(exchange, a, unknowns, definite);
    __syncthreads();

    if (exchange.failed) length = not_a_number();
    int left_out = 0;
    if (few) {
        // A sample's row lies in several blocks, which have to agree: a bound for all of them decides. No singular value of
        // (A + λI)⁻¹G, A = GGᵀ/N, is above √N/(2√λ).
        const bool fits = sqrt(count) / (2 * sqrt(lambda)) * length <= given.largest;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = lane + 32 * r;
            if (!is_owner || side >= outputs || i >= unknowns) continue;
            const int n = exchange.unknown[i];
            const bool keep = fits && good[n];
            given.rows[n * outputs + side] = keep ? a[r][OWN] * exchange.inverse[i] * length : 0;
        }
        if (block == 0)
            for (int n = thread; n < samples; n += THREADS) {
                const bool keep = fits && good[n];
                given.used[n] = keep;
                left_out += !keep;
            }
    } else if (is_owner && side < samples) {
        bool keep = good[side];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = lane + 32 * r;
            if (i < unknowns) {
                a[r][OWN] *= exchange.inverse[i] * length;
                keep = keep && is_finite(static_cast<NUMBER>(a[r][OWN]));
            }
        }
        keep = __all_sync(ALL, keep);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const int i = lane + 32 * r;
            if (i < unknowns) given.rows[side * outputs + exchange.unknown[i]] = keep ? a[r][OWN] : 0;
        }
        if (lane == 0) given.used[side] = keep, left_out = !keep;
    }
    if (given.counter != nullptr && left_out > 0) atomicAdd(given.counter, static_cast<u64>(left_out));

    if (block == 0) {
        double sum = 0, number_of = 0;
        for (int n = thread; given.value != nullptr && n < samples; n += THREADS) {
            const double v = given.value[n];
            if (is_finite(v)) sum += v, number_of += 1;
        }
        sum = over_block<true>(sum), number_of = over_block<true>(number_of);
        if (thread == 0) {
            given.numbers[0] = count;
            given.numbers[1] = given.value == nullptr ? 0 : sum / number_of;
        }
    }
}
