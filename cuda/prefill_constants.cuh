// What a block's rows are added to, multiplied and turned by: asked for a phase ahead, since a load after a meeting of
// all blocks would wait for L2. Included by prefill.cu.
#pragma once

struct Constants {
    float2 bias[Qkv::BLOCK_PAIRS];                   // of the pair's two rows
    float2 middle[Output::BLOCK_PAIRS];              // norm weights of the pair before the MLP
    float2 after[Output::BLOCK_PAIRS];               // and before the next layer
    float2 turn[FRAME_TOKENS][Qkv::BLOCK_PAIRS];     // cosine and sine of the pair at the token's rank; (1, 0) for values
    int slots[FRAME_TOKENS];
    u32 must_stop;                                   // whether block 0 has stopped the pass

    // 4 or 8 bytes. Not by the first warp: where it feeds the ring, `wait` would wait for that too.
    template <int BYTES>
    static __device__ __forceinline__ void copy(void* to, const void* from) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(u32(__cvta_generic_to_shared(to))), "l"(from), "n"(BYTES) : "memory");
    }
    // Before the block meets.
    static __device__ __forceinline__ void wait() {
        if (threadIdx.x >= 32) asm volatile("cp.async.wait_all;" ::: "memory");
    }

    __device__ __forceinline__ void ask_norm(const Arguments& p, int row, float2* to) {
        const Place me;
        const int i = me.thread - 32, pair = blockIdx.x * Output::BLOCK_PAIRS + i;
        if (i >= 0 && i < Output::BLOCK_PAIRS && pair < Output::PAIRS) copy<8>(to + i, p.norms + row * HIDDEN + 2 * pair);
    }
    // For a layer's QKV and output projections.
    __device__ __forceinline__ void ask_layer(const Arguments& p, int layer) {
        if (layer >= LAYERS) return;
        const Place me;
        const int i = me.thread - 32, pair = blockIdx.x * Qkv::BLOCK_PAIRS + i;
        if (i >= 0 && i < Qkv::BLOCK_PAIRS && pair < Qkv::PAIRS) {
            const float* from = p.qkv_bias + layer * QKV_ROWS + pair / HALF_DIM * HEAD_DIM + pair % HALF_DIM;
            copy<4>(&bias[i].x, from);
            copy<4>(&bias[i].y, from + HALF_DIM);
        }
        ask_norm(p, 2 * layer + 1, middle);
    }
    // Of the whole pass.
    __device__ __forceinline__ void ask_pass(const Arguments& p, int n_context) {
        const Place me;
#pragma unroll 1
        for (int at = me.thread - 32; at >= 0 && at < FRAME_TOKENS * Qkv::BLOCK_PAIRS; at += THREADS - 32) {
            const int token = at / Qkv::BLOCK_PAIRS, i = at % Qkv::BLOCK_PAIRS, pair = blockIdx.x * Qkv::BLOCK_PAIRS + i;
            if (pair < (Q_HEADS + KV_HEADS) * HALF_DIM) {
                copy<8>(&turn[token][i], p.rope + min(n_context + token, N_SLOTS - 1) * HALF_DIM + pair % HALF_DIM);
            } else {
                turn[token][i] = make_float2(1, 0);
            }
        }
        if (me.warp == 1) copy<4>(&slots[me.lane], &p.command->token_slots[me.lane]);
    }
    // After a meeting; known after the next one.
    __device__ __forceinline__ void ask_stop(const Arguments& p) {
        const Place me;
        if (me.thread == 32) copy<4>(&must_stop, &p.command->is_aborted);
    }
};
static_assert(Qkv::BLOCK_PAIRS <= THREADS - 32 && Output::BLOCK_PAIRS <= THREADS - 32 && FRAME_TOKENS == 32, "a thread each");
