// Attention of one decoded token, split over the sequence: a block takes splits of 64 ranks of one KV head, and
// splits are combined in a fixed order. Included by decode.cu.
//
// Shapes: queries of a group's heads bf16, keys and values as fragments from the ring; partial sums float32
//   [split][dimension][8 heads] with the top score and the sum of weights of each split and head.
// Bound by: the exchanges of queries, partial sums and their combination, not by the reading of keys and values.
#pragma once

// Attention of a group's heads over one split of 64 ranks: weighted values, top score and sum of weights.
__device__ __forceinline__ void Decoder::attend(int chunk, int kv_head, float (&scores)[2][CHUNK][8]) {
    const Place me;
    constexpr int STEPS = HEAD_DIM / 32;
    // The newest token's keys and values come from QKV, too late for the ring: the warp writes its part of them
    // over its share, and to their rank for the steps to come.
    const int r = rank - chunk * CHUNK, first = me.warp * KV_FRAGMENTS;
    const bool is_here = r >= 0 && r < CHUNK;
    const bool has_key = is_here && me.warp / 2 == r / 16 && me.lane < HEAD_DIM / 4;
    const int tile_of_rank = r / 16 - first % (CHUNK / 16);   // which of the warp's value fragments holds the rank
    const bool has_value = is_here && tile_of_rank >= 0 && tile_of_rank < KV_FRAGMENTS && me.lane < 8;
    const int key_word = me.warp % 2 * (HEAD_DIM / 4) + me.lane, value_word = first / (CHUNK / 16) * 8 + me.lane;


    // The warp's half of the group's queries, columns are heads; and the new token.
    u32 q[STEPS][2], key = 0, value = 0;
    {
        // Each warp waits for a quarter of a half; the block shares them.
        const int step = me.warp / 2;
        const u64* at = words + Words::QUERY + (((kv_head * 2 + me.warp % 2) * STEPS + step % STEPS) * 32 + min(me.lane, GROUP * 4 - 1)) * 2;
        const u64* fresh = words + Words::TOKEN_KV + kv_head * HEAD_DIM;
        ulonglong2 v;
        u32 wrong;
        Watchdog dog;
        do {
            u64 new_key = u64(tag) << 32, new_value = u64(tag) << 32;
            v = peek2(at);
            if (has_key) new_key = peek(fresh + key_word);
            if (has_value) new_value = peek(fresh + HALF_DIM + value_word);
            wrong = (u32(new_key >> 32) ^ tag) | (u32(new_value >> 32) ^ tag) | (u32(v.x >> 32) ^ tag) | (u32(v.y >> 32) ^ tag);
            key = u32(new_key);
            value = u32(new_value);
            dog.spin();
        } while (wrong);
        __syncwarp();
        if (step < STEPS) shared.query[me.warp % 2][step][me.lane] = make_uint2(u32(v.x), u32(v.y));
        meet_workers();
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            const uint2 both = shared.query[me.warp % 2][s][me.lane];
            q[s][0] = both.x;
            q[s][1] = both.y;
        }
    }
    char *keys = ring.wait(), *values = ring.wait_second();
    char* kept = const_cast<char*>(p.ranked) + layer * RANKED_LAYER_BYTES + split_offset(0, chunk, kv_head);
    if (is_here) {
        if (has_key) {
            const int to = key_offset(r, 2 * key_word);
            *reinterpret_cast<u32*>(keys + to) = key;
            *reinterpret_cast<u32*>(kept + to) = key;
        }
        if (has_value) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int to = value_offset(r, 2 * value_word + i);
                *reinterpret_cast<uint16_t*>(values + to - SPLIT_BYTES / 2) = value >> (16 * i);
                *reinterpret_cast<uint16_t*>(kept + to) = value >> (16 * i);
            }
        }
        __syncwarp();
    }

    float c[4] = {};
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        mma(c, load_fragment(keys, 512, me.warp * KV_FRAGMENTS + s, me.lane, 8), q[s][0], q[s][1]);
    }
    float(*half)[8] = scores[me.warp % 2] + me.warp / 2 * 16;
    *reinterpret_cast<float2*>(&half[me.g][2 * me.t]) = make_float2(c[0], c[1]);
    *reinterpret_cast<float2*>(&half[8 + me.g][2 * me.t]) = make_float2(c[2], c[3]);
    meet_workers();

    // Every warp weighs all ranks of the split for head g: [k-step][rank 2t, 2t + 1, 2t + 8, 2t + 9].
    const float unit = LOG2E * rsqrtf(float(HEAD_DIM));
    const int n_ranks = is_lost(chunk) ? 0 : rank + 1 - chunk * CHUNK;
    float s[CHUNK / 16][4], top = LOWEST;
#pragma unroll
    for (int f = 0; f < CHUNK / 16; f++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int r = f * 16 + 2 * me.t + e % 2 + e / 2 * 8;
            s[f][e] = r < n_ranks ? (scores[0][r][me.g] + scores[1][r][me.g]) * unit : -INFINITY;
            top = fmaxf(top, s[f][e]);
        }
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    float sum = 0;
    u32 w[CHUNK / 16][2];
#pragma unroll
    for (int f = 0; f < CHUNK / 16; f++) {
        w[f][0] = pack(exp2_fast(s[f][0] - top), exp2_fast(s[f][1] - top));
        w[f][1] = pack(exp2_fast(s[f][2] - top), exp2_fast(s[f][3] - top));
        sum += low_of(w[f][0]) + high_of(w[f][0]) + low_of(w[f][1]) + high_of(w[f][1]);
    }
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);

    const int index = chunk * KV_HEADS + kv_head;
    if (me.warp < HEAD_DIM / 16) {
        float o[4] = {};
#pragma unroll
        for (int f = 0; f < CHUNK / 16; f++) {
            mma(o, load_fragment(values, 512, me.warp * (CHUNK / 16) + f, me.lane, 8), w[f][0], w[f][1]);
        }
        if (2 * me.t < GROUP) {
            u64* at = words + Words::PARTIAL + (index * HEAD_DIM + me.warp * 16 + me.g) * 8 + 2 * me.t;
            put2(at, __float_as_uint(o[0]), __float_as_uint(o[1]), tag);
            put2(at + 64, __float_as_uint(o[2]), __float_as_uint(o[3]), tag);
        }
    }
    if (me.warp == WARPS - 1 && me.t == 0 && me.g < even(GROUP)) {
        put2(words + Words::PARTIAL_SUM + (index * 8 + me.g) * 2, __float_as_uint(top), __float_as_uint(sum), tag);
    }
#if __CUDA_ARCH__ >= 900
    if (is_here) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");   // before the ring fills these places
#endif
    ring.release();
    ring.release();
}

__device__ __forceinline__ void Decoder::attention() {
#pragma unroll 1
    for (int u = 0; u < KV_UNITS; u++) {
        const int unit = blockIdx.x + u * GRID, chunk = unit / KV_HEADS;
        if (chunk >= n_chunks) break;
        attend(chunk, unit % KV_HEADS, shared.scores[KV_UNITS > 1 ? u % 2 : 0]);
    }
}

// Combination of the splits for two dimensions of all heads of a group: four threads a split, two heads each.
__device__ __forceinline__ void Decoder::combine(int kv_head, int d) {
    const Place me;
    float m[2] = {LOWEST, LOWEST}, l[2] = {}, o[2][2] = {};   // [head][dimension]
    if (2 * me.t < GROUP) {
#pragma unroll 1
        for (int chunk = me.thread / 4; chunk < n_chunks; chunk += THREADS / 4) {
            const int split = chunk * KV_HEADS + kv_head;
            const u64* values = words + Words::PARTIAL + (split * HEAD_DIM + d) * 8 + 2 * me.t;
            const u64* stats = words + Words::PARTIAL_SUM + (split * 8 + 2 * me.t) * 2;
            ulonglong2 v[4];
            Watchdog dog;
            while (true) {
                v[0] = peek2(values);
                v[1] = peek2(values + 8);
                v[2] = peek2(stats);
                v[3] = peek2(stats + 2);
                u32 wrong = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) wrong |= (u32(v[i].x >> 32) ^ tag) | (u32(v[i].y >> 32) ^ tag);
                if (wrong == 0) break;
                dog.spin();
            }
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float top = __uint_as_float(u32(v[2 + h].x)), sum = __uint_as_float(u32(v[2 + h].y));
                const float o0 = __uint_as_float(u32(h ? v[0].y : v[0].x));
                const float o1 = __uint_as_float(u32(h ? v[1].y : v[1].x));
                const float most = fmaxf(m[h], top), old = exp2_fast(m[h] - most), now = exp2_fast(top - most);
                l[h] = two_products(l[h], old, sum, now);
                o[h][0] = two_products(o[h][0], old, o0, now);
                o[h][1] = two_products(o[h][1], old, o1, now);
                m[h] = most;
            }
        }
    }
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = m[h];
#pragma unroll
        for (int x = 4; x < 32; x *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, x));
        const float now = exp2_fast(m[h] - most);
        l[h] *= now;
        o[h][0] *= now;
        o[h][1] *= now;
#pragma unroll
        for (int x = 4; x < 32; x *= 2) {
            l[h] += __shfl_xor_sync(~0u, l[h], x);
            o[h][0] += __shfl_xor_sync(~0u, o[h][0], x);
            o[h][1] += __shfl_xor_sync(~0u, o[h][1], x);
        }
        if (me.g == 0) shared.combined[me.warp][2 * me.t + h] = make_float4(most, l[h], o[h][0], o[h][1]);
    }
    meet_workers();
    const int head = me.thread;
    if (head >= GROUP) return;
    float most = LOWEST, sum = 0, o0 = 0, o1 = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) most = fmaxf(most, shared.combined[w][head].x);
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float4 part = shared.combined[w][head];
        float now = exp2_fast(part.x - most);
        sum += part.y * now;
        o0 += part.z * now;
        o1 += part.w * now;
    }
    const int k = (kv_head * GROUP + head) * HEAD_DIM + d;
    const float over = __frcp_rn(sum);
    o0 *= over;
    o1 *= over;
    put(words + Words::ATTENDED + operand_word(k), pack(o0, o1), tag);
    if (float* to = trace(Trace::ATTENDED + k)) to[0] = o0, to[1] = o1;
}

__device__ __forceinline__ void Decoder::combination() {
#pragma unroll 1
    for (int unit = blockIdx.x; unit < KV_HEADS * HALF_DIM; unit += GRID) {
        combine(unit / HALF_DIM, unit % HALF_DIM * 2);
        if (unit + GRID < KV_HEADS * HALF_DIM) meet_workers();
    }
}
