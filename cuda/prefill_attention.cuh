// Attention of a block of 32 tokens, split over the sequence: causal within the block, over all ranks before it.
// Included by prefill.cu.
//
// Shapes: queries bf16 of a KV head's group [GROUP * 32]; a split of 64 ranks as fragments from the ring; partial
//   sums bf16 [split][query][dimension], top scores and sums of weights float32 [split][query].
// Geometry: a split belongs to one block, each warp takes some of the group's queries; combination gives each block
//   some queries, over all splits in a fixed order.
// Bound by: instructions (a warp has three tiles of eight queries), then the latency of the partial sums.
#pragma once

// All queries of a KV head over one split; a warp takes QUERY_TILES columns of 8 queries.
__device__ __forceinline__ void Prefiller::attend(int chunk, int kv_head) {
    const Place me;
    constexpr int STEPS = HEAD_DIM / 16;
    const int first_tile = me.warp * QUERY_TILES;
    u32 q[QUERY_TILES][STEPS][2];
#pragma unroll
    for (int n = 0; n < QUERY_TILES; n++) {
        const int tile = min(first_tile + n, QUERIES / 8 - 1);
        const uint4* at = reinterpret_cast<const uint4*>(p.prefill + Prefill::QUERY) +
                          (kv_head * (QUERIES / 8) + tile) * (HEAD_DIM / 32) * 32 + me.lane;
#pragma unroll
        for (int s = 0; s < STEPS / 2; s++) {
            uint4 v = __ldcg(at + s * 32);
            q[n][2 * s][0] = v.x;
            q[n][2 * s][1] = v.y;
            q[n][2 * s + 1][0] = v.z;
            q[n][2 * s + 1][1] = v.w;
        }
    }
    const char *keys = ring.wait(), *values = ring.wait_second();

    float s[CHUNK / 16][QUERY_TILES][4] = {};
#pragma unroll
    for (int m = 0; m < CHUNK / 16; m++) {
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            const int fragment = m * STEPS + k;
            const uint4 a = load_fragment(keys, 512, fragment, me.lane, 8);
#pragma unroll
            for (int n = 0; n < QUERY_TILES; n++) mma(s[m][n], a, q[n][k][0], q[n][k][1]);
        }
    }

    // Columns 2t, 2t + 1 of a tile are queries; rows g, g + 8 of each fragment are ranks.
    const float unit = LOG2E * rsqrtf(float(HEAD_DIM));
    u32 w[CHUNK / 16][QUERY_TILES][2];
    const int split_index = chunk * KV_HEADS + kv_head;
#pragma unroll
    for (int n = 0; n < QUERY_TILES; n++) {
        const int query = (first_tile + n) * 8 + 2 * me.t;
        const int n_ranks =   // seen by the first column
            is_lost(chunk) ? -1 : n_context + query % FRAME_TOKENS + 1 - chunk * CHUNK;
        float top[2] = {LOWEST, LOWEST}, sum[2] = {};
#pragma unroll
        for (int m = 0; m < CHUNK / 16; m++) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int r = m * 16 + me.g + e / 2 * 8;
                s[m][n][e] = r < n_ranks + e % 2 ? s[m][n][e] * unit : -INFINITY;
                top[e % 2] = fmaxf(top[e % 2], s[m][n][e]);
            }
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int d = 4; d < 32; d *= 2) top[c] = fmaxf(top[c], __shfl_xor_sync(~0u, top[c], d));
        }
#pragma unroll
        for (int m = 0; m < CHUNK / 16; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const u32 v = pack(exp2_fast(s[m][n][2 * half] - top[0]), exp2_fast(s[m][n][2 * half + 1] - top[1]));
                sum[0] += low_of(v);
                sum[1] += high_of(v);
                // Row operand of the scores becomes the column operand of the values' product.
                asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(w[m][n][half]) : "r"(v));
            }
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
#pragma unroll
            for (int d = 4; d < 32; d *= 2) sum[c] += __shfl_xor_sync(~0u, sum[c], d);
        }
        if (me.g == 0 && query < QUERIES) {
            float4* to = reinterpret_cast<float4*>(p.prefill + Prefill::PARTIAL_SUM) + (split_index * QUERIES + query) / 2;
            *to = make_float4(top[0], sum[0], top[1], sum[1]);
        }
    }

#pragma unroll
    for (int tile = 0; tile < HEAD_DIM / 16; tile++) {
        float o[QUERY_TILES][4] = {};
#pragma unroll
        for (int m = 0; m < CHUNK / 16; m++) {
            const int fragment = tile * (CHUNK / 16) + m;
            const uint4 a = load_fragment(values, 512, fragment, me.lane, 8);
#pragma unroll
            for (int n = 0; n < QUERY_TILES; n++) mma(o[n], a, w[m][n][0], w[m][n][1]);
        }
#pragma unroll
        for (int n = 0; n < QUERY_TILES; n++) {
            const int query = (first_tile + n) * 8 + 2 * me.t;
            if (query >= QUERIES) continue;
            // A word is dimensions d and d + 8 of a query.
            u32* to = reinterpret_cast<u32*>(p.prefill + Prefill::PARTIAL) +
                      (split_index * QUERIES + query) * HALF_DIM + tile * 8 + me.g;
            to[0] = pack(o[n][0], o[n][2]);
            to[HALF_DIM] = pack(o[n][1], o[n][3]);
        }
    }
    ring.release();
    ring.release();
}

__device__ __forceinline__ void Prefiller::attention() {
    // This layer's keys and values are at their ranks: splits that hold them can be read now.
    if (threadIdx.x == 0) shared.open_layer = layer + 1;
    __syncwarp();
    ring.feed();
#pragma unroll 1
    for (int u = 0; u < KV_UNITS; u++) {
        const int unit = blockIdx.x + u * GRID, chunk = unit / KV_HEADS;
        if (chunk >= n_chunks) break;
        attend(chunk, unit % KV_HEADS);
    }
}

// Combination of the splits: a block takes some queries. Every warp weighs the splits of a round's queries,
// then warps share the splits and lanes the dimensions.
__device__ __forceinline__ void Prefiller::combination() {
    const Place me;
    constexpr int SPLITS = ceil_div(CHUNKS, WARPS), WORDS = ceil_div(HALF_DIM, 32);
    float(*weights)[CHUNKS] = reinterpret_cast<float(*)[CHUNKS]>(&shared.sums[0][0][0][0]);
    float(*parts)[WARPS][HEAD_DIM] = reinterpret_cast<float(*)[WARPS][HEAD_DIM]>(&shared.sums[0][0][0][0] + ROUND_QUERIES * CHUNKS);
#pragma unroll 1
    for (int begin = blockIdx.x; begin < KV_HEADS * QUERIES; begin += ROUND_QUERIES * GRID) {
        // All that is read is asked for at once.
        constexpr int N = ceil_div(CHUNKS, 32);
        float2 stat[N];
        if (me.warp < ROUND_QUERIES) {
            const int index = min(begin + me.warp * GRID, KV_HEADS * QUERIES - 1);
            const float2* stats = reinterpret_cast<const float2*>(p.prefill + Prefill::PARTIAL_SUM) + index;
#pragma unroll
            for (int i = 0; i < N; i++) {
                const int chunk = i * 32 + me.lane;
                stat[i] = chunk < n_chunks ? __ldcg(stats + chunk * KV_HEADS * QUERIES) : make_float2(LOWEST, 0);
            }
        }
        u32 word[ROUND_QUERIES][SPLITS][WORDS];
#pragma unroll
        for (int n = 0; n < ROUND_QUERIES; n++) {
            const int index = min(begin + n * GRID, KV_HEADS * QUERIES - 1);
            const u32* from = reinterpret_cast<const u32*>(p.prefill + Prefill::PARTIAL) + index * HALF_DIM + me.lane;
#pragma unroll
            for (int i = 0; i < SPLITS; i++) {
                const int chunk = i * WARPS + me.warp;
#pragma unroll
                for (int j = 0; j < WORDS; j++) {
                    word[n][i][j] = chunk < n_chunks && (HALF_DIM >= 32 || me.lane < HALF_DIM)
                                        ? __ldcg(from + chunk * (KV_HEADS * QUERIES * HALF_DIM) + j * 32)
                                        : 0;
                }
            }
        }
        if (me.warp < ROUND_QUERIES) {
            float most = LOWEST, sum = 0;
#pragma unroll
            for (int i = 0; i < N; i++) most = fmaxf(most, stat[i].x);
#pragma unroll
            for (int d = 1; d < 32; d *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
#pragma unroll
            for (int i = 0; i < N; i++) sum += stat[i].y * exp2_fast(stat[i].x - most);
            const float over = 1.f / warp_sum(sum);
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (i * 32 + me.lane < CHUNKS) weights[me.warp][i * 32 + me.lane] = exp2_fast(stat[i].x - most) * over;
            }
        }
        meet_workers();
#pragma unroll
        for (int n = 0; n < ROUND_QUERIES; n++) {
#pragma unroll
            for (int j = 0; j < WORDS; j++) {
                float o0 = 0, o1 = 0;
#pragma unroll
                for (int i = 0; i < SPLITS; i++) {
                    const float weight = weights[n][min(i * WARPS + me.warp, CHUNKS - 1)];
                    o0 += weight * low_of(word[n][i][j]);
                    o1 += weight * high_of(word[n][i][j]);
                }
                const int at = j * 32 + me.lane, d = at / 8 * 16 + at % 8;
                if (at < HALF_DIM) parts[n][me.warp][d] = o0, parts[n][me.warp][d + 8] = o1;
            }
        }
        meet_workers();
#pragma unroll 1
        for (int at = me.thread; at < ROUND_QUERIES * HALF_DIM; at += THREADS) {
            const int index = begin + at / HALF_DIM * GRID, d = at % HALF_DIM * 2;
            if (index >= KV_HEADS * QUERIES) break;
            const int head = index / FRAME_TOKENS, token = index % FRAME_TOKENS;
            float o0 = 0, o1 = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) o0 += parts[at / HALF_DIM][w][d], o1 += parts[at / HALF_DIM][w][d + 1];
            *reinterpret_cast<u32*>(p.prefill + Prefill::ATTENDED + operand_place(head * HEAD_DIM + d, token)) = pack(o0, o1);
            if (float* to = trace(token, Trace::ATTENDED + head * HEAD_DIM + d)) to[0] = o0, to[1] = o1;
        }
        meet_workers();
    }
}
