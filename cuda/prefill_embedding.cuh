// What the stream begins with: a frame's patches or rows of the embedding. Included by prefill.cu.
//
// Shapes: 32 patches of 768 odd integers bf16, or 32 rows bf16 [HIDDEN] -> the stream, float32 in registers.
// Bound by: the first weights on their way.
#pragma once

// The stream begins with the frame's patch embeddings: pixels enter as odd integers 2 x - 255, exact in bf16.
__device__ __forceinline__ void Prefiller::embed_frame() {
    const Place me;
    const int i = me.thread % 8, token = me.thread / 8;
    products<Vision>(me, p.prefill + Prefill::PIXELS, p.prefill + Prefill::LAYER_SQUARES, Vision::TILES, Vision::LAST_PAIRS, [&](int tile, int pairs) {
        if (tile > 0) meet_workers();   // `parts` were read
        const int pair = blockIdx.x * Vision::BLOCK_PAIRS + tile * 8 + i;
        const bool is_mine = i < pairs && pair < Vision::PAIRS;
        float y0 = 0, y1 = 0;
        if (is_mine) {
            const float2 bias = *reinterpret_cast<const float2*>(p.vision_bias + 2 * pair);
            y0 = row_sum(i, token) * (1.f / 255) + bias.x;
            y1 = row_sum(i + 8, token) * (1.f / 255) + bias.y;
        }
#pragma unroll
        for (int at = 0; at < Output::TILES; at++) {
            if (at == tile) x0[at] = y0, x1[at] = y1;
        }
        // The frame's embedding is the mean over its tokens.
        y0 += __shfl_xor_sync(~0u, y0, 8);
        y1 += __shfl_xor_sync(~0u, y1, 8);
        y0 += __shfl_xor_sync(~0u, y0, 16);
        y1 += __shfl_xor_sync(~0u, y1, 16);
        if (me.lane < 8) shared.parts[me.warp][2 * i] = y0, shared.parts[me.warp][2 * i + 1] = y1;
        meet_workers();
        const int row = blockIdx.x * Vision::BLOCK_PAIRS * 2 + tile * 16 + me.thread;
        if (me.thread < 2 * pairs && row < HIDDEN) {
            float sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += shared.parts[w][me.thread];
            p.result->embedding[row] = sum * (1.f / FRAME_TOKENS);
        }
    });
}

__device__ __forceinline__ void Prefiller::embed_prompt() {
    const Place me;
    const int i = me.thread % 8, token = me.thread / 8;
#pragma unroll
    for (int tile = 0; tile < Output::TILES; tile++) {
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + tile * 8 + i;
        x0[tile] = x1[tile] = 0;
        if (i < Output::tile_pairs(tile) && pair < Output::PAIRS && token < n_tokens) {
            u32 both = reinterpret_cast<const u32*>(p.prompt_rows)[(token * HIDDEN) / 2 + pair];
            x0[tile] = low_of(both);
            x1[tile] = high_of(both);
        }
    }
}
