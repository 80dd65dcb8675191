// The step's kernel as a function of a library of the host.

#include "emulated_block.hpp"
#include "elimination.cu"
#include "block_step.cu"

static Given given;

extern "C" int run_block_step(int blocks, int backwards, const void* bytes) {
    memcpy(&given, bytes, sizeof(Given));
    return launch(blocks, THREADS, backwards, [] { block_step(given); }) ? 8 * used_doubles() : -1;
}

// That the last block has passed.
extern "C" int barriers() { return gates.back().times; }
