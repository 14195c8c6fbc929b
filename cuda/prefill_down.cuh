// The down projection of a block of 32 tokens. Included by prefill.cu.
//
// Shapes: operand bf16 [INTERMEDIATE][32 tokens], from L2; sums float32.
// Bound by: L2. Every block reads the operand, 573 KB of 1.5b. Where blocks come in pairs, each of the two reads one
//   half of every warp's k-steps and multiplies the rows of both by it, and sends the other its sums: half the reads.
#pragma once

__device__ __forceinline__ void Prefiller::down_alone() {
    const Place me;
    constexpr int STEPS = Down::SEGMENT_STEPS;
    constexpr bool EXACT = Down::K_STEPS == WARPS * Down::SEGMENTS * STEPS;
    const int base = me.warp * Down::WARP_STEPS, end = min(base + Down::WARP_STEPS, Down::K_STEPS);
#pragma unroll 1
    for (int tile = 0; tile < Down::TILES; tile++) {
        const int pairs = Down::TILES == 1 ? Down::LAST_PAIRS : Down::tile_pairs(tile);
        float c[4][4] = {};
        // As soon as a step of a segment is done, the same step's operand of the next one is asked for.
        u32 b[STEPS][4][2];
        load_operand<STEPS, EXACT>(p.prefill + Prefill::GATED, base, end, me.lane, b);
#pragma unroll 1
        for (int segment = 0; segment < Down::SEGMENTS; segment++) {
            const int next = base + (segment + 1) * STEPS;
            const char* stage = ring.wait() + me.warp * (STEPS * 64) * pairs;
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const uint4 a = load_fragment(stage, pairs * 64, s, me.lane, pairs);
#pragma unroll
                for (int n = 0; n < 4; n++) mma(c[n], a, b[s][n][0], b[s][n][1]);
                if (segment + 1 < Down::SEGMENTS) load_step<EXACT>(p.prefill + Prefill::GATED, next + s, end, me.lane, b[s]);
            }
            ring.release();
        }
        buffer ^= 1;
        leave_sums(me, c);
        meet_workers();
        add_tile(tile, pairs, Trace::OUT);
    }
}

// A pair is a cluster of two blocks, which write to each other's shared memory. Summed are a warp's k-steps, then warps
// 0..7, then the half of the block that has the rows and the other one.
__device__ __forceinline__ void Prefiller::down_in_pair() {
#if __CUDA_ARCH__ >= 900
    const Place me;
    constexpr int STEPS = Down::SEGMENT_STEPS, SEGMENTS = Down::SEGMENTS / 2, PAIRS = Down::LAST_PAIRS;
    constexpr bool EXACT = Down::K_STEPS == WARPS * Down::SEGMENTS * STEPS;
    const int base = me.warp * Down::WARP_STEPS + blockIdx.x % 2 * (SEGMENTS * STEPS);
    const int end = min((me.warp + 1) * Down::WARP_STEPS, Down::K_STEPS);
    if (me.thread == 0) shared.partner.expect(PAIRS);
    float c[2][4][4] = {};   // the block's own rows, the other's
    u32 b[STEPS][4][2];
    load_operand<STEPS, EXACT>(p.prefill + Prefill::GATED, base, end, me.lane, b);
#pragma unroll 1
    for (int segment = 0; segment < SEGMENTS; segment++) {
        const int next = base + (segment + 1) * STEPS;
        const char* own = ring.wait() + me.warp * (STEPS * 64) * PAIRS;
        const char* other = ring.wait_second() + me.warp * (STEPS * 64) * PAIRS;
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint4 a0 = load_fragment(own, PAIRS * 64, s, me.lane, PAIRS);
            const uint4 a1 = load_fragment(other, PAIRS * 64, s, me.lane, PAIRS);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                mma(c[0][n], a0, b[s][n][0], b[s][n][1]);
                mma(c[1][n], a1, b[s][n][0], b[s][n][1]);
            }
            if (segment + 1 < SEGMENTS) load_step<EXACT>(p.prefill + Prefill::GATED, next + s, end, me.lane, b[s]);
        }
        ring.release();
        ring.release();
    }
    leave_sums(me, c[1]);
    buffer ^= 1;
    leave_sums(me, c[0]);
    meet_workers();
    const int i = me.thread % 8, token = me.thread / 8;
    buffer ^= 1;
    if (i < PAIRS) shared.partner.send(me.thread, row_sum(i, token), row_sum(i + 8, token));
    buffer ^= 1;
    const float y0 = row_sum(i, token), y1 = row_sum(i + 8, token);
    const float2 rest = shared.partner.take(me.thread, layer % 2);
    if (i < PAIRS) join(0, y0 + rest.x, y1 + rest.y, Trace::OUT);
#endif
}

__device__ __forceinline__ void Prefiller::down() {
    if constexpr (DOWN_BLOCKS == 2) {
        down_in_pair();
    } else {
        down_alone();
    }
}
