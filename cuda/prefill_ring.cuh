// Prefill's order of reading, its shared memory, and its weight ring, fed by a ninth warp or by the first one.
// Included by prefill.cu.
#pragma once

// The last layer ends with its keys and values, unless its output is to be checked.
__device__ __forceinline__ int full_layers(const Arguments& p) { return IS_TRACED && p.prefill_trace ? LAYERS : LAYERS - 1; }

// The block's stages in the order of reading: the patch embedding, then the layers. A split that holds this block's
// own keys and values is not asked for before they are there.
struct Cursor {
    const Program<Vision>& program;
    const Arguments& p;
    const volatile int& open_layer;           // layers below have their new keys and values at their ranks
    int n_context, n_full_layers;
    int layer, next;                          // layer -1: the patch embedding

    __device__ __forceinline__ bool is_new() const {
        const int chunk = (blockIdx.x + (next - program.ranked_at) / 2 * GRID) / KV_HEADS;
        return program.stages[next].is_ranked && (chunk + 1) * CHUNK > n_context;
    }
    __device__ __forceinline__ bool is_ended() const {
        return layer >= LAYERS || (layer >= n_full_layers && next == program.ranked_at);
    }
    __device__ __forceinline__ bool is_open() const { return !is_new() || !__any_sync(~0u, open_layer <= layer); }
    __device__ __forceinline__ void take(const char*& from, u32& bytes) {
        const Stage stage = program.stages[next];
#if __CUDA_ARCH__ >= 900
        if (is_new()) asm volatile("fence.proxy.async;" ::: "memory");
#endif
        const char* base = layer < 0          ? p.vision
                           : stage.is_ranked ? p.ranked + layer * RANKED_LAYER_BYTES
                                              : p.weights + layer * LAYER_BYTES;
        from = base + stage.offset;
        bytes = stage.bytes * WARPS;
        if (++next == (layer < 0 ? program.n_all : program.n_layer)) {
            next = 0;
            layer++;
        }
    }
};

struct Shared {
    Program<Vision> program;
    u64 barriers[2 * RING_SLOTS];
    volatile int open_layer, in_flight, stop;
    int fed_layer, fed_next;    // where the first warp goes on, if no ninth one feeds the ring
    u32 n_fed;
    alignas(16) float sums[2][WARPS][16][FRAME_TOKENS];   // of the tile in hand, and of the one before
    float parts[WARPS][FRAME_TOKENS];
    float scale[FRAME_TOKENS];
};

// The ring as the computing warps see it. Where no ninth warp feeds it, the first one does whenever it waits.
struct PrefillRing : Ring {
    const Arguments& p;
    Shared& shared;
    int n_context;

    __device__ __forceinline__ void feed() const {
        if constexpr (!HAS_FEEDER) {
            if (threadIdx.x >= 32) return;
            bool has_started;
#pragma unroll 1
            do {
                const Cursor cursor{shared.program, p, shared.open_layer, n_context, full_layers(p), shared.fed_layer, shared.fed_next};
                Feeder<Cursor> feeder(*this, cursor, shared.in_flight, shared.n_fed);
                __syncwarp();
                has_started = feeder.try_next();
                if (threadIdx.x == 0) {
                    shared.fed_layer = feeder.cursor.layer;
                    shared.fed_next = feeder.cursor.next;
                    shared.n_fed = feeder.n_started;
                }
                __syncwarp();
            } while (has_started);
        }
    }
    __device__ __forceinline__ char* wait() const {
        if constexpr (!HAS_FEEDER) {
            if (threadIdx.x < 32) {
                Watchdog dog;
                do {
                    feed();
                    dog.spin();
                } while (!__all_sync(~0u, Copies::is_past_now(full(slot), parity)));
            }
        }
        return Ring::wait();
    }
    __device__ __forceinline__ char* wait_second() const {
        PrefillRing second = *this;
        second.step();
        return second.wait();
    }
    // Copies in flight must land before the block ends.
    __device__ __forceinline__ void drain() const {
        if (HAS_FEEDER || threadIdx.x >= 32) return;
        const Cursor cursor{shared.program, p, shared.open_layer, n_context, 0, 0, 0};
        Feeder<Cursor>(*this, cursor, shared.in_flight, shared.n_fed).drain();
    }
};
