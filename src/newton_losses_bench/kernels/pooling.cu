// What the kernels of both layers need around their products: 2×2 pooling with its way back, and shared memory.
//
// Which of the four pooled places was the largest is its code: bit 0 to 3 in reading order, none where the ReLU is off.
// Channels go in chunks of eight, 16 bytes in bf16, with their codes in one word, those of the first in its lowest bits.

constexpr int CHUNK = 8;
constexpr int OFF = 0;

// Zeros for so many times 16 bytes.
__device__ void clear(u8* begin, int places) {
    for (int i = threadIdx.x; i < places; i += blockDim.x) reinterpret_cast<uint4*>(begin)[i] = uint4{0, 0, 0, 0};
}

// The largest of four with its code; NaN is larger than any number, and of several the last one is the largest.
__device__ float largest(const float (&value)[4], int& code) {
    float best = value[0];
    code = 1;
#pragma unroll
    for (int number = 1; number < 4; ++number)
        if (value[number] > best || value[number] != value[number]) best = value[number], code = 1 << number;
    return best;
}

// A value that was the largest, with its bias, and its code: the ReLU is off at 0 and below, where NaN is not.
__device__ float rectified(float best, int& code) {
    if (best <= 0) code = OFF;
    return best <= 0 ? 0 : best;
}

// What goes back to eight channels of a pooled place: two slopes a word, and all their codes.
struct Slopes {
    u32 slope[CHUNK / 2], code;
};

// All bits of the slopes of two channels, those of word `i`, where the codes have bit `number`.
__device__ u32 mask_of(u32 code, int number, int i) { return two_signs(code << (7 - number), code << (3 - number), i); }

// Unfold them: each slope to the one of four places that was the largest, zeros to the others. Places one above the other are
// `DOWN` times 16 bytes apart, places beside each other `RIGHT` times. With `swap`, 0 or 1, right places are written first.
template <int DOWN, int RIGHT> __device__ void store_slopes(u8* first, const Slopes& found, int swap = 0) {
#pragma unroll
    for (int turn = 0; turn < 4; ++turn) {
        const int right = turn % 2 ^ swap, number = turn / 2 * 2 + right;
        u32 word[CHUNK / 2];
#pragma unroll
        for (int i = 0; i < CHUNK / 2; ++i) word[i] = found.slope[i] & mask_of(found.code, number, i);
        u8* to = first + (turn / 2 * DOWN + right * RIGHT) * 16;
        *reinterpret_cast<uint4*>(to) = uint4{word[0], word[1], word[2], word[3]};
    }
}

// The gradient of the bias.
__device__ void add_slopes(float (&totals)[CHUNK], const Slopes& found) {
    const u32 half = found.code | found.code >> 1, any = half | half >> 2;
#pragma unroll
    for (int i = 0; i < CHUNK / 2; ++i) {
        const u32 both = found.slope[i] & mask_of(any, 0, i);
        totals[2 * i] += bits_float(both << 16);
        totals[2 * i + 1] += bits_float(both & 0xFFFF0000);
    }
}
