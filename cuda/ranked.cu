// The context's keys and values in rank order, before a prefill that does not rank them itself: see ranked.cuh.
//
// Geometry: (CHUNKS * KV_HEADS, LAYERS) blocks x 256 threads, a split of 64 ranks each, a piece of it each warp.
// Bound by: device memory, 2 x the bytes of the splits that changed.
#include "ranked.cuh"

static_assert(SPLIT_PIECES == WARPS, "a warp takes one piece");

extern "C" __global__ void __launch_bounds__(THREADS) rank_context(const __grid_constant__ Arguments p) {
    __shared__ __align__(16) PieceRows rows[WARPS];
    __shared__ int slots[CHUNK];
    const Command* command = p.command;
    if (command->is_void) return;
    const int chunk = blockIdx.x / KV_HEADS, kv_head = blockIdx.x % KV_HEADS, layer = blockIdx.y;

    bool has_moved = false;
    if (threadIdx.x < CHUNK) {
        const int rank = chunk * CHUNK + threadIdx.x;
        slots[threadIdx.x] = slot_of_rank(p, rank, command->n_context);
        has_moved = is_moved(p, rank, slots[threadIdx.x]);
    }
    if (!__syncthreads_or(has_moved)) return;
    rank_piece(p, rows[threadIdx.x / 32], slots, layer, chunk, kv_head, threadIdx.x / 32);
}
