// Greedy decoding of up to 8 action tokens, one persistent launch for all steps and layers.
//
// Shapes: one token at a time; stream float32 [HIDDEN], operands bf16, KV bf16, accumulation float32.
// Geometry: GRID blocks (at most one a multiprocessor) x 256 threads, launched cooperatively. Each block owns the
//   same rows of every projection and, for attention, splits of 64 ranks of one KV head.
// Bound by: device memory. A step reads every weight and every valid key and value once. The weight ring runs
//   ahead through the six exchanges of a layer (QKV, split attention, combination, output, gate/up, down), so
//   their latency costs nothing as long as they take less time than the ring takes to fill.
// Order of summation: k-steps within a warp (even and odd apart), then warps 0..7; splits of 64 ranks at fixed
//   ranks, combined in a fixed tree. A token is column 0 of an n = 8 product, so several tokens in the other
//   columns would give the same bits; rows are independent, so any grid does.
#include "device.cuh"
#include "workspace.cuh"

// The order in which a warp reads weights and keys and values: a step's layers, then the head.
struct DecodeSource {
    const char* weights;
    const char* ranked;
    int n_chunks, steps_left;
    int layer, stage;
    size_t offset;

    template <class M>
    __device__ __forceinline__ bool weight(int stage_of_matrix, const char*& from, u32& bytes) {
        bytes = M::stage_bytes(stage_of_matrix);
        from = weights + offset + size_t(blockIdx.x * WARPS + threadIdx.x / 32) * bytes;
        offset += size_t(GRID) * WARPS * bytes;
        return true;
    }

    __device__ __forceinline__ bool next(const char*& from, u32& bytes) {
        constexpr int KV = Qkv::STAGES, OUTPUT = KV + KV_UNITS, GATE_UP = OUTPUT + Output::STAGES;
        constexpr int DOWN = GATE_UP + GateUp::STAGES, END = DOWN + Down::STAGES;
        while (steps_left > 0) {
            int s = stage++;
            if (layer == LAYERS) {
                if (s < Head::STAGES) return weight<Head>(s, from, bytes);
                layer = stage = 0;
                offset = 0;
                steps_left--;
                continue;
            }
            if (s < KV) return weight<Qkv>(s, from, bytes);
            if (s < OUTPUT) {
                int unit = blockIdx.x + (s - KV) * GRID, chunk = unit / KV_HEADS;
                if (chunk >= n_chunks) continue;
                bytes = KV_STAGE_BYTES;
                from = ranked + split_offset(layer, chunk, unit % KV_HEADS) + threadIdx.x / 32 * KV_STAGE_BYTES;
                return true;
            }
            if (s < GATE_UP) return weight<Output>(s - OUTPUT, from, bytes);
            if (s < DOWN) return weight<GateUp>(s - GATE_UP, from, bytes);
            if (s < END) return weight<Down>(s - DOWN, from, bytes);
            layer++;
            stage = 0;
        }
        return false;
    }
};
using DecodeRing = Ring<DecodeSource>;

struct Shared {
    u64 barriers[WARPS][SLOTS];
    float sums_a[WARPS][16 * max_of(Output::TILES, Down::TILES)];
    float sums_b[WARPS][16 * max_of(max_of(Qkv::TILES, GateUp::TILES), Head::TILES)];
    float scores[2][2][CHUNK][8];
    float4 combined[WARPS][8];
    float scale[2];
    float best[WARPS];
    int best_row[WARPS];
};

// Products of one tile's rows with a whole operand in registers; column 0 goes to sums[16].
template <class M, int PAIRS>
__device__ __forceinline__ void tile_product(DecodeRing& ring, const u32 (&b)[M::WARP_STEPS][2], float* sums) {
    const int lane = threadIdx.x % 32;
    float c[2][4] = {};
#pragma unroll
    for (int segment = 0; segment < M::SEGMENTS; segment++) {
        const char* stage = ring.wait();
#pragma unroll
        for (int s = 0; s < M::SEGMENT_STEPS; s++) {
            const int k = segment * M::SEGMENT_STEPS + s;
            if (k < M::WARP_STEPS) mma(c[k % 2], load_fragment(stage, PAIRS * 64, s, lane, PAIRS), b[k][0], b[k][1]);
        }
        ring.release();
    }
    if (lane % 4 == 0) {
        sums[lane / 4] = c[0][0] + c[1][0];
        sums[8 + lane / 4] = c[0][2] + c[1][2];
    }
}

template <class M>
__device__ __forceinline__ void products(DecodeRing& ring, const u32 (&b)[M::WARP_STEPS][2], float* sums) {
#pragma unroll 1
    for (int tile = 0; tile < M::TILES - 1; tile++) tile_product<M, 8>(ring, b, sums + tile * 16);
    tile_product<M, M::LAST_PAIRS>(ring, b, sums + (M::TILES - 1) * 16);
}

template <int ROWS>
__device__ __forceinline__ float row_sum(const float (&sums)[WARPS][ROWS], int row) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[w][row];
    return sum;
}

struct Decoder {
    const Arguments& p;
    Shared& shared;
    DecodeRing ring;
    u64* words;
    u64 abort_ns;
    float x0, x1;       // stream rows of the pair of threads < Output::BLOCK_PAIRS
    u32 tag;            // of this layer's words
    int first_rank;     // of the decoded tokens
    int n_chunks, step, rank, layer;
    int row;            // of p.rows, this step's token: 0 is the action-start token

    __device__ __forceinline__ float* trace(int part) const {
        return p.trace ? p.trace + (size_t(step) * LAYERS + layer) * Trace::SIZE + part : nullptr;
    }
    __device__ __forceinline__ const u32* token() const {
        return reinterpret_cast<const u32*>(p.rows + size_t(row) * HIDDEN);
    }
    __device__ __forceinline__ const float* norms() const { return p.norms + size_t(2 * layer) * HIDDEN; }

    // 1 / RMS of the stream from the blocks' sums of squares; -1 if block 0 stopped the pass. One warp calls it.
    __device__ __forceinline__ float take_scale(const u64* squares, u32 its_tag, int lane) {
        float sum = 0, first = 0;
#pragma unroll 1
        for (int block = lane; block < GRID; block += 32) {
            float part = __uint_as_float(take(squares + block, its_tag));
            if (block == lane) first = part;
            sum += part;
        }
        __syncwarp();
        bool is_stopped = __shfl_sync(~0u, first, 0) < 0;
        sum = warp_sum(sum);
        return is_stopped ? -1.f : rsqrtf(sum * (1.f / HIDDEN) + RMS_EPS);
    }

    // The stream begins with the token's row.
    __device__ __forceinline__ void begin_step() {
        const Place me;
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + me.thread;
        if (me.thread < Output::BLOCK_PAIRS && pair < Output::PAIRS) {
            u32 both = token()[pair];
            x0 = low_of(both);
            x1 = high_of(both);
        }
    }

    __device__ __forceinline__ void embedded_operand(const Place& me, u32 (&b)[Qkv::WARP_STEPS][2]) {
        const int first = me.warp * Qkv::WARP_STEPS;
#pragma unroll
        for (int s = 0; s < Qkv::WARP_STEPS; s++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                b[s][half] = 0;
                int k = (first + s) * 16 + half * 8 + me.lane * 2;
                if (me.lane < 4 && first + s < Qkv::K_STEPS) {
                    u32 both = token()[k / 2];
                    float2 weight = *reinterpret_cast<const float2*>(norms() + k);
                    b[s][half] = pack(low_of(both) * weight.x, high_of(both) * weight.y);
                }
            }
        }
        __syncwarp();
    }

    __device__ __forceinline__ float embedded_scale(int lane) {
        float sum = 0;
        for (int k = lane; k < HIDDEN / 2; k += 32) {
            u32 both = token()[k];
            sum += low_of(both) * low_of(both) + high_of(both) * high_of(both);
        }
        return rsqrtf(warp_sum(sum) * (1.f / HIDDEN) + RMS_EPS);
    }

    // Norm; queries, keys and values with bias; RoPE of the new token. False if the pass was stopped.
    __device__ __forceinline__ bool qkv() {
        const Place me;
        const int i = blockIdx.x * Qkv::BLOCK_PAIRS + me.thread;
        const bool is_mine = me.thread < Qkv::BLOCK_PAIRS && i < Qkv::PAIRS;
        const int head = i / HALF_DIM, d = i % HALF_DIM, upper = head * HEAD_DIM + d;
        float bias0 = 0, bias1 = 0;
        float2 turn = make_float2(1, 0);
        if (is_mine) {
            bias0 = p.qkv_bias[layer * QKV_ROWS + upper];
            bias1 = p.qkv_bias[layer * QKV_ROWS + upper + HALF_DIM];
            if (head < Q_HEADS + KV_HEADS) turn = p.rope[rank * HALF_DIM + d];
        }
        {
            u32 b[Qkv::WARP_STEPS][2];
            if (layer == 0) {
                embedded_operand(me, b);
            } else {
                take_operand<Qkv>(words + Words::LAYER_INPUT, tag - 1, me.warp, me.lane, b);
            }
            products<Qkv>(ring, b, shared.sums_b[me.warp]);
        }
        if (me.warp == 0) {
            float scale = layer == 0 ? embedded_scale(me.lane) : take_scale(words + Words::LAYER_SQUARES, tag - 1, me.lane);
            if (me.lane == 0) shared.scale[0] = scale;
        }
        __syncthreads();
        const float scale = shared.scale[0];
        if (scale < 0) return false;
        if (me.warp >= ceil_div(Qkv::BLOCK_PAIRS, 32)) return true;

        float y0 = 0, y1 = 0;
        if (is_mine) {
            int at = me.thread / 8 * 16 + me.thread % 8;
            y0 = row_sum(shared.sums_b, at) * scale + bias0;
            y1 = row_sum(shared.sums_b, at + 8) * scale + bias1;
            if (float* to = trace(Trace::QKV + upper)) to[0] = y0, to[HALF_DIM] = y1;
        }
        if (head >= Q_HEADS) {   // the cache holds bf16, and keys are rotated as they are read
            y0 = rounded(y0);
            y1 = rounded(y1);
        }
        const float z0 = y0 * turn.x - y1 * turn.y, z1 = y1 * turn.x + y0 * turn.y;
        const float near0 = __shfl_xor_sync(~0u, z0, 1), near1 = __shfl_xor_sync(~0u, z1, 1);
        if (!is_mine) return true;
        // Even threads hold dimensions d, d + 1; odd ones the same of the upper half.
        const u32 word = me.thread % 2 ? pack(near1, z1) : pack(z0, near0);
        const int dim = me.thread % 2 ? d - 1 + HALF_DIM : d;
        if (head < Q_HEADS) {
            int at = (head / GROUP * (HEAD_DIM / 16) + dim / 16) * 32 + head % GROUP * 4 + dim % 8 / 2;
            put(words + Words::QUERY + at * 2 + dim % 16 / 8, word, tag);
        } else {
            int which = head - Q_HEADS, is_value = which >= KV_HEADS;
            int at = (which - is_value * KV_HEADS) * HEAD_DIM + is_value * HALF_DIM + dim / 2;
            put(words + Words::TOKEN_KV + at, word, tag);
        }
        return true;
    }

    // The warp's half of the group's queries: columns are heads.
    __device__ __forceinline__ void take_query(const Place& me, int kv_head, u32 (&q)[HEAD_DIM / 32][2]) {
        constexpr int STEPS = HEAD_DIM / 32;
        const u64* at = words + Words::QUERY + ((kv_head * 2 + me.warp % 2) * STEPS * 32 + me.lane) * 2;
#pragma unroll
        for (int s = 0; s < STEPS; s++) q[s][0] = q[s][1] = 0;
        if (me.g < GROUP) {
            Watchdog dog;
            while (true) {
                ulonglong2 v[STEPS];
                u32 wrong = 0;
#pragma unroll
                for (int s = 0; s < STEPS; s++) v[s] = peek2(at + s * 64);
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    wrong |= (u32(v[s].x >> 32) ^ tag) | (u32(v[s].y >> 32) ^ tag);
                    q[s][0] = u32(v[s].x);
                    q[s][1] = u32(v[s].y);
                }
                if (wrong == 0) break;
                dog.spin();
            }
        }
        __syncwarp();
    }

    // Decoded tokens are not in the ranked cache: those of this split are written over the warp's stage. The
    // newest comes from QKV; the same lane keeps it for the next steps.
    __device__ __forceinline__ void add_new_tokens(const Place& me, char* stage, int chunk, int kv_head) {
        const int first_new = first_rank - chunk * CHUNK;
        if (first_new + step < 0 || first_new >= CHUNK) return;
        char* split = stage - me.warp * KV_STAGE_BYTES;
        const u64* fresh = words + Words::TOKEN_KV + kv_head * HEAD_DIM;
#pragma unroll 1
        for (int j = 0; j <= step; j++) {
            const int r = first_new + j;
            if (r < 0 || r >= CHUNK) continue;
            u32* kept = p.token_kv + ((layer * MAX_STEPS + j) * KV_HEADS + kv_head) * HEAD_DIM;
            if (me.warp / 2 == r / 16 && me.lane < HEAD_DIM / 4) {
                int w = me.warp % 2 * (HEAD_DIM / 4) + me.lane;
                u32 word = j == step ? take(fresh + w, tag) : kept[w];
                if (j == step) kept[w] = word;
                *reinterpret_cast<u32*>(split + key_offset(r, 2 * w)) = word;
            }
#pragma unroll 1
            for (int f = me.warp * KV_FRAGMENTS; f < (me.warp + 1) * KV_FRAGMENTS; f++) {
                if (f % (CHUNK / 16) != r / 16 || me.lane >= 8) continue;
                int w = f / (CHUNK / 16) * 8 + me.lane;
                u32 word = j == step ? take(fresh + HALF_DIM + w, tag) : kept[HALF_DIM + w];
                if (j == step) kept[HALF_DIM + w] = word;
                *reinterpret_cast<uint16_t*>(split + value_offset(r, 2 * w)) = word & 0xffff;
                *reinterpret_cast<uint16_t*>(split + value_offset(r, 2 * w + 1)) = word >> 16;
            }
        }
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
        __syncwarp();
    }

    // Attention of a group's heads over one split of 64 ranks: weighted values, top score and sum of weights.
    __device__ __forceinline__ void attend(int chunk, int kv_head, float (&scores)[2][CHUNK][8]) {
        const Place me;
        constexpr int STEPS = HEAD_DIM / 32;
        u32 q[STEPS][2];
        take_query(me, kv_head, q);
        char* stage = const_cast<char*>(ring.wait());
        add_new_tokens(me, stage, chunk, kv_head);

        float c[4] = {};
#pragma unroll
        for (int s = 0; s < STEPS; s++) mma(c, load_fragment(stage, 512, s, me.lane, 8), q[s][0], q[s][1]);
        float(*half)[8] = scores[me.warp % 2] + me.warp / 2 * 16;
        *reinterpret_cast<float2*>(&half[me.g][2 * me.t]) = make_float2(c[0], c[1]);
        *reinterpret_cast<float2*>(&half[8 + me.g][2 * me.t]) = make_float2(c[2], c[3]);
        __syncthreads();

        // Every warp weighs all ranks of the split for head g: [k-step][rank 2t, 2t + 1, 2t + 8, 2t + 9].
        const float unit = LOG2E * rsqrtf(float(HEAD_DIM));
        const int n_ranks = rank + 1 - chunk * CHUNK;
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
            w[f][0] = pack(exp2f(s[f][0] - top), exp2f(s[f][1] - top));
            w[f][1] = pack(exp2f(s[f][2] - top), exp2f(s[f][3] - top));
            sum += low_of(w[f][0]) + high_of(w[f][0]) + low_of(w[f][1]) + high_of(w[f][1]);
        }
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);

        const int split = chunk * KV_HEADS + kv_head;
        if (me.warp < HEAD_DIM / 16) {
            float o[4] = {};
#pragma unroll
            for (int f = 0; f < CHUNK / 16; f++) {
                int fragment = me.warp * (CHUNK / 16) + f, owner = fragment / KV_FRAGMENTS;
                // Another warp's stage lies at the same place of its ring: all rings advance alike.
                const char* from = stage + (owner - me.warp) * (SLOTS * STAGE_BYTES) + KV_STAGE_BYTES / 2;
                mma(o, load_fragment(from, 512, fragment % KV_FRAGMENTS, me.lane, 8), w[f][0], w[f][1]);
            }
            if (2 * me.t < GROUP) {
                u64* at = words + Words::PARTIAL + (split * HEAD_DIM + me.warp * 16 + me.g) * 8 + 2 * me.t;
                put2(at, __float_as_uint(o[0]), __float_as_uint(o[1]), tag);
                put2(at + 64, __float_as_uint(o[2]), __float_as_uint(o[3]), tag);
            }
        }
        if (me.warp == WARPS - 1 && me.t == 0 && me.g < even(GROUP)) {
            put2(words + Words::PARTIAL_SUM + (split * 8 + me.g) * 2, __float_as_uint(top), __float_as_uint(sum), tag);
        }
        if (HEAD_DIM != 128) __syncthreads();
        ring.release();
    }

    __device__ __forceinline__ void attention() {
#pragma unroll 1
        for (int u = 0; u < KV_UNITS; u++) {
            const int unit = blockIdx.x + u * GRID, chunk = unit / KV_HEADS;
            if (chunk >= n_chunks) break;
            attend(chunk, unit % KV_HEADS, shared.scores[u % 2]);
        }
    }

    // Combination of the splits for two dimensions of all heads of a group: four threads a split, two heads each.
    __device__ __forceinline__ void combine(int kv_head, int d) {
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
                    const float most = fmaxf(m[h], top), old = exp2f(m[h] - most), now = exp2f(top - most);
                    l[h] = l[h] * old + sum * now;
                    o[h][0] = o[h][0] * old + o0 * now;
                    o[h][1] = o[h][1] * old + o1 * now;
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
            const float now = exp2f(m[h] - most);
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
        __syncthreads();
        if (me.thread >= GROUP) return;
        float most = LOWEST, sum = 0, o0 = 0, o1 = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) most = fmaxf(most, shared.combined[w][me.thread].x);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float4 part = shared.combined[w][me.thread];
            float now = exp2f(part.x - most);
            sum += part.y * now;
            o0 += part.z * now;
            o1 += part.w * now;
        }
        const int k = (kv_head * GROUP + me.thread) * HEAD_DIM + d;
        o0 /= sum;
        o1 /= sum;
        put(words + Words::ATTENDED + operand_word(k), pack(o0, o1), tag);
        if (float* to = trace(Trace::ATTENDED + k)) to[0] = o0, to[1] = o1;
    }

    __device__ __forceinline__ void combination() {
#pragma unroll 1
        for (int unit = blockIdx.x; unit < KV_HEADS * HALF_DIM; unit += GRID) {
            combine(unit / HALF_DIM, unit % HALF_DIM * 2);
            if (unit + GRID < KV_HEADS * HALF_DIM) __syncthreads();
        }
    }

    // Adds the block's rows of a projection to the stream, and passes the next norm's operand and squares on.
    // Block 0 stops the pass after a layer by a negative sum of squares: every block reads it at the same place.
    template <int ROWS>
    __device__ __forceinline__ void add_to_stream(const Place& me, const float (&sums)[WARPS][ROWS], const float* norm,
                                                  size_t operand, size_t squares, float* to, bool may_stop) {
        constexpr int BUSY_WARPS = ceil_div(Output::BLOCK_PAIRS, 32);
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + me.thread;
        float square = 0;
        if (me.thread < Output::BLOCK_PAIRS && pair < Output::PAIRS) {
            float2 weight = *reinterpret_cast<const float2*>(norm + 2 * pair);
            int at = me.thread / 8 * 16 + me.thread % 8;
            x0 += row_sum(sums, at);
            x1 += row_sum(sums, at + 8);
            put(words + operand + operand_word(2 * pair), pack(x0 * weight.x, x1 * weight.y), tag);
            square = x0 * x0 + x1 * x1;
            if (to) to[2 * pair] = x0, to[2 * pair + 1] = x1;
        }
        if (me.warp < BUSY_WARPS) square = warp_sum(square);
        if (BUSY_WARPS > 1) {
            if (me.lane == 0) shared.best[me.warp] = square;
            __syncthreads();
            if (me.thread == 0) {
                for (int w = 1; w < BUSY_WARPS; w++) square += shared.best[w];
            }
        }
        if (me.thread == 0) {
            if (may_stop && blockIdx.x == 0 && device_time_ns() > abort_ns) square = -1.f;
            put(words + squares + blockIdx.x, __float_as_uint(square), tag);
        }
    }

    __device__ __forceinline__ void output() {
        const Place me;
        {
            u32 b[Output::WARP_STEPS][2];
            take_operand<Output>(words + Words::ATTENDED, tag, me.warp, me.lane, b);
            products<Output>(ring, b, shared.sums_a[me.warp]);
        }
        __syncthreads();
        add_to_stream(me, shared.sums_a, norms() + HIDDEN, Words::MLP_INPUT, Words::MLP_SQUARES, trace(Trace::MIDDLE), false);
    }

    // Norm, gate and up, SiLU.
    __device__ __forceinline__ void gate_up() {
        const Place me;
        {
            u32 b[GateUp::WARP_STEPS][2];
            take_operand<GateUp>(words + Words::MLP_INPUT, tag, me.warp, me.lane, b);
            products<GateUp>(ring, b, shared.sums_b[me.warp]);
        }
        if (me.warp == 0) {
            float scale = take_scale(words + Words::MLP_SQUARES, tag, me.lane);
            if (me.lane == 0) shared.scale[1] = scale;
        }
        __syncthreads();
        const float scale = shared.scale[1];
#pragma unroll 1
        for (int i = me.thread; i < ceil_div(GateUp::BLOCK_PAIRS, 32) * 32; i += THREADS) {
            const int j = blockIdx.x * GateUp::BLOCK_PAIRS + i;
            const bool is_mine = i < GateUp::BLOCK_PAIRS && j < INTERMEDIATE;
            float h = 0;
            if (is_mine) {
                const float gate = row_sum(shared.sums_b, i / 8 * 16 + i % 8) * scale;
                const float up = row_sum(shared.sums_b, i / 8 * 16 + 8 + i % 8) * scale;
                h = gate / (1.f + __expf(-gate)) * up;
                if (float* to = trace(Trace::GATED + j)) *to = h;
            }
            const float near = __shfl_down_sync(~0u, h, 1);
            if (is_mine && i % 2 == 0) put(words + Words::GATED + operand_word(j), pack(h, near), tag);
        }
    }

    // Down projection and residual; the operand is asked for a segment ahead of its weights.
    __device__ __forceinline__ void down() {
        const Place me;
        constexpr int STEPS = Down::SEGMENT_STEPS;
        constexpr bool EXACT = Down::K_STEPS == WARPS * Down::SEGMENTS * STEPS;
        const int base = me.warp * Down::WARP_STEPS, end = min(base + Down::WARP_STEPS, Down::K_STEPS);
        u32 ahead[STEPS][2];
        bool is_whole = peek_operand<STEPS, EXACT>(words + Words::GATED, base, end, tag, me.lane, ahead);
#pragma unroll 1
        for (int tile = 0; tile < Down::TILES; tile++) {
            const int pairs = Down::TILES == 1 ? Down::LAST_PAIRS : Down::tile_pairs(tile);
            float c[2][4] = {};
#pragma unroll 1
            for (int segment = 0; segment < Down::SEGMENTS; segment++) {
                const int first = base + segment * STEPS;
                Watchdog dog;
                while (!is_whole) {
                    dog.spin();
                    is_whole = peek_operand<STEPS, EXACT>(words + Words::GATED, first, end, tag, me.lane, ahead);
                }
                __syncwarp();
                u32 b[STEPS][2];
#pragma unroll
                for (int s = 0; s < STEPS; s++) b[s][0] = ahead[s][0], b[s][1] = ahead[s][1];
                const int next = base + (segment + 1 < Down::SEGMENTS ? (segment + 1) * STEPS : 0);
                is_whole = peek_operand<STEPS, EXACT>(words + Words::GATED, next, end, tag, me.lane, ahead);
                const char* stage = ring.wait();
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    mma(c[s % 2], load_fragment(stage, pairs * 64, s, me.lane, pairs), b[s][0], b[s][1]);
                }
                ring.release();
            }
            if (me.t == 0) {
                shared.sums_a[me.warp][tile * 16 + me.g] = c[0][0] + c[1][0];
                shared.sums_a[me.warp][tile * 16 + 8 + me.g] = c[0][2] + c[1][2];
            }
        }
        __syncthreads();
        add_to_stream(me, shared.sums_a, norms() + 2 * HIDDEN, Words::LAYER_INPUT, Words::LAYER_SQUARES, trace(Trace::OUT), true);
    }

    // Final norm, head over the action rows, argmax (ties to the lowest row). False if the pass was stopped.
    __device__ __forceinline__ bool head() {
        const Place me;
        {
            u32 b[Head::WARP_STEPS][2];
            take_operand<Head>(words + Words::LAYER_INPUT, tag - 1, me.warp, me.lane, b);
            products<Head>(ring, b, shared.sums_b[me.warp]);
        }
        if (me.warp == 0) {
            float scale = take_scale(words + Words::LAYER_SQUARES, tag - 1, me.lane);
            if (me.lane == 0) shared.scale[0] = scale;
        }
        __syncthreads();
        const float scale = shared.scale[0];
        if (scale < 0) return false;
        const int i = blockIdx.x * Head::BLOCK_PAIRS + me.thread;
        if (me.thread < Head::BLOCK_PAIRS && i < Head::PAIRS) {
            int at = me.thread / 8 * 16 + me.thread % 8;
            float y0 = row_sum(shared.sums_b, at) * scale, y1 = row_sum(shared.sums_b, at + 8) * scale;
            put2(words + Words::LOGITS + 2 * i, __float_as_uint(y0), __float_as_uint(y1), tag);
        }
        const float logit = __uint_as_float(take(words + Words::LOGITS + me.thread, tag));
        __syncwarp();
        float best = logit;
        int best_row = me.thread;
#pragma unroll
        for (int d = 1; d < 32; d *= 2) {
            float other = __shfl_xor_sync(~0u, best, d);
            int other_row = __shfl_xor_sync(~0u, best_row, d);
            if (other > best || (other == best && other_row < best_row)) best = other, best_row = other_row;
        }
        if (me.lane == 0) shared.best[me.warp] = best, shared.best_row[me.warp] = best_row;
        __syncthreads();
        best = shared.best[0];
        best_row = shared.best_row[0];
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            if (shared.best[w] > best) best = shared.best[w], best_row = shared.best_row[w];
        }
        row = 1 + best_row;
        if (blockIdx.x == 0) report(me, logit, best, best_row);
        return true;
    }

    // Probability of the best action and entropy in nats of the softmax over the action rows.
    __device__ __forceinline__ void report(const Place& me, float logit, float best, int best_row) {
        float e = __expf(logit - best), weighted = e * (logit - best);
        e = warp_sum(e);
        weighted = warp_sum(weighted);
        if (me.lane == 0) shared.combined[me.warp][0] = make_float4(e, weighted, 0, 0);
        if (p.logits_trace) p.logits_trace[step * ACTION_ROWS + me.thread] = logit;
        __syncthreads();
        if (me.thread != 0) return;
        float sum = 0, mean = 0;
        for (int w = 0; w < WARPS; w++) sum += shared.combined[w][0].x, mean += shared.combined[w][0].y;
        p.result->actions[step] = best_row;
        p.result->top_probability[step] = 1.f / sum;
        p.result->entropy[step] = logf(sum) - mean / sum;
        p.result->step_ended_ns[step] = device_time_ns();
        p.result->steps_done = step + 1;
    }

    __device__ __forceinline__ void mark(int phase) const {
        if (p.marks && step == 1 && threadIdx.x == 0) {
            p.marks[(blockIdx.x * LAYERS + layer) * MARKS + phase] = device_time_ns();
        }
    }

    __device__ __forceinline__ bool run_step() {
        rank = first_rank + step;
        begin_step();
#pragma unroll 1
        for (layer = 0; layer < LAYERS; layer++) {
            tag++;
            mark(0);
            if (!qkv()) return false;
            mark(1);
            attention();
            mark(2);
            combination();
            mark(3);
            output();
            mark(4);
            gate_up();
            mark(5);
            down();
            mark(6);
        }
        tag++;
        return head();
    }
};

extern "C" __device__ const u64 SHARED_BYTES = WARPS * SLOTS * STAGE_BYTES + sizeof(Shared);

extern "C" __global__ void __launch_bounds__(THREADS, 1) decode(const __grid_constant__ Arguments p) {
    extern __shared__ __align__(128) char memory[];
    const Command* command = p.command;
    const int n_steps = command->n_steps;
    if (command->is_void || command->is_aborted || n_steps == 0) return;

    Decoder decoder{p, *reinterpret_cast<Shared*>(memory + WARPS * SLOTS * STAGE_BYTES)};
    decoder.words = p.words;
    decoder.abort_ns = command->abort_ns;
    decoder.tag = command->epoch;
    decoder.first_rank = command->n_context + command->n_tokens;
    decoder.n_chunks = min((decoder.first_rank + MAX_STEPS + CHUNK - 1) / CHUNK, CHUNKS);
    decoder.row = 0;
    decoder.x0 = decoder.x1 = 0;
    const int warp = threadIdx.x / 32;
    decoder.ring.source = {p.weights, p.ranked, decoder.n_chunks, n_steps, 0, 0, 0};
    decoder.ring.init(memory + warp * SLOTS * STAGE_BYTES, decoder.shared.barriers[warp]);

    bool is_stopped = false;
#pragma unroll 1
    for (decoder.step = 0; decoder.step < n_steps && !is_stopped; decoder.step++) is_stopped = !decoder.run_step();
    decoder.ring.drain();
    if (is_stopped && blockIdx.x == 0 && threadIdx.x == 0) p.result->is_aborted = p.command->is_aborted = 1;
}
