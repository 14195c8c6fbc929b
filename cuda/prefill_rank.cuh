// The context is ranked a layer ahead of the ring by warps that do nothing else. Included by prefill.cu.
//
// Shapes: see ranked.cuh. A block ranks the splits that it attends, so that only the block itself waits for them.
// Bound by: nothing of its own: a block moves 32 KB a layer of 1.5b, and the warps that compute need longer.
// Others write the pass's own keys and values over ranks from n_context on. They do so in a layer after all blocks
// have met, and a block comes to that meeting with its splits of the layer ranked.
#pragma once

// What the rankers have of shared memory.
struct RankerShared {
    alignas(16) PieceRows rows[max_of(RANKERS, 1)];
    int slots[max_of(RANKERS, 1)][KV_UNITS][CHUNK];
    volatile int n_layers[max_of(RANKERS, 1)];   // ranked by each of them, from layer 0 on

    // Whether all rankers have come past a layer.
    __device__ __forceinline__ bool have(int layer) const {
        bool is_there = true;
#pragma unroll
        for (int i = 0; i < RANKERS; i++) is_there &= n_layers[i] > layer;
        return is_there;
    }
    __device__ __forceinline__ void wait(int layer) const {
        Watchdog dog;
        while (!have(layer)) dog.spin();
    }
};

// By one warp of several, `which` of them. A pass that is stopped leaves layers as they were.
struct Ranker {
    const Arguments& p;
    RankerShared& shared;
    const volatile int &open_layer, &stop;
    int which, n_context;

    __device__ __forceinline__ bool has_moved(int unit) const {
        bool result = false;
        for (int r = threadIdx.x % 32; r < CHUNK; r += 32) {
            const int rank = unit / KV_HEADS * CHUNK + r, slot = slot_of_rank(p, rank, n_context);
            shared.slots[which][unit / GRID][r] = slot;
            result |= is_moved(p, rank, slot);
        }
        return __any_sync(~0u, result);
    }

    __device__ __forceinline__ void run() const {
        u32 moved = 0;   // units of the block, a bit each
        for (int unit = blockIdx.x; unit < CHUNKS * KV_HEADS; unit += GRID) moved |= u32(has_moved(unit)) << unit / GRID;
        __syncwarp();
#pragma unroll 1
        for (int layer = 0; layer < LAYERS && moved; layer++) {
            // A little ahead is enough, and does not take the bandwidth of the first layers.
            while (__any_sync(~0u, open_layer + LAYERS_AHEAD < layer)) {
                if (__any_sync(~0u, stop)) return;
                __nanosleep(500);   // warps that compute have the issue slots
            }
#pragma unroll 1
            for (int unit = blockIdx.x; unit < CHUNKS * KV_HEADS; unit += GRID) {
                if (!(moved >> unit / GRID & 1)) continue;
#pragma unroll 1
                for (int piece = which; piece < SPLIT_PIECES; piece += RANKERS) {
                    rank_piece(p, shared.rows[which], shared.slots[which][unit / GRID], layer, unit / KV_HEADS, unit % KV_HEADS, piece);
                }
            }
            publish(layer + 1);
        }
        if (!moved) publish(LAYERS);
    }

    __device__ __forceinline__ void publish(int n_layers) const {
        __threadfence();
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.global;" ::: "memory");   // the ring reads it by bulk copies
#endif
        __syncwarp();
        if (threadIdx.x % 32 == 0) shared.n_layers[which] = n_layers;
    }
};
static_assert(KV_UNITS <= 32, "a bit a unit");
