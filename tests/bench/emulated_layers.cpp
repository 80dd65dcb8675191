// The kernels of both layers as functions of a library of the host, each with the number of blocks first.

#include "emulated_hopper.hpp"
#include "pooling.cu"
#include "first_layer.cu"
#include "second_layer.cu"
#include "second_layer_backward.cu"

extern "C" {

int used_by_the_last() { return used; }

void first_forward(int blocks, const u8* pictures, const float* weight, const float* bias, u16* pooled, u32* codes,
                   int count, int height, int width) {
    launch(blocks, 128, [=] { first_layer_forward(pictures, weight, bias, pooled, codes, count, height, width); });
}

void first_backward(int blocks, const u8* pictures, const u16* gradient, const u32* codes, float* parts, int count,
                    int height, int width) {
    launch(blocks, 128, [=] { first_layer_backward(pictures, gradient, codes, parts, count, height, width); });
}

void first_sum(int blocks, const float* parts, float* result, int number) {
    launch(blocks, 256, [=] { first_layer_sum(parts, result, number); });
}

void second_forward(int blocks, const u16* pixels, const u16* weight, const float* bias, u16* pooled, u32* codes,
                    int count, int height, int width) {
    launch(blocks, 256, [=] { second_layer_forward(pixels, weight, bias, pooled, codes, count, height, width); });
}

void second_by_pixels(int blocks, const u16* gradient, const u32* codes, const u16* weight, u16* result, int count,
                      int height, int width) {
    launch(blocks, 768, [=] { second_layer_by_pixels(gradient, codes, weight, result, count, height, width); });
}

void second_by_weight(int blocks, const u16* pixels, const u16* gradient, const u32* codes, float* parts,
                      float* bias_parts, int count, int height, int width) {
    launch(blocks, 512,
           [=] { second_layer_by_weight(pixels, gradient, codes, parts, bias_parts, count, height, width); });
}

void second_sum(int blocks, const float* parts, const float* bias_parts, float* weight, float* bias, int number) {
    launch(blocks, 256, [=] { second_layer_sum(parts, bias_parts, weight, bias, number); });
}
}
