// The gradients of the second layer. That before the pooling is never written: the kernels unfold it from the codes
// (pooling.cu). Taps are put together into wide products wherever chunks of neighbouring taps or rows are equally far
// apart, so that operands are read less often.

// The columns of a slab of slopes: those of the widest picture with their margins.
constexpr int NARROW = 60;

// Of the two slabs, one is filled while the other is multiplied. Barriers, beside those of taking turns (1 and 2): who fills
// waits until a slab is empty, a group that multiplies until it is full.
__device__ int empty(int turn) { return 3 + turn; }

__device__ int full(int turn, int group) { return 5 + 2 * turn + group; }

// What goes back to eight channels of a pooled place, as it comes from memory.
struct Apart {
    u16 slope[CHUNK];
    u32 code;
};

__device__ Slopes together(const Apart& apart) {
    Slopes found = {};
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) found.slope[i / 2] |= static_cast<u32>(apart.slope[i]) << 16 * (i % 2);
    found.code = apart.code;
    return found;
}

// Ask for the slopes of `pairs` pooled rows of a picture, from `row` on, rows outside of it zero, by `WARPS` warps of which
// this is the `warp`-th. Each has one chunk of channels, and those with the same chunk take turns with the rows: so each has
// `SHARE` of them at most.
template <int WARPS, int SHARE>
__device__ void ask_for(Apart (&apart)[SHARE], const u16* gradient, const u32* codes, int picture, int row, int pairs, int warp,
                        int height, int width) {
    const int lane = threadIdx.x % 32, columns = width / 2, rows = height / 2, places = rows * columns;
    const int chunk = picture * OUT_CHUNKS + warp % OUT_CHUNKS;
#pragma unroll
    for (int share = 0; share < SHARE; ++share) {
        const int pair = warp / OUT_CHUNKS + share * (WARPS / OUT_CHUNKS), from = (row + pair) * columns + lane;
        apart[share] = {};
        if (lane >= columns || pair >= pairs || row + pair < 0 || row + pair >= rows) continue;
        apart[share].code = codes[chunk * places + from];
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) apart[share].slope[i] = gradient[(chunk * CHUNK + i) * places + from];
    }
}

// Unfold what was asked for. Each warp adds up the slopes of its channels in `totals`.
template <int ROW_APART, int CHUNK_APART, int WARPS, int SHARE>
__device__ void unfold(u8* first, const Apart (&apart)[SHARE], int pairs, int warp, int width, float (&totals)[CHUNK]) {
    const int lane = threadIdx.x % 32, chunk = warp % OUT_CHUNKS;
#pragma unroll
    for (int share = 0; share < SHARE; ++share) {
        const int pair = warp / OUT_CHUNKS + share * (WARPS / OUT_CHUNKS);
        if (2 * lane >= width || pair >= pairs) continue;
        const Slopes found = together(apart[share]);
        // Eight lanes write at once: four of them left places, four right ones, all to different banks.
        store_slopes<ROW_APART, 1>(first + (chunk * CHUNK_APART + 2 * pair * ROW_APART + 2 * lane) * 16, found, lane / 4 % 2);
        add_slopes(totals, found);
    }
}

// The gradients of two rows of pixels, as sums of a group of warps.
struct PixelSums {
    // Of the slopes that are for both rows, and of the first and the last row of slopes, which are for one alone.
    float both[32], upper[16], lower[16];
};

// Ask for them; `slab` has the slopes of the six rows around them.
template <int APART> __device__ void multiply_slopes(PixelSums& sums, u64 weights, u64 slab) {
    set_zero(sums.both);
    set_zero(sums.upper);
    set_zero(sums.lower);
    products_begin();
#pragma unroll 1
    for (int left = 0; left < 5; ++left)
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
            // What goes back is a convolution with the taps in reverse order. A row of slopes is for both rows of pixels by
            // two taps one above the other.
            const u64 window = slab + left + quarter * 2 * APART, column = weights + (4 - left) * 5 * TAP + quarter * 16;
            multiply_64_32<0, 1>(sums.upper, window, column + 4 * TAP);
#pragma unroll
            for (int row = 1; row < 5; ++row) multiply_64_64<0, 1>(sums.both, window + row * NARROW, column + (4 - row) * TAP);
            multiply_64_32<0, 1>(sums.lower, window + 5 * NARROW, column);
        }
    products_go();
}

// The weights with their input channels in an order in which a thread has the sums of eight in a row: of column 8i + 2k of a
// product and the next one, those of channel 8k + 2i and the next one.
__device__ void copy_reordered_weights(u8* to, const u16* weight) {
    for (int i = threadIdx.x; i < TAPS * OUT; i += blockDim.x) {
        const int first = i / OUT * IN_CHUNKS, channel = i % OUT;
        u32 two[IN_CHUNKS][CHUNK / 2];
#pragma unroll
        for (int chunk = 0; chunk < IN_CHUNKS; ++chunk) load_16(two[chunk], weight + ((first + chunk) * OUT + channel) * CHUNK);
#pragma unroll
        for (int chunk = 0; chunk < IN_CHUNKS; ++chunk)
            *reinterpret_cast<uint4*>(to + ((first + chunk) * WEIGHT_CHUNK + channel) * 16) =
                uint4{two[0][chunk], two[1][chunk], two[2][chunk], two[3][chunk]};
    }
}

__device__ void store_pixels(const PixelSums& sums, u16* result, int width) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int column = 16 * warp + lane / 4 + 8 * half;
        if (column >= width) continue;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            u32 word[CHUNK / 2];
#pragma unroll
            for (int i = 0; i < CHUNK / 2; ++i) {
                const int at = 4 * i + 2 * half;
                const float* own = row == 0 ? sums.upper + at : sums.lower + at;
                const float* both = sums.both + 16 * row + at;
                word[i] = to_bf16(both[0] + own[0]) | static_cast<u32>(to_bf16(both[1] + own[1])) << 16;
            }
            reinterpret_cast<uint4*>(result)[(row * width + column) * IN_CHUNKS + lane % 4] =
                uint4{word[0], word[1], word[2], word[3]};
        }
    }
}

// The gradient of the pixels, `(count, height, width, 32)` bf16, from that of the pooled features and their codes.
//
// The places of a row by the channels of two rows; two groups of warps have two rows each and take turns, four bring the
// next slopes.
extern "C" __global__ void __launch_bounds__(768, 1)
second_layer_by_pixels(const u16* gradient, const u32* codes, const u16* weight, u16* result, int count, int height,
                       int width) {
    // The windows of the last row end in the next chunk, or in the other slab while it is filled: what they see there is
    // beyond the width, and not used.
    constexpr int ROWS = 4, FILLER = 2, FILLERS = 4, APART = (ROWS + 4) * NARROW + 1, SLAB = OUT_CHUNKS * APART;
    SHARED(memory);
    u8* slabs = memory + WEIGHTS * 16;
    const int group = warp_group(), jobs = jobs_of<ROWS>(count, height);
    clear(slabs, 2 * SLAB);
    copy_reordered_weights(memory, weight);
    publish();
    __syncthreads();
    if (group >= FILLER) {
        give_registers<64>();
        constexpr int SHARE = (ROWS / 2 + 2) * OUT_CHUNKS / (4 * FILLERS);
        const int warp = threadIdx.x / 32 - 4 * FILLER;
        float unused[CHUNK] = {};
        Apart next[SHARE];
        const auto ask = [&](int number) {
            const Job job = job_at<ROWS>(number, count, height);
            ask_for<4 * FILLERS>(next, gradient, codes, job.picture, job.row / 2 - 1, number < jobs ? job.rows / 2 + 2 : 0,
                                 warp, height, width);
        };
        int turn = 0;
        ask(blockIdx.x);
        // One job ahead of those who multiply; the slopes of the next one come while they are waited for.
        for (int number = blockIdx.x; number < jobs; number += gridDim.x, turn ^= 1) {
            if (number >= blockIdx.x + 2 * gridDim.x) wait_for_turn(empty(turn), 768);
            unfold<NARROW, APART, 4 * FILLERS>(slabs + (turn * SLAB + 2) * 16, next,
                                               job_at<ROWS>(number, count, height).rows / 2 + 2, warp, width, unused);
            publish();
            pass_turn(full(turn, 0), 640);
            pass_turn(full(turn, 1), 640);
            // Not before: it would be waited for when this is published.
            ask(number + gridDim.x);
        }
        return;
    }
    take_registers<112>();
    const u64 weights = describe(memory, WEIGHT_CHUNK * 16, 128);
    const int row = 2 * group;
    int turn = 0;
    if (group == 1) pass_turn(1);
    for (int number = blockIdx.x; number < jobs; number += gridDim.x, turn ^= 1) {
        const Job job = job_at<ROWS>(number, count, height);
        u16* to = result + (job.picture * height + job.row + row) * width * IN;
        PixelSums sums;
        wait_for_turn(full(turn, group), 640);
        wait_for_turn(1 + group);
        if (row < job.rows)
            multiply_slopes<APART>(sums, weights, describe(slabs + turn * SLAB * 16, 128, APART * 16) + row * NARROW);
        pass_turn(2 - group);
        products_end();
        // Who fills waits only for slabs that are needed once more.
        if (number + 2 * gridDim.x < jobs) pass_turn(empty(turn), 768);
        if (row < job.rows) store_pixels(sums, to, width);
    }
}

// The gradients of a column of taps, five rows of them, and of `EXTRA` rows of the last column, by all jobs from `part` on. The
// operands of one begin at `slopes`, `column` and `last`, those of the next `APART` behind.
template <int EXTRA, int ROWS, int ROW_APART, int SLOPES_ROW_APART, int APART>
__device__ void add_taps(float (&sums)[80], float (&extra)[48], u64 slopes, u64 column, u64 last, int part, int step, int count,
                         int height) {
    const int jobs = jobs_of<ROWS>(count, height);
    int turn = 0;
    for (int number = part; number < jobs; number += step, turn ^= 1) {
        const int rows = job_at<ROWS>(number, count, height).rows;
        const auto add_row = [&](int row) {
            products_begin();
#pragma unroll
            for (int quarter = 0; quarter < WIDE / 16; ++quarter) {
                const u64 slope = slopes + turn * APART + row * SLOPES_ROW_APART + quarter * 16;
                const u64 at = turn * APART + row * ROW_APART + quarter * 16;
                multiply_64_160<1, 1>(sums, slope, column + at);
                if (EXTRA == 2) multiply_64_64<1, 1>(extra, slope, last + at);
                if (EXTRA == 3) multiply_64_96<1, 1>(extra, slope, last + at);
            }
            products_go();
        };
        wait_for_turn(full(turn, 0), 512);
        // While the first row of this job is multiplied, the job before it is done.
        add_row(0);
        products_end_but_last();
        // Who fills waits only for slabs that are needed once more.
        if (number != part && number + step < jobs) pass_turn(empty(turn ^ 1), 512);
#pragma unroll 1
        for (int row = 1; row < rows; ++row) add_row(row);
    }
    products_end();
}

// Parts of the gradients of weight, (tap, output channel, input channel), and bias, float32. Two neighbouring blocks of
// threads share a part: the first has two columns of taps, three taps of the last column and the bias, the second two columns
// and two taps.
//
// Output channels by input channels of all five taps of a column: chunks of one row lie behind those of the row above, and
// so do the rows that the taps see. Two groups of warps multiply, a column each; two bring the next job.
extern "C" __global__ void __launch_bounds__(512, 1)
second_layer_by_weight(const u16* pixels, const u16* gradient, const u32* codes, float* parts, float* bias_parts, int count,
                       int height, int width) {
    constexpr int ROWS = 6, FILLER = 2, FILLERS = 2;
    constexpr int APART = WIDE + 5, ROW_APART = IN_CHUNKS * APART, SLAB = (ROWS + 4) * ROW_APART;
    constexpr int SLOPES_APART = WIDE + 1, SLOPES_ROW_APART = OUT_CHUNKS * SLOPES_APART, SLOPES = ROWS * SLOPES_ROW_APART;
    SHARED(memory);
    const int group = warp_group(), jobs = jobs_of<ROWS>(count, height);
    const int second = blockIdx.x % 2, part = blockIdx.x / 2, step = gridDim.x / 2;
    clear(memory, 2 * (SLAB + SLOPES));
    publish();
    __syncthreads();
    if (group >= FILLER) {
        give_registers<88>();
        constexpr int SHARE = ROWS / 2 * OUT_CHUNKS / (4 * FILLERS);
        const int thread = threadIdx.x - 128 * FILLER, warp = thread / 32;
        float totals[CHUNK] = {};
        Apart next[SHARE];
        const auto ask = [&](int number) {
            const Job job = job_at<ROWS>(number, count, height);
            ask_for<4 * FILLERS>(next, gradient, codes, job.picture, job.row / 2, number < jobs ? job.rows / 2 : 0, warp,
                                 height, width);
        };
        int turn = 0;
        ask(part);
        // One job ahead of those who multiply; the slopes of the next one come while they are waited for.
        for (int number = part; number < jobs; number += step, turn ^= 1) {
            const Job job = job_at<ROWS>(number, count, height);
            u8* to = memory + turn * (SLAB + SLOPES) * 16;
            if (number >= part + 2 * step) wait_for_turn(empty(turn), 512);
            copy_pixels<ROW_APART, APART, 128 * FILLERS>(to, pixels, job, height, width, thread);
            unfold<SLOPES_ROW_APART, SLOPES_APART, 4 * FILLERS>(to + SLAB * 16, next, job.rows / 2, warp, width, totals);
            publish();
            pass_turn(full(turn, 0), 512);
            // Not before: it would be waited for when this is published.
            ask(number + step);
        }
        if (second) return;
#pragma unroll
        for (int i = 0; i < CHUNK; ++i) {
            for (int apart = 16; apart > 0; apart /= 2) totals[i] += shuffle_down(totals[i], apart);
            if (thread % 32 == 0) bias_parts[part * OUT + thread / 32 * CHUNK + i] = totals[i];
        }
        return;
    }
    take_registers<168>();
    const int left = 2 * second + group, below = 3 * second;
    float sums[80], extra[48];
    set_zero(sums);
    set_zero(extra);
    const u64 slab = describe(memory, APART * 16, 128), slopes = describe(memory + SLAB * 16, SLOPES_APART * 16, 128);
    const u64 column = slab + left, last = slab + below * ROW_APART + 4;
    constexpr int BOTH = SLAB + SLOPES;
    if (group == 1)
        add_taps<0, ROWS, ROW_APART, SLOPES_ROW_APART, BOTH>(sums, extra, slopes, column, last, part, step, count, height);
    else if (second)
        add_taps<2, ROWS, ROW_APART, SLOPES_ROW_APART, BOTH>(sums, extra, slopes, column, last, part, step, count, height);
    else
        add_taps<3, ROWS, ROW_APART, SLOPES_ROW_APART, BOTH>(sums, extra, slopes, column, last, part, step, count, height);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const auto store = [&](int tap, int i, float sum) {
        const int channel = 16 * warp + lane / 4 + 8 * (i / 2 % 2), input = 8 * (i / 4 % 4) + 2 * (lane % 4) + i % 2;
        parts[((part * TAPS + tap) * OUT + channel) * IN + input] = sum;
    };
#pragma unroll
    for (int i = 0; i < 80; ++i) store(5 * (i / 16) + left, i, sums[i]);
    if (group == 1) return;
#pragma unroll
    for (int i = 0; i < 48; ++i)
        if (!second || i < 32) store(5 * (below + i / 16) + 4, i, extra[i]);
}

// The sums over the parts, weight as `(64, 32, 5, 5)` and bias as `(64,)`.
extern "C" __global__ void __launch_bounds__(256)
second_layer_sum(const float* parts, const float* bias_parts, float* weight, float* bias, int number) {
    constexpr int SIZE = TAPS * OUT * IN;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0;
    if (i < SIZE) {
#pragma unroll 12
        for (int part = 0; part < number; ++part) sum += parts[part * SIZE + i];
        weight[i % (OUT * IN) * TAPS + i / (OUT * IN)] = sum;
    } else if (i < SIZE + OUT) {
        for (int part = 0; part < number; ++part) sum += bias_parts[part * OUT + i - SIZE];
        bias[i - SIZE] = sum;
    }
}
