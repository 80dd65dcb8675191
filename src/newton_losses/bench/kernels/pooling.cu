// What the kernels of both layers need around their products: 2×2 pooling with its way back, and shared memory.
//
// Which of the four pooled places was the largest is its code, 0 to 3 in reading order, 4 where the ReLU is off. Channels
// go in chunks of eight, 16 bytes in bf16.

constexpr int CHUNK = 8;
constexpr int OFF = 4;

// Zeros for so many times 16 bytes.
__device__ void clear(u8* begin, int places) {
    for (int i = threadIdx.x; i < places; i += blockDim.x) reinterpret_cast<uint4*>(begin)[i] = uint4{0, 0, 0, 0};
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

// A value that was the largest, with its bias, and its code: the ReLU is off at 0 and below, where NaN is not.
__device__ float rectified(float best, int& code) {
    if (best <= 0) code = OFF;
    return best <= 0 ? 0 : best;
}

// What goes back to eight channels of a pooled place.
struct Slopes {
    u16 slope[CHUNK];
    u8 code[CHUNK];
};

__device__ Slopes no_slopes() {
    Slopes none;
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) none.slope[i] = 0, none.code[i] = OFF;
    return none;
}

// Unfold them: each slope to the one of four places that was the largest, zeros to the others. Places one above the other are
// `DOWN` times 16 bytes apart, places beside each other `RIGHT` times.
template <int DOWN, int RIGHT> __device__ void store_slopes(u8* first, const Slopes& found) {
#pragma unroll
    for (int number = 0; number < 4; ++number) {
        u32 word[CHUNK / 2];
#pragma unroll
        for (int i = 0; i < CHUNK / 2; ++i) {
            const u32 low = found.code[2 * i] == number ? found.slope[2 * i] : 0;
            const u32 high = found.code[2 * i + 1] == number ? found.slope[2 * i + 1] : 0;
            word[i] = low | high << 16;
        }
        u8* to = first + (number / 2 * DOWN + number % 2 * RIGHT) * 16;
        *reinterpret_cast<uint4*>(to) = uint4{word[0], word[1], word[2], word[3]};
    }
}

// The gradient of the bias.
__device__ void add_slopes(float (&totals)[CHUNK], const Slopes& found) {
#pragma unroll
    for (int i = 0; i < CHUNK; ++i) totals[i] += found.code[i] < OFF ? from_bf16(found.slope[i]) : 0;
}
