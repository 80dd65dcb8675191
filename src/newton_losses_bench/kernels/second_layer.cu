// The second layer of DigitCNN: a padded 5×5 convolution of 32 into 64 channels, bias, ReLU and 2×2 pooling, on the tensor
// cores of a Hopper GPU. The instructions are in hopper.cu, what both layers need in pooling.cu, the gradients in
// second_layer_backward.cu, which builds on this.
//
// A block of threads takes jobs, a few rows of one picture each. Their pixels lie in shared memory once, channels in chunks
// of eight, with two rows and columns of zeros around them; the taps of the convolution are products with the same pixels,
// seen through a window that is moved. What lies beyond the width of a picture is computed and not used. While some groups
// of four warps multiply, the pixels of the next job are brought.

constexpr int IN = 32, OUT = 64, TAPS = 25;
constexpr int IN_CHUNKS = IN / CHUNK, OUT_CHUNKS = OUT / CHUNK;
// Places in shared memory count in 16 bytes: one pixel of one chunk, or one output channel of one chunk. Chunks are an odd
// number of places apart, so that those of one pixel are in different banks.
constexpr int WEIGHT_CHUNK = OUT + 1, TAP = IN_CHUNKS * WEIGHT_CHUNK, WEIGHTS = TAPS * TAP;
// The columns of a slab: the 56 of the widest picture, their margins, and four more to multiply by 64.
constexpr int WIDE = 64;

struct Job {
    int picture, row, rows;
};

// First all the jobs of whole size, then those that are left over: neighbours take jobs of one size.
template <int ROWS> __device__ Job job_at(int number, int count, int height) {
    const int row = number / count * ROWS;
    return {number % count, row, min(ROWS, height - row)};
}

template <int ROWS> __device__ int jobs_of(int count, int height) { return count * ((height + ROWS - 1) / ROWS); }

// Weights come as (column of the tap, row of the tap, chunk of input channels, output channel, input channel of the chunk).
__device__ void copy_weights(u8* to, const u16* weight) {
    for (int i = threadIdx.x; i < TAPS * IN_CHUNKS * OUT; i += blockDim.x)
        copy_16(to + (i / OUT * WEIGHT_CHUNK + i % OUT) * 16, weight + i * CHUNK, true);
}

// The pixels of a job with two rows and columns around them, by `THREADS` threads of which this is the `thread`-th.
template <int ROW_APART, int CHUNK_APART, int THREADS>
__device__ void copy_pixels(u8* slab, const u16* pixels, Job job, int height, int width, int thread) {
#pragma unroll
    for (int i = thread; i < WIDE * IN_CHUNKS; i += THREADS) {
        // Eight pixels, then four chunks: a warp reads 512 bytes in a row and writes four times 128.
        const int chunk = i / 8 % 4, column = i / 32 * 8 + i % 8;
        const bool between = column >= 2 && column < width + 2;
        const int first = ((job.picture * height + job.row - 2) * width + column - 2) * IN + chunk * CHUNK;
        u8* to = slab + (chunk * CHUNK_APART + column) * 16;
#pragma unroll 2
        for (int row = 0; row < job.rows + 4; ++row) {
            const bool inside = between && job.row - 2 + row >= 0 && job.row - 2 + row < height;
            copy_16(to + row * ROW_APART * 16, inside ? pixels + first + row * width * IN : pixels, inside);
        }
    }
}

// Eight lanes that are four apart have a word each, of eight times four bits: turned, so that each has the same four bits of
// all of them.
__device__ u32 turn_codes(u32 word) {
    const int lane = threadIdx.x % 32;
    word = pick_bytes(word, shuffle_xor(word, 16), lane & 16 ? 0x3276 : 0x5410);
    word = pick_bytes(word, shuffle_xor(word, 8), lane & 8 ? 0x3715 : 0x6240);
    const u32 other = shuffle_xor(word, 4);
    return lane & 4 ? (word & 0xF0F0F0F0) | (other >> 4 & 0x0F0F0F0F) : (word & 0x0F0F0F0F) | (other & 0x0F0F0F0F) << 4;
}

// Sums of 64 channels by 128 places, two rows: each thread has all four places that are pooled into one.
__device__ void store_pooled(const float (&sums)[64], const float* bias, u16* pooled, u32* codes, int picture, int row,
                             int height, int width) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, columns = width / 2, places = height / 2 * columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int channel = 16 * warp + lane / 4 + 8 * half;
        const float offset = bias[channel];
        const int to = (picture * OUT + channel) * places + row * columns;
        u32 marks = 0;
#pragma unroll
        for (int block = 0; block < WIDE / 8; ++block) {
            const int above = 4 * block + 2 * half, below = above + WIDE / 2, column = 4 * block + lane % 4;
            const float four[4] = {sums[above], sums[above + 1], sums[below], sums[below + 1]};
            int code;
            const float sum = largest(four, code) + offset, best = rectified(sum, code);
            if (column < columns) pooled[to + column] = to_bf16(best);
            marks |= static_cast<u32>(code) << 4 * block;
        }
        // A thread has one channel and eight places before, and eight channels of one place behind.
        marks = turn_codes(marks);
        if (lane < columns) codes[(picture * OUT_CHUNKS + 2 * warp + half) * places + row * columns + lane] = marks;
    }
}

// Pixels `(count, height, width, 32)` bf16 to pooled features `(count, 64, height/2 · width/2)` bf16 and their codes.
//
// Channels by the places of two rows. Two groups of warps take turns: while one pools and stores, the other multiplies.
extern "C" __global__ void __launch_bounds__(256, 1)
second_layer_forward(const u16* pixels, const u16* weight, const float* bias, u16* pooled, u32* codes, int count,
                     int height, int width) {
    // The windows of the last row end a few pixels beyond it.
    constexpr int ROWS = 8, APART = (ROWS + 4) * WIDE + 9, SLAB = IN_CHUNKS * APART;
    SHARED(memory);
    u8* slabs = memory + WEIGHTS * 16;
    const int group = warp_group(), jobs = jobs_of<ROWS>(count, height);
    const auto bring = [&](int number, int turn) {
        if (number < jobs)
            copy_pixels<WIDE, APART, 256>(slabs + turn * SLAB * 16, pixels, job_at<ROWS>(number, count, height), height, width,
                                          threadIdx.x);
    };
    const auto next_is_here = [] {
        publish();
        __syncthreads();
    };
    clear(slabs, 2 * SLAB);
    __syncthreads();
    copy_weights(memory, weight);
    bring(blockIdx.x, 0);
    next_is_here();
    const u64 weights = describe(memory, 128, WEIGHT_CHUNK * 16);
    int turn = 0, first = 0;
    if (group == 1) pass_turn(1);
    for (int number = blockIdx.x; number < jobs; number += gridDim.x, turn ^= 1) {
        const Job job = job_at<ROWS>(number, count, height);
        const u64 slab = describe(slabs + turn * SLAB * 16, 128, APART * 16);
        const int pairs = job.rows / 2, begin = group ^ first;
        for (int pair = begin; pair < pairs; pair += 2) {
            float sums[64];
            set_zero(sums);
            wait_for_turn(1 + group);
            products_begin();
#pragma unroll
            for (int tap = 0; tap < TAPS; ++tap)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    multiply_64_128<0, 0>(sums, weights + tap * TAP + half * 2 * WEIGHT_CHUNK,
                                          slab + (2 * pair + tap % 5) * WIDE + tap / 5 + half * 2 * APART);
            products_go();
            pass_turn(2 - group);
            if (pair == begin) bring(number + gridDim.x, turn ^ 1);
            products_end();
            // Who has the last pair stores it while the other begins with the next job.
            if (pair + 1 == pairs) next_is_here();
            store_pooled(sums, bias, pooled, codes, job.picture, job.row / 2 + pair, height, width);
            if (pair + 2 == pairs) next_is_here();
        }
        if (begin >= pairs) {
            bring(number + gridDim.x, turn ^ 1);
            next_is_here();
        }
        first ^= pairs % 2;
    }
}
