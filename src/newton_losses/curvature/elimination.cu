// A linear system of up to 147 unknowns, eliminated in the registers of one block of threads, in float64.
//
// A warp owns every seventh column and one right side, its lanes the rows, so that a pivot's row never leaves the warp, and
// only its column goes through shared memory. One warp owns nothing: it runs one column ahead of the others, searches for
// the pivot and divides, while they multiply.
//
// Macro: SIZE, a multiple of 7, is the largest number of unknowns.

#ifndef SHARED
#define SHARED(name) extern __shared__ __align__(16) double name[]

// 1/x to the last bit or two, NaN for 0 and what is not finite.
__device__ __forceinline__ double reciprocal(double x) {
    double y;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    y = fma(y, fma(-x, y, 1.0), y);
    return fma(y, fma(-x, y, 1.0), y);
}
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr int OWNERS = 7;  // warps that own columns, and one right side each
constexpr int WARPS = OWNERS + 1;
constexpr int THREADS = 32 * WARPS;
constexpr int ROWS = (SIZE + 31) / 32;
constexpr int OWN = SIZE / OWNERS;
constexpr int COLUMNS = OWN + 1;
constexpr int GROUP = 8;  // columns that are left out together once all are done: testing each takes longer
constexpr u32 ALL = 0xFFFFFFFF;
constexpr double ROUNDING = 2.220446049250313e-16;  // 2^-52

__device__ __forceinline__ bool is_finite(double x) { return x - x == 0; }

struct alignas(16) Exchange {
    double column[2][32 * ROWS];                   // what each row takes of the pivot's, of this step and the next
    double ahead[2][32 * ROWS];                    // columns that the last step has not changed yet
    double row[2][OWNERS][COLUMNS + COLUMNS % 2];  // the pivot's row, each warp its own columns
    double diagonal[SIZE];                         // as it was before the elimination
    double inverse[32 * ROWS];                     // by row: one over its pivot,
    int unknown[32 * ROWS];                        // and which unknown it solves for
    int pivot[2];
    int failed;
};

// The pivot of column k, whose entries are `x`, and what the other rows take of its row. By one warp, all of whose lanes
// write the same: choosing one of them would take longer. In a definite matrix the pivot is known.
__device__ __forceinline__ int find_pivot(Exchange& to, double (&x)[ROWS], int k, bool definite, u32 left, double pivot) {
    const int lane = threadIdx.x % 32;
    int p = k;
    if (!definite) {
        // The upper bits of a number's size and its row in one word: the largest is a pivot to one part in 4,096.
        u32 best = 0;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const u32 key = (static_cast<u32>(__double2hiint(x[r])) & 0x7FFFFF00) | (lane + 32 * r);
            if (left >> r & 1) best = key > best ? key : best;
        }
        p = __reduce_max_sync(ALL, best) & 0xFF;
        pivot = x[0];
#pragma unroll
        for (int r = 1; r < ROWS; ++r) pivot = 1u << (p >> 5) >> r & 1 ? x[r] : pivot;
        pivot = __shfl_sync(ALL, pivot, p & 31);
    }
    const double inverse = reciprocal(pivot);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        x[r] = lane + 32 * r == p ? 0 : x[r] * inverse;
        to.column[k & 1][lane + 32 * r] = x[r];
    }
    to.pivot[k & 1] = p, to.inverse[p] = inverse, to.unknown[p] = k;
    return p;
}

// The work of the warp that is ahead: in each step it changes the next column itself.
__device__ __forceinline__ void run_ahead(Exchange& to, int unknowns, bool definite) {
    const int lane = threadIdx.x % 32;
    // A pivot that is only the rounding of its diagonal entry is none: as in `has_inverse`.
    const double rounding = unknowns * ROUNDING;
    double x[ROWS], pivot = to.ahead[0][0], least = rounding * to.diagonal[0];
    u32 left = 0;
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        left |= (lane + 32 * r < unknowns ? 1 : 0) << r;
        x[r] = to.ahead[0][lane + 32 * r];
    }
    bool failed = false;
    int p = find_pivot(to, x, 0, definite, left, pivot);
    for (int k = 0; k < unknowns; ++k) {
        failed = failed || !(pivot > least && is_finite(pivot));
        __syncthreads();
        if (k + 1 == unknowns) break;
        if (lane == (p & 31)) left &= ~(1u << (p >> 5));
        const double *next = to.ahead[k + 1 & 1], at_pivot = next[p];
        pivot = next[k + 1] - to.column[k & 1][k + 1] * at_pivot;
        least = rounding * to.diagonal[k + 1];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) x[r] = next[lane + 32 * r] - x[r] * at_pivot;
        p = find_pivot(to, x, k + 1, definite, left, pivot);
    }
    to.failed = definite && failed;
}

// The pivot's row p, to the lanes of its warp.
__device__ __forceinline__ void share_row(double* to, const double (&a)[ROWS][COLUMNS], int p, int first) {
    if (static_cast<int>(threadIdx.x % 32) != (p & 31)) return;
    // As bits: a compiler that sees two numbers to be equal takes one for the other, here as an index of registers.
    const u32 chosen = 1u << (p >> 5);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
        if (chosen >> r & 1) {
#pragma unroll
            for (int g = 0; g < COLUMNS; g += GROUP)
                if (g + GROUP > OWN || g + GROUP > first) {
#pragma unroll
                    for (int c = g; c < g + GROUP && c < COLUMNS; c += 2)
                        reinterpret_cast<double2*>(to)[c / 2] = double2{a[r][c], c + 1 < COLUMNS ? a[r][c + 1] : 0};
                }
        }
}

// Gauss-Jordan: afterwards each row is an unknown times its pivot. Columns that are done are not touched again.
__device__ __forceinline__ void eliminate(Exchange& to, double (&a)[ROWS][COLUMNS], int unknowns, bool definite) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (warp == OWNERS) {
        run_ahead(to, unknowns, definite);
        return;
    }
    int owner = 2, place = 0;  // of column k + 2: the warp that is ahead takes care of the one before it
    if (definite) share_row(to.row[0][warp], a, 0, 0);
    for (int k = 0; k < unknowns; ++k) {
        __syncthreads();
        const int first = place + (warp < owner ? 1 : 0);
        double share[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) share[r] = to.column[k & 1][lane + 32 * r];
        const double2* row = reinterpret_cast<const double2*>(to.row[k & 1][warp]);
        if (!definite) {
            share_row(to.row[k & 1][warp], a, to.pivot[k & 1], first);
            __syncwarp();
        }
#pragma unroll
        for (int g = 0; g < COLUMNS; g += GROUP)
            if (g + GROUP > OWN || g + GROUP > first) {
#pragma unroll
                for (int c = g; c < g + GROUP && c < COLUMNS; c += 2) {
                    const double2 at_pivot = row[c / 2];
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        a[r][c] -= share[r] * at_pivot.x;
                        if (c + 1 < COLUMNS) a[r][c + 1] -= share[r] * at_pivot.y;
                    }
                }
            }
        if (warp == owner && k + 2 < unknowns) {
            const u32 chosen = 1u << place;
#pragma unroll
            for (int c = 0; c < OWN; ++c)
                if (chosen >> c & 1) {
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) to.ahead[k & 1][lane + 32 * r] = a[r][c];
                }
        }
        // The next pivot is known: its row is there when the next step begins.
        if (definite && k + 1 < unknowns) share_row(to.row[k + 1 & 1][warp], a, k + 1, first);
        if (++owner == OWNERS) owner = 0, ++place;
    }
}
