// The kernels of second_layer.cu as functions of a library of the host, each with the number of blocks first.

#include "emulated_hopper.hpp"
#include "second_layer.cu"

extern "C" {

void forward(int blocks, const u16* pixels, const u16* weight, const float* bias, u16* pooled, u8* codes, int count,
             int height, int width) {
    launch(blocks, 256, [=] { second_layer_forward(pixels, weight, bias, pooled, codes, count, height, width); });
}

void by_pixels(int blocks, const u16* gradient, const u8* codes, const u16* weight, u16* result, int count, int height,
               int width) {
    launch(blocks, 384, [=] { second_layer_by_pixels(gradient, codes, weight, result, count, height, width); });
}

void by_weight(int blocks, const u16* pixels, const u16* gradient, const u8* codes, float* parts, float* bias_parts,
               int count, int height, int width) {
    launch(blocks, 384,
           [=] { second_layer_by_weight(pixels, gradient, codes, parts, bias_parts, count, height, width); });
}

void sum_parts(int blocks, const float* parts, const float* bias_parts, float* weight, float* bias, int number) {
    launch(blocks, 256, [=] { second_layer_sum(parts, bias_parts, weight, bias, number); });
}
}
