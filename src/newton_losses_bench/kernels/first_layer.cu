// The first layer of DigitCNN: a padded 5×5 convolution of bytes into 32 channels, bias, ReLU and 2×2 pooling, forward and
// the gradients of weight and bias, on the tensor cores of a Hopper GPU. The instructions are in hopper.cu, what both layers
// need in pooling.cu.
//
// A pooled place sees a patch of 6×6 pixels. Its rows, 8 pixels each of which the last two meet zero weights, are what the
// products run over: every row of the picture lies in shared memory once for every second pixel (its strips), and the six
// strips of a patch are equally far apart. One product has the four pooled places of 32 channels as its 128 columns.
//
// Pixels count from 0 to 255 in there, which bf16 holds exactly; sums are divided by 255.

constexpr int FIRST = 32, SIDE = 6, FIRST_CHUNKS = FIRST / CHUNK, FIRST_TAPS = 25;
constexpr int PATCH = SIDE * CHUNK, FOUR = 4 * FIRST;
// Strips of a row: 64 places, and one more for the banks.
constexpr int STRIPS = 65;
constexpr int FIRST_WEIGHT_BYTES = SIDE * FOUR * 16;
constexpr int SLOPES_APART = 65, SLOPES_PLACES = 4 * FIRST_CHUNKS * SLOPES_APART;
constexpr float SCALE = 1.0f / 255.0f;

// Two pixels as two bf16: a whole number below 256 is the upper half of its float. A byte in the last bits of 2^23 is added to
// it, which takes fewer instructions than to convert it.
__device__ u32 two_pixels(u32 bytes) {
    constexpr float BEFORE = 8388608.0f;
    const u32 low = float_bits(bits_float(0x4B000000 | (bytes & 255)) - BEFORE);
    const u32 high = float_bits(bits_float(0x4B000000 | bytes >> 8) - BEFORE);
    return low >> 16 | high;
}

// The strips of so many rows of a picture from `first` on, with their margins. A thread has every second row of a place, and
// asks for four of them at once.
__device__ void copy_strips(u8* strips, const u8* picture, int first, int rows, int height, int width) {
    const int place = threadIdx.x % 64;
    for (int begin = threadIdx.x / 64; begin < rows + 4; begin += 8) {
        u16 bytes[4][4];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int row = first + begin + 2 * (i / 4) - 2, column = 2 * (place + i % 4) - 2;
            const bool inside = row >= 0 && row < height && column >= 0 && column < width;
            bytes[i / 4][i % 4] = inside ? *reinterpret_cast<const u16*>(picture + row * width + column) : 0;
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (begin + 2 * i >= rows + 4) break;
            u32 word[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) word[k] = two_pixels(bytes[i][k]);
            const int to = (begin + 2 * i) * STRIPS + place;
            reinterpret_cast<uint4*>(strips)[to] = uint4{word[0], word[1], word[2], word[3]};
        }
    }
}

// The channel of a column of 32. A thread has the sums of every fourth pair of columns, which are eight channels in a row.
__device__ int channel_of(int column) { return column / 2 % 4 * CHUNK + column / 8 * 2 + column % 2; }

// The weights at their places in the patch, `(row of the patch, pooled place and channel, pixel)`.
__device__ void place_weights(u8* to, const float* weight) {
    for (int i = threadIdx.x; i < SIDE * FOUR; i += blockDim.x) {
        const int y = i / FOUR - i / (2 * FIRST) % 2, channel = channel_of(i % FIRST), right = i / FIRST % 2;
        u16 value[CHUNK];
#pragma unroll
        for (int k = 0; k < CHUNK; ++k) {
            const int x = k - right;
            const bool inside = y >= 0 && y < 5 && x >= 0 && x < 5;
            value[k] = inside ? to_bf16(weight[channel * FIRST_TAPS + y * 5 + x]) : static_cast<u16>(0);
        }
        u32 word[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) word[k] = value[2 * k] | static_cast<u32>(value[2 * k + 1]) << 16;
        reinterpret_cast<uint4*>(to)[i] = uint4{word[0], word[1], word[2], word[3]};
    }
}

// The largest of four sums as a feature, but for its ReLU. Its code, times `unit`, is added to `codes`, a whole number. Of NaN
// and a number the larger is NaN, and if there is one its code is that of the last place.
//
// A comparison is 0 or 1 here and a code their sum: sums run beside comparisons, of which the GPU does half as many a cycle.
__device__ float pool_sums(const float (&value)[4], float offset, float unit, float& codes) {
    const float two = larger(value[0], value[1]), three = larger(two, value[2]), best = larger(three, value[3]);
    const float sum = best * SCALE + offset;
    // Not the first, nor the second, nor the third: the code is doubled each time.
    float code = unit + unit * is_larger(best, value[0]);
    code += 2 * unit * is_larger(best, two);
    code += 4 * unit * is_larger(best, three);
    codes += code * is_larger(sum, 0);
    return sum;
}

// The features and codes of eight channels of a pooled place, of the first eight rows of a warp's sums or of its second.
__device__ void pool_chunk(u32 (&features)[CHUNK / 2], u32& code, const float (&sums)[64], int half,
                           const float (&offset)[CHUNK]) {
    // The last bits of a float that is 2^23 and a whole number are the whole number.
    float codes[2] = {8388608.0f, 8388608.0f}, sum[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) {
        const int at = i / 2 * 4 + 2 * half + i % 2;
        const float four[4] = {sums[at], sums[at + 16], sums[at + 32], sums[at + 48]};
        sum[i] = pool_sums(four, offset[i], static_cast<float>(1 << 4 * (i % 4)), codes[i / 4]);
    }
#pragma unroll
    for (int i = 0; i < CHUNK / 2; ++i) features[i] = to_two_bf16_with_relu(sum[2 * i], sum[2 * i + 1]);
    code = pick_bytes(float_bits(codes[0]), float_bits(codes[1]), 0x5410);
}

// Pictures `(count, height, width)` of bytes to pooled features `(count, height/2, width/2, 32)` bf16 and their codes.
extern "C" __global__ void __launch_bounds__(128, 4)
first_layer_forward(const u8* pictures, const float* weight, const float* bias, u16* pooled, u32* codes, int count,
                    int height, int width) {
    SHARED(memory);
    u8* strips = memory + FIRST_WEIGHT_BYTES;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = width / 2;
    float offset[CHUNK];
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) offset[i] = bias[lane % 4 * CHUNK + i];
    // By way of shared memory, so that all come at once.
    float* staged = reinterpret_cast<float*>(strips);
#pragma unroll
    for (int turn = 0; turn < 7; ++turn) {
        const int i = 128 * turn + threadIdx.x;
        if (i < FIRST * FIRST_TAPS) staged[i] = weight[i];
    }
    __syncthreads();
    place_weights(memory, staged);
    const u64 weights = describe(memory, 128, FOUR * 16), windows = describe(strips, 128, STRIPS * 16);
    for (int number = blockIdx.x; number < count; number += gridDim.x) {
        __syncthreads();
        copy_strips(strips, pictures + number * height * width, 0, height, height, width);
        publish();
        __syncthreads();
        for (int row = 0; row < height / 2; ++row) {
            float sums[64];
            set_zero(sums);
            products_begin();
#pragma unroll
            for (int strip = 0; strip < SIDE; strip += 2)
                multiply_64_128<0, 0>(sums, windows + (2 * row + strip) * STRIPS, weights + strip * FOUR);
            products_go();
            products_end();
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int column = 16 * warp + lane / 4 + 8 * half;
                if (column >= columns) continue;
                const int to = ((number * (height / 2) + row) * columns + column) * FIRST_CHUNKS + lane % 4;
                u32 word[CHUNK / 2];
                pool_chunk(word, codes[to], sums, half, offset);
                reinterpret_cast<uint4*>(pooled)[to] = uint4{word[0], word[1], word[2], word[3]};
            }
        }
    }
}

// The slopes of two pooled places of a row and eight of their channels.
struct TwoPlaces {
    Slopes found[2];
};

// Eight places, then four chunks: a warp reads 512 bytes in a row.
__device__ int chunk_of_thread() { return threadIdx.x / 8 % 4; }

__device__ int place_of_thread(int turn) { return 32 * turn + threadIdx.x / 32 * 8 + threadIdx.x % 8; }

__device__ TwoPlaces load_row(const u16* gradient, const u32* codes, int columns) {
    TwoPlaces two = {};
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        const int place = place_of_thread(turn), from = place * FIRST_CHUNKS + chunk_of_thread();
        if (place >= columns) continue;
        load_16(two.found[turn].slope, gradient + from * CHUNK);
        two.found[turn].code = codes[from];
    }
    return two;
}

// Unfolded: `(pooled place of four and chunk, place)`.
__device__ void store_row(u8* to, const TwoPlaces& two, int columns, float (&totals)[CHUNK]) {
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        const int place = place_of_thread(turn);
        if (place >= columns) continue;
        store_slopes<2 * FIRST_CHUNKS * SLOPES_APART, FIRST_CHUNKS * SLOPES_APART>(
            to + (chunk_of_thread() * SLOPES_APART + place) * 16, two.found[turn]);
        add_slopes(totals, two.found[turn]);
    }
}

// Parts of the gradients of weight `(32, 25)`, times 255, and bias `(32,)`, 832 numbers a block of threads.
//
// A job is the upper or the lower half of a picture. While a row is multiplied, the next one is unfolded, and the one behind
// it on its way from memory.
extern "C" __global__ void __launch_bounds__(128, 4)
first_layer_backward(const u8* pictures, const u16* gradient, const u32* codes, float* parts, int count, int height,
                     int width) {
    SHARED(memory);
    u8* strips = memory + 2 * SLOPES_PLACES * 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = width / 2, rows = height / 4;
    float sums[2][24], totals[CHUNK] = {};
    set_zero(sums[0]);
    set_zero(sums[1]);
    clear(memory, 2 * SLOPES_PLACES);
    for (int number = blockIdx.x; number < 2 * count; number += gridDim.x) {
        const int first = number * rows, last = first + rows - 1;
        const auto load = [&](int row) {
            const int from = min(row, last) * columns * FIRST_CHUNKS;
            return load_row(gradient + from * CHUNK, codes + from, columns);
        };
        TwoPlaces next = load(first);
        __syncthreads();
        copy_strips(strips, pictures + number / 2 * height * width, number % 2 * 2 * rows, 2 * rows, height, width);
        store_row(memory, next, columns, totals);
        publish();
        next = load(first + 1);
        __syncthreads();
        for (int row = 0; row < rows; ++row) {
            const u64 slope = describe(memory + row % 2 * SLOPES_PLACES * 16, SLOPES_APART * 16, 128);
            const u64 window = describe(strips, STRIPS * 16, 128) + 2 * row * STRIPS;
            products_begin();
#pragma unroll
            for (int quarter = 0; quarter < 4; ++quarter)
#pragma unroll
                for (int half = 0; half < 2; ++half)
                    multiply_64_48<1, 1>(sums[half], slope + half * 8 * SLOPES_APART + quarter * 16, window + quarter * 16);
            products_go();
            if (row + 1 < rows) store_row(memory + (row + 1) % 2 * SLOPES_PLACES * 16, next, columns, totals);
            products_end();
            publish();
            // Not before: it would wait for what is on its way.
            next = load(first + row + 2);
            __syncthreads();
        }
    }
    // All four pooled places of a channel saw the same weights, each from where it lies.
    float* patches = reinterpret_cast<float*>(memory);
    float* biases = patches + FOUR * PATCH;
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int i = 0; i < 24; ++i) {
            const int channel = 64 * half + 16 * warp + lane / 4 + 8 * (i / 2 % 2), pixel = 8 * (i / 4) + lane % 4 * 2 + i % 2;
            patches[channel * PATCH + pixel] = sums[half][i];
        }
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) biases[(warp * 8 + threadIdx.x % 8) * FIRST + threadIdx.x / 8 % 4 * CHUNK + i] = totals[i];
    __syncthreads();
    float* part = parts + blockIdx.x * FIRST * (FIRST_TAPS + 1);
    for (int i = threadIdx.x; i < FIRST * FIRST_TAPS; i += blockDim.x) {
        const int channel = i / FIRST_TAPS, y = i % FIRST_TAPS / 5, x = i % 5;
        float sum = 0;
#pragma unroll
        for (int four = 0; four < 4; ++four)
            sum += patches[(four * FIRST + channel) * PATCH + (y + four / 2) * CHUNK + x + four % 2];
        part[i] = sum;
    }
    if (threadIdx.x < FIRST) {
        float sum = 0;
        for (int i = 0; i < 32; ++i) sum += biases[i * FIRST + threadIdx.x];
        part[FIRST * FIRST_TAPS + threadIdx.x] = sum;
    }
}

// The sums over the parts, one after another as they come: weight, then bias. Eight threads share a sum. That of the weight is
// divided by 255 here, once: if the parts were, each would be rounded, and the errors left where parts cancel.
extern "C" __global__ void __launch_bounds__(256)
first_layer_sum(const float* parts, float* result, int number) {
    constexpr int SIZE = FIRST * (FIRST_TAPS + 1);
    SHARED(memory);
    float* shares = reinterpret_cast<float*>(memory);
    const int i = blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0;
#pragma unroll 8
    for (int part = threadIdx.x / 32; part < number; part += 8) sum += parts[part * SIZE + i];
    shares[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    for (int share = 1; share < 8; ++share) sum += shares[share * 32 + threadIdx.x];
    result[i] = i < FIRST * FIRST_TAPS ? sum * SCALE : sum;
}
