// The second layer of DigitCNN: a padded 5×5 convolution of 32 into 64 channels, bias, ReLU and 2×2 pooling, forward and
// backward, on the tensor cores of a Hopper GPU. The instructions are in hopper.cu.
//
// A block of threads takes jobs, a few rows of one picture each. Their pixels lie in shared memory once, channels in chunks
// of eight, with two rows and columns of zeros around them; the 25 taps of the convolution are 25 products with the same
// pixels, seen through a window that is moved. What lies beyond the width of a picture is computed and not used. While
// some groups of four warps multiply, the pixels of the next job are brought.
//
// Which of the four pooled places was the largest is its code, 0 to 3 in reading order, 4 where the ReLU is off, as for
// the first layer. The gradient before the pooling is never written: the backward kernels unfold it from the codes.

constexpr int IN = 32, OUT = 64, TAPS = 25, CHUNK = 8;
constexpr int OFF = 4;
constexpr int TAP_BYTES = IN * OUT * 2, WEIGHT_BYTES = TAPS * TAP_BYTES;

// Rows of pixels in shared memory, `pitch` apart: those of the widest picture with their margins, or a few more where two
// rows have to lie the same way in a product.
constexpr int WIDEST = 56, NARROW = WIDEST + 4, WIDE = 64;

struct Job {
    int picture, row, rows;
};

// First all the jobs of whole size, then those that are left over: neighbours take jobs of one size.
template <int ROWS> __device__ Job job_at(int number, int count, int height) {
    const int row = number / count * ROWS;
    return {number % count, row, min(ROWS, height - row)};
}

template <int ROWS> __device__ int jobs_of(int count, int height) { return count * ((height + ROWS - 1) / ROWS); }

__device__ void clear(u8* begin, int bytes) {
    for (int i = threadIdx.x * 16; i < bytes; i += blockDim.x * 16)
        *reinterpret_cast<uint4*>(begin + i) = uint4{0, 0, 0, 0};
}

// Weights come as (tap, chunk of input channels, output channel, input channel of the chunk).
__device__ void copy_weights(u8* to, const u16* weight) {
    for (int i = threadIdx.x * 16; i < WEIGHT_BYTES; i += blockDim.x * 16)
        copy_16(to + i, reinterpret_cast<const u8*>(weight) + i, true);
}

// The pixels of a job with two rows and columns around them, by `threads` threads of which this is the `thread`-th.
template <int ROWS, int PITCH, int SLAB>
__device__ void copy_pixels(u8* slab, const u16* pixels, Job job, int height, int width, int thread, int threads) {
    for (int i = thread; i < (ROWS + 4) * PITCH * (IN / CHUNK); i += threads) {
        // Eight pixels, then four chunks: a warp reads 512 bytes in a row and writes four times 128.
        const int chunk = i / 8 % 4, place = i / 32 * 8 + i % 8;
        const int row = job.row - 2 + place / PITCH, column = place % PITCH - 2;
        const bool inside = row >= 0 && row < height && column >= 0 && column < width;
        const int from = inside ? ((job.picture * height + row) * width + column) * IN + chunk * CHUNK : 0;
        copy_16(slab + (chunk * SLAB + place) * 16, pixels + from, inside);
    }
}

// What goes back to eight channels of a pooled place is unfolded: each slope to the one of four pixels that was the largest,
// zeros to the others.
__device__ void store_slopes(u8* first, const u16 (&slope)[CHUNK], const u8 (&code)[CHUNK]) {
#pragma unroll
    for (int number = 0; number < 4; ++number) {
        u32 word[CHUNK / 2];
#pragma unroll
        for (int i = 0; i < CHUNK / 2; ++i) {
            const u32 low = code[2 * i] == number ? slope[2 * i] : 0;
            const u32 high = code[2 * i + 1] == number ? slope[2 * i + 1] : 0;
            word[i] = low | high << 16;
        }
        u8* to = first + (number / 2 * NARROW + number % 2) * 16;
        *reinterpret_cast<uint4*>(to) = uint4{word[0], word[1], word[2], word[3]};
    }
}

// The slopes of `PAIRS` pooled rows of a picture, from `row` on, rows outside of it zero, by one group of warps: each has two
// chunks of channels, and adds up their slopes in `totals`.
template <int PAIRS, int SLAB>
__device__ void unfold(u8* first, const u16* gradient, const u8* codes, int picture, int row, int height, int width,
                       float (&totals)[2][CHUNK]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, columns = width / 2, rows = height / 2;
    if (lane >= columns) return;
#pragma unroll
    for (int turn = 0; turn < 2; ++turn)
#pragma unroll
        for (int pair = 0; pair < PAIRS; ++pair) {
            const int chunk = warp + 4 * turn;
            u16 slope[CHUNK] = {0, 0, 0, 0, 0, 0, 0, 0};
            u8 code[CHUNK] = {OFF, OFF, OFF, OFF, OFF, OFF, OFF, OFF};
            if (row + pair >= 0 && row + pair < rows) {
                const int from = ((picture * OUT + chunk * CHUNK) * rows + row + pair) * columns + lane;
#pragma unroll
                for (int i = 0; i < CHUNK; ++i) {
                    slope[i] = gradient[from + i * rows * columns];
                    code[i] = codes[from + i * rows * columns];
                }
            }
            store_slopes(first + (chunk * SLAB + 2 * pair * NARROW + 2 * lane) * 16, slope, code);
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) totals[turn][i] += code[i] < OFF ? from_bf16(slope[i]) : 0;
        }
}

// The largest of four with its code; NaN is larger than any number, and of several the last one is the largest.
__device__ float largest(const float (&value)[4], int& code) {
    float best = value[0];
    code = 0;
#pragma unroll
    for (int number = 1; number < 4; ++number)
        if (value[number] > best || value[number] != value[number]) best = value[number], code = number;
    return best;
}

// Sums of 64 channels by 128 places, two rows: each thread has all four places that are pooled into one.
__device__ void store_pooled(const float (&sums)[64], const float* bias, u16* pooled, u8* codes, int picture, int row,
                             int height, int width) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, columns = width / 2, places = height / 2 * columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int channel = 16 * warp + lane / 4 + 8 * half;
        const float offset = bias[channel];
        const int to = (picture * OUT + channel) * places + row * columns;
#pragma unroll
        for (int block = 0; block < WIDE / 8; ++block) {
            const int above = 4 * block + 2 * half, below = above + WIDE / 2, column = 4 * block + lane % 4;
            const float four[4] = {sums[above], sums[above + 1], sums[below], sums[below + 1]};
            int code;
            float best = largest(four, code) + offset;
            if (best <= 0) best = 0, code = OFF;
            if (column < columns) {
                pooled[to + column] = to_bf16(best);
                codes[to + column] = static_cast<u8>(code);
            }
        }
    }
}

// Pixels `(count, height, width, 32)` bf16 to pooled features `(count, 64, height/2 · width/2)` bf16 and their codes.
extern "C" __global__ void __launch_bounds__(256, 1)
second_layer_forward(const u16* pixels, const u16* weight, const float* bias, u16* pooled, u8* codes, int count,
                     int height, int width) {
    constexpr int ROWS = 8;
    // The windows of the last row end a few pixels beyond it.
    constexpr int SLAB = (ROWS + 4) * WIDE + 8, SLAB_BYTES = IN / CHUNK * SLAB * 16;
    SHARED(memory);
    u8* slabs = memory + WEIGHT_BYTES;
    const int group = warp_group(), jobs = jobs_of<ROWS>(count, height);
    const auto bring = [&](int number, int turn) {
        if (number < jobs)
            copy_pixels<ROWS, WIDE, SLAB>(slabs + turn * SLAB_BYTES, pixels, job_at<ROWS>(number, count, height), height,
                                          width, threadIdx.x, blockDim.x);
    };
    clear(slabs, 2 * SLAB_BYTES);
    __syncthreads();
    copy_weights(memory, weight);
    bring(blockIdx.x, 0);
    publish();
    __syncthreads();
    const u64 weights = describe(memory, 128, OUT * 16);
    int turn = 0;
    for (int number = blockIdx.x; number < jobs; number += gridDim.x, turn ^= 1) {
        bring(number + gridDim.x, turn ^ 1);
        const Job job = job_at<ROWS>(number, count, height);
        const u64 slab = describe(slabs + turn * SLAB_BYTES, 128, SLAB * 16);
        for (int pair = group; pair < job.rows / 2; pair += 2) {
            float sums[64];
            set_zero(sums);
            products_begin();
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    multiply_64_128(sums, weights + tap * (TAP_BYTES / 16) + half * 2 * OUT,
                                    slab + (2 * pair + tap / 5) * WIDE + tap % 5 + half * 2 * SLAB);
            products_end();
            store_pooled(sums, bias, pooled, codes, job.picture, job.row / 2 + pair, height, width);
        }
        publish();
        __syncthreads();
    }
}

// The gradients of `LIVE` rows of pixels, of which `slab` has the slopes around the first. What goes back is a convolution
// with the taps in reverse order.
template <int LIVE, int SLAB>
__device__ void pixel_gradients(u64 weights, u64 slab, u16* result, int width) {
    float sums[LIVE][16];
#pragma unroll
    for (int i = 0; i < LIVE; ++i) set_zero(sums[i]);
    products_begin();
#pragma unroll 1
    for (int above = 0; above < 5; ++above)
#pragma unroll
        for (int left = 0; left < 5; ++left)
#pragma unroll
            for (int quarter = 0; quarter < 4; ++quarter)
#pragma unroll
                for (int i = 0; i < LIVE; ++i)
                    multiply_64_32<0, 1>(sums[i], slab + (i + above) * NARROW + left + quarter * 2 * SLAB,
                                         weights + (24 - 5 * above - left) * (TAP_BYTES / 16) + quarter * 16);
    products_end();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int i = 0; i < LIVE; ++i)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int column = 16 * warp + lane / 4 + 8 * half;
            if (column >= width) continue;
            u32* to = reinterpret_cast<u32*>(result + (i * width + column) * IN) + lane % 4;
#pragma unroll
            for (int block = 0; block < IN / 8; ++block) {
                const int at = 4 * block + 2 * half;
                to[4 * block] = to_bf16(sums[i][at]) | static_cast<u32>(to_bf16(sums[i][at + 1])) << 16;
            }
        }
}

// The gradient of the pixels, `(count, height, width, 32)` bf16, from that of the pooled features and their codes.
extern "C" __global__ void __launch_bounds__(384, 1)
second_layer_by_pixels(const u16* gradient, const u8* codes, const u16* weight, u16* result, int count, int height,
                       int width) {
    constexpr int ROWS = 4, FILLER = 2;
    // The windows of the last row end in the next chunk: what they see there is beyond the width.
    constexpr int SLAB = (ROWS + 4) * NARROW, SLAB_BYTES = OUT / CHUNK * SLAB * 16;
    SHARED(memory);
    u8* slabs = memory + WEIGHT_BYTES;
    const int group = warp_group(), jobs = jobs_of<ROWS>(count, height);
    float unused[2][CHUNK] = {};
    const auto bring = [&](int number, int turn) {
        if (number >= jobs) return;
        const Job job = job_at<ROWS>(number, count, height);
        unfold<ROWS / 2 + 2, SLAB>(slabs + turn * SLAB_BYTES + 2 * 16, gradient, codes, job.picture, job.row / 2 - 1, height,
                                   width, unused);
    };
    clear(slabs, 2 * SLAB_BYTES);
    copy_weights(memory, weight);
    __syncthreads();
    if (group == FILLER) bring(blockIdx.x, 0);
    publish();
    __syncthreads();
    const u64 weights = describe(memory, OUT * 16, 128);
    int turn = 0;
    for (int number = blockIdx.x; number < jobs; number += gridDim.x, turn ^= 1) {
        const Job job = job_at<ROWS>(number, count, height);
        const int live = job.rows / 2, row = group * live;
        const u64 slab = describe(slabs + turn * SLAB_BYTES, 128, SLAB * 16) + row * NARROW;
        u16* to = result + (job.picture * height + job.row + row) * width * IN;
        if (group == FILLER)
            bring(number + gridDim.x, turn ^ 1);
        else if (live == 2)
            pixel_gradients<2, SLAB>(weights, slab, to, width);
        else
            pixel_gradients<1, SLAB>(weights, slab, to, width);
        publish();
        __syncthreads();
    }
}

// The gradients of `COUNT` taps from `first` on, output by input channels, by the rows of one job.
template <int COUNT, int MOST>
__device__ void add_taps(float (&sums)[MOST][16], u64 slopes, u64 slab, int first, int rows) {
    products_begin();
#pragma unroll 1
    for (int place = 0; place < rows * NARROW; place += 16)
#pragma unroll
        for (int i = 0; i < COUNT; ++i)
            multiply_64_32<1, 1>(sums[i], slopes + place, slab + place + (first + i) / 5 * NARROW + (first + i) % 5);
    products_end();
}

// Parts of the gradients of weight, (tap, output channel, input channel), and bias, float32. Two neighbouring blocks of
// threads share a part: the first has 13 taps and the bias, the second 12 taps.
extern "C" __global__ void __launch_bounds__(384, 1)
second_layer_by_weight(const u16* pixels, const u16* gradient, const u8* codes, float* parts, float* bias_parts, int count,
                       int height, int width) {
    constexpr int ROWS = 8, FILLER = 2, MOST = 7;
    constexpr int SLAB = (ROWS + 4) * NARROW + 8, SLAB_BYTES = IN / CHUNK * SLAB * 16;
    constexpr int FLAT = ROWS * NARROW, FLAT_BYTES = OUT / CHUNK * FLAT * 16;
    SHARED(memory);
    const int group = warp_group(), jobs = jobs_of<ROWS>(count, height), lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int second = blockIdx.x % 2, part = blockIdx.x / 2, step = gridDim.x / 2;
    // 7 and 6 taps, then 6 and 6.
    const int first = second * 13 + group * (7 - second), live = second + group > 0 ? 6 : 7;
    float sums[MOST][16], totals[2][CHUNK] = {};
#pragma unroll
    for (int i = 0; i < MOST; ++i) set_zero(sums[i]);
    const auto bring = [&](int number, int turn) {
        if (number >= jobs) return;
        const Job job = job_at<ROWS>(number, count, height);
        u8* to = memory + turn * (SLAB_BYTES + FLAT_BYTES);
        copy_pixels<ROWS, NARROW, SLAB>(to, pixels, job, height, width, threadIdx.x % 128, 128);
        unfold<ROWS / 2, FLAT>(to + SLAB_BYTES, gradient, codes, job.picture, job.row / 2, height, width, totals);
    };
    clear(memory, 2 * (SLAB_BYTES + FLAT_BYTES));
    __syncthreads();
    if (group == FILLER) bring(part, 0);
    publish();
    __syncthreads();
    int turn = 0;
    for (int number = part; number < jobs; number += step, turn ^= 1) {
        const Job job = job_at<ROWS>(number, count, height);
        u8* at = memory + turn * (SLAB_BYTES + FLAT_BYTES);
        const u64 slab = describe(at, SLAB * 16, 128), slopes = describe(at + SLAB_BYTES, FLAT * 16, 128);
        if (group == FILLER)
            bring(number + step, turn ^ 1);
        else if (live == MOST)
            add_taps<MOST>(sums, slopes, slab, first, job.rows);
        else
            add_taps<MOST - 1>(sums, slopes, slab, first, job.rows);
        publish();
        __syncthreads();
    }
    if (group != FILLER) {
#pragma unroll
        for (int tap = 0; tap < MOST; ++tap)
            if (tap < live)
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    const int channel = 16 * warp + lane / 4 + 8 * (i / 2 % 2), input = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
                    parts[((part * TAPS + first + tap) * OUT + channel) * IN + input] = sums[tap][i];
                }
    } else if (!second) {
#pragma unroll
        for (int turn = 0; turn < 2; ++turn)
#pragma unroll
            for (int i = 0; i < CHUNK; ++i) {
                float total = totals[turn][i];
                for (int apart = 16; apart > 0; apart /= 2) total += shuffle_down(total, apart);
                if (lane == 0) bias_parts[part * OUT + (warp + 4 * turn) * CHUNK + i] = total;
            }
    }
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
