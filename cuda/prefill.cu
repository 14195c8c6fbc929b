// One block of up to 32 tokens (a frame's patches, or a piece of the prompt) through all layers, one persistent
// launch. It leaves keys and values in the tokens' slots and at their ranks; nothing else is needed afterwards,
// so the last layer ends with its keys and values.
//
// Shapes: 32 tokens; stream float32 in registers, operands bf16, KV bf16, accumulation float32.
// Geometry: GRID blocks x 256 threads, launched cooperatively; rows and weight stages as in decode.cu, each
//   16 x 16 fragment times four 8-token columns.
// Bound by: device memory for the weights; then L2 for the activations that every block reads, most of all the
//   down projection's 32 x INTERMEDIATE. Blocks meet at a barrier six times a layer while the ring runs ahead.
// Attention: causal within the block, over all ranks before it. A split of 64 ranks belongs to one block, each
//   warp takes some of the group's queries, and splits are combined in a fixed order.
#define READ_ANEW
#define RING_SLOTS (SLOTS - 2)   // the rest of shared memory holds sums
#include "device.cuh"
#include "workspace.cuh"

constexpr int SUM_STRIDE = FRAME_TOKENS + 4;                     // keeps the eight pairs of a warp in different banks
constexpr int QUERIES = GROUP * FRAME_TOKENS;                    // of one KV head
constexpr int QUERY_TILES = ceil_div(QUERIES / 8, WARPS);        // of 8 queries, a warp
constexpr int ROUND_QUERIES = min_of(4, ceil_div(KV_HEADS * QUERIES, GRID));                                 // combined between two barriers

// The warp's ring, fed with the patch embedding and the layers in the order in which they are read. A split that
// holds this block's own keys and values is not asked for before they are there.
struct PrefillRing : Ring {
    const Program<Vision>& program;
    const Arguments& p;
    int n_context, full_layers;
    int open_layer = 0;               // layers below it have their new keys and values at their ranks
    int layer, next;                  // layer -1: the patch embedding

    __device__ __forceinline__ PrefillRing(char* slots_, u64* barriers_, const Program<Vision>& program_, const Arguments& p_,
                                           int n_context_, int full_layers_, bool is_frame)
        : Ring(slots_, barriers_), program(program_), p(p_), n_context(n_context_), full_layers(full_layers_) {
        layer = is_frame ? -1 : 0;
        next = is_frame ? program.n_layer : 0;
    }

    __device__ __forceinline__ bool is_new(const Stage& stage) const {
        const int chunk = (blockIdx.x + (next - program.ranked_at) / 2 * GRID) / KV_HEADS;
        return stage.is_ranked && (chunk + 1) * CHUNK > n_context;
    }

    __device__ __forceinline__ void fill() {
#pragma unroll 1
        while (head - tail < RING_SLOTS && layer < LAYERS) {
            const Stage stage = program.stages[next];
            if (layer >= full_layers && next == program.ranked_at) return;
            if (layer >= open_layer && is_new(stage)) return;
            const char* base = layer < 0          ? p.vision
                               : stage.is_ranked ? p.ranked + layer * RANKED_LAYER_BYTES
                                                  : p.weights + layer * LAYER_BYTES;
            ask(base + stage.offset + threadIdx.x / 32 * stage.bytes, stage.bytes);
            if (++next == (layer < 0 ? program.n_all : program.n_layer)) {
                next = 0;
                layer++;
            }
        }
    }

    __device__ __forceinline__ void release() {
        __syncwarp();
        tail++;
        fill();
    }
};

struct Shared {
    Program<Vision> program;
    u64 barriers[WARPS][RING_SLOTS];
    alignas(16) float sums[2][WARPS][16][SUM_STRIDE];   // of the tile in hand, and of the one before
    float parts[WARPS][FRAME_TOKENS];
    float scale[FRAME_TOKENS];
};
static_assert(sizeof(Shared::sums) >= sizeof(float) * ROUND_QUERIES * (CHUNKS + WARPS * HEAD_DIM), "combination uses `sums`");

// Place of rows k, k + 1 (k even) of a token in an operand of 32 tokens, in bytes.
__device__ __forceinline__ int operand_place(int k, int token) {
    return k / 16 * 1024 + token / 16 * 512 + (token % 8 * 4 + k % 8 / 2) * 16 + token / 8 % 2 * 8 + k % 16 / 8 * 4;
}

// The warp's k-steps of an operand, four 8-token columns each; those from `end` on are zero.
template <int STEPS, bool EXACT>
__device__ __forceinline__ void load_operand(const char* operand, int first, int end, int lane, u32 (&b)[STEPS][4][2]) {
    const uint4* at = reinterpret_cast<const uint4*>(operand) + size_t(first) * 64 + lane;
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint4 v = make_uint4(0, 0, 0, 0);
            if (EXACT || first + s < end) v = __ldcg(at + s * 64 + half * 32);
            b[s][2 * half][0] = v.x;
            b[s][2 * half][1] = v.y;
            b[s][2 * half + 1][0] = v.z;
            b[s][2 * half + 1][1] = v.w;
        }
    }
}
template <class M>
__device__ __forceinline__ void load_whole_operand(const char* operand, const Place& me, u32 (&b)[M::WARP_STEPS][4][2]) {
    constexpr bool EXACT = M::K_STEPS == WARPS * M::WARP_STEPS;
    load_operand<M::WARP_STEPS, EXACT>(operand, me.warp * M::WARP_STEPS, M::K_STEPS, me.lane, b);
}

struct Prefiller {
    const Arguments& p;
    Shared& shared;
    PrefillRing ring;
    int n_context, n_tokens, n_chunks, layer;
    u32 tag;
    int buffer;
    float x0[Output::TILES], x1[Output::TILES];   // stream of pair thread % 8 of each tile, token thread / 8

    __device__ __forceinline__ void meet() { grid_barrier(reinterpret_cast<u32*>(p.prefill + Prefill::FLAGS), ++tag); }

    __device__ __forceinline__ float* trace(int token, int part) const {
        return IS_TRACED && p.prefill_trace ? p.prefill_trace + (size_t(token) * LAYERS + layer) * Trace::SIZE + part : nullptr;
    }

    // The warp's sums of one tile over its k-steps, to shared memory.
    __device__ __forceinline__ void leave_sums(const Place& me, const float (&c)[4][4]) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            *reinterpret_cast<float2*>(&shared.sums[buffer][me.warp][me.g][n * 8 + 2 * me.t]) = make_float2(c[n][0], c[n][1]);
            *reinterpret_cast<float2*>(&shared.sums[buffer][me.warp][8 + me.g][n * 8 + 2 * me.t]) = make_float2(c[n][2], c[n][3]);
        }
    }
    __device__ __forceinline__ float row_sum(int row, int token) const {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared.sums[buffer][w][row][token];
        return sum;
    }

    // Products of the block's rows with an operand in registers, tile by tile; `finish(tile, pairs)` takes
    // each tile's sums.
    template <class M, class Finish>
    __device__ __forceinline__ void products(const Place& me, const char* operand, int tiles, int last_pairs, Finish finish) {
        u32 b[M::WARP_STEPS][4][2];
        load_whole_operand<M>(operand, me, b);
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int pairs = tile + 1 == tiles ? last_pairs : 8;
            float c[4][4] = {};
#pragma unroll
            for (int segment = 0; segment < M::SEGMENTS; segment++) {
                const char* stage = ring.wait();
#pragma unroll
                for (int s = 0; s < M::SEGMENT_STEPS; s++) {
                    const int k = segment * M::SEGMENT_STEPS + s;
                    if (k >= M::WARP_STEPS) continue;
                    const uint4 a = load_fragment(stage, pairs * 64, s, me.lane, pairs);
#pragma unroll
                    for (int n = 0; n < 4; n++) mma(c[n], a, b[k][n][0], b[k][n][1]);
                }
                ring.release();
            }
            buffer ^= 1;
            leave_sums(me, c);
            __syncthreads();
            finish(tile, pairs);
        }
    }

    // Passes the stream on: the next norm's operand, and the block's part of each token's sum of squares.
    __device__ __forceinline__ void pass_on(const float* norm, size_t operand, size_t squares) {
        const Place me;
        const int i = me.thread % 8, token = me.thread / 8;
        float square = 0;
#pragma unroll
        for (int tile = 0; tile < Output::TILES; tile++) {
            const int pair = blockIdx.x * Output::BLOCK_PAIRS + tile * 8 + i;
            if (i < Output::tile_pairs(tile) && pair < Output::PAIRS) {
                const float2 weight = *reinterpret_cast<const float2*>(norm + 2 * pair);
                *reinterpret_cast<u32*>(p.prefill + operand + operand_place(2 * pair, token)) =
                    pack(x0[tile] * weight.x, x1[tile] * weight.y);
                square += x0[tile] * x0[tile] + x1[tile] * x1[tile];
            }
        }
#pragma unroll
        for (int d = 1; d < 8; d *= 2) square += __shfl_xor_sync(~0u, square, d);
        if (i == 0) reinterpret_cast<float*>(p.prefill + squares)[blockIdx.x * FRAME_TOKENS + token] = square;
    }

    // 1 / RMS of every token's stream, to shared.scale.
    __device__ __forceinline__ void take_scales(size_t squares) {
        const Place me;
        const float* from = reinterpret_cast<const float*>(p.prefill + squares) + me.lane;
        float sum = 0;
#pragma unroll 4
        for (int block = me.warp; block < GRID; block += WARPS) sum += __ldcg(from + block * FRAME_TOKENS);
        shared.parts[me.warp][me.lane] = sum;
        __syncthreads();
        if (me.warp == 0) {
            sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += shared.parts[w][me.lane];
            shared.scale[me.lane] = rsqrtf(sum * (1.f / HIDDEN) + RMS_EPS);
        }
        __syncthreads();
    }

    // The stream begins with the frame's patch embeddings: pixels enter as odd integers 2 x - 255, exact in bf16.
    __device__ __forceinline__ void embed_frame() {
        const Place me;
        const int i = me.thread % 8, token = me.thread / 8;
        products<Vision>(me, p.prefill + Prefill::PIXELS, Vision::TILES, Vision::LAST_PAIRS, [&](int tile, int pairs) {
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
            __syncthreads();
            const int row = blockIdx.x * Vision::BLOCK_PAIRS * 2 + tile * 16 + me.thread;
            if (me.thread < 2 * pairs && row < HIDDEN) {
                float sum = 0;
#pragma unroll
                for (int w = 0; w < WARPS; w++) sum += shared.parts[w][me.thread];
                p.result->embedding[row] = sum * (1.f / FRAME_TOKENS);
            }
        });
    }

    __device__ __forceinline__ void embed_prompt() {
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

    // Queries, keys and values with bias. Keys go to their slots as they are, and rotated to their ranks.
    __device__ __forceinline__ void finish_qkv(int tile, int pairs) {
        const Place me;
        const int i = me.thread % 8, token = me.thread / 8;
        const int rank = min(n_context + token, N_SLOTS - 1);
        {
            const int pair = blockIdx.x * Qkv::BLOCK_PAIRS + tile * 8 + i;
            const bool is_mine = i < pairs && pair < Qkv::PAIRS;
            const int head = pair / HALF_DIM, d = pair % HALF_DIM, upper = head * HEAD_DIM + d;
            float y0 = 0, y1 = 0;
            float2 turn = make_float2(1, 0);
            if (is_mine) {
                const float scale = shared.scale[token];
                y0 = row_sum(i, token) * scale + p.qkv_bias[layer * QKV_ROWS + upper];
                y1 = row_sum(i + 8, token) * scale + p.qkv_bias[layer * QKV_ROWS + upper + HALF_DIM];
                if (float* to = trace(token, Trace::QKV + upper)) to[0] = y0, to[HALF_DIM] = y1;
                if (head < Q_HEADS + KV_HEADS) turn = p.rope[rank * HALF_DIM + d];
            }
            if (head >= Q_HEADS) {
                y0 = rounded(y0);
                y1 = rounded(y1);
            }
            const float2 z = turned(y0, y1, turn);
            // Even threads store dimensions d, d + 1; odd ones the same of the upper half.
            const bool is_odd = i % 2;
            const float send_y = is_odd ? y0 : y1, send_z = is_odd ? z.x : z.y;
            const float near_y = __shfl_xor_sync(~0u, send_y, 1), near_z = __shfl_xor_sync(~0u, send_z, 1);
            const u32 plain = is_odd ? pack(near_y, y1) : pack(y0, near_y);
            const u32 rotated = is_odd ? pack(near_z, z.y) : pack(z.x, near_z);
            if (!is_mine || token >= n_tokens) return;
            const int dim = is_odd ? d - 1 + HALF_DIM : d;
            if (head < Q_HEADS) {
                const int tile_of_query = (head / GROUP * GROUP + head % GROUP) * 4 + token / 8, step = dim / 16;
                const int at = (tile_of_query * (HEAD_DIM / 32) + step / 2) * 512 + (token % 8 * 4 + dim % 8 / 2) * 16;
                *reinterpret_cast<u32*>(p.prefill + Prefill::QUERY + at + step % 2 * 8 + dim % 16 / 8 * 4) = rotated;
                return;
            }
            const int which = head - Q_HEADS, is_value = which >= KV_HEADS, kv_head = which - is_value * KV_HEADS;
            const int slot = p.command->token_slots[token], chunk = rank / CHUNK, r = rank % CHUNK;
            const size_t row = (size_t(layer) * N_SLOTS + slot) * KV_HEADS + kv_head;
            *reinterpret_cast<u32*>(p.cache + (row * 2 + is_value) * HEAD_DIM + dim) = plain;
            char* split = p.ranked + split_offset(layer, chunk, kv_head);
            if (is_value) {
                *reinterpret_cast<uint16_t*>(split + value_offset(r, dim)) = plain & 0xffff;
                *reinterpret_cast<uint16_t*>(split + value_offset(r, dim + 1)) = plain >> 16;
            } else {
                *reinterpret_cast<u32*>(split + key_offset(r, dim)) = rotated;
            }
        }
    }

    // All queries of a KV head over one split; a warp takes QUERY_TILES columns of 8 queries.
    __device__ __forceinline__ void attend(int chunk, int kv_head) {
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
        __syncthreads();   // every warp reads every warp's share
        keys -= me.warp * (RING_SLOTS * STAGE_BYTES);
        values -= me.warp * (RING_SLOTS * STAGE_BYTES);

        float s[CHUNK / 16][QUERY_TILES][4] = {};
#pragma unroll
        for (int m = 0; m < CHUNK / 16; m++) {
#pragma unroll
            for (int k = 0; k < STEPS; k++) {
                const int fragment = m * STEPS + k;
                const uint4 a = load_fragment(keys + fragment / KV_FRAGMENTS * (RING_SLOTS * STAGE_BYTES), 512,
                                              fragment % KV_FRAGMENTS, me.lane, 8);
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
                const uint4 a = load_fragment(values + fragment / KV_FRAGMENTS * (RING_SLOTS * STAGE_BYTES),
                                              512, fragment % KV_FRAGMENTS, me.lane, 8);
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
        __syncthreads();   // nobody reads these shares any more
        ring.release();
        ring.release();
    }

    __device__ __forceinline__ void attention() {
        // This layer's keys and values are at their ranks: splits that hold them can be read now.
        ring.open_layer = layer + 1;
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.proxy.async;" ::: "memory");
#endif
        ring.fill();
#pragma unroll 1
        for (int u = 0; u < KV_UNITS; u++) {
            const int unit = blockIdx.x + u * GRID, chunk = unit / KV_HEADS;
            if (chunk >= n_chunks) break;
            attend(chunk, unit % KV_HEADS);
        }
    }

    // Combination of the splits: a block takes some queries. Every warp weighs the splits of a round's queries,
    // then warps share the splits and lanes the dimensions.
    __device__ __forceinline__ void combination() {
        const Place me;
        constexpr int SPLITS = ceil_div(CHUNKS, WARPS), WORDS = ceil_div(HALF_DIM, 32);
        float(*weights)[CHUNKS] = reinterpret_cast<float(*)[CHUNKS]>(&shared.sums[0][0][0][0]);
        float(*parts)[WARPS][HEAD_DIM] = reinterpret_cast<float(*)[WARPS][HEAD_DIM]>(&shared.sums[0][0][0][0] + ROUND_QUERIES * CHUNKS);
#pragma unroll 1
        for (int begin = blockIdx.x; begin < KV_HEADS * QUERIES; begin += ROUND_QUERIES * GRID) {
            if (me.warp < ROUND_QUERIES) {
                const int index = min(begin + me.warp * GRID, KV_HEADS * QUERIES - 1);
                const float2* stats = reinterpret_cast<const float2*>(p.prefill + Prefill::PARTIAL_SUM) +
                                      index;
                constexpr int N = ceil_div(CHUNKS, 32);
                float2 stat[N];
                float most = LOWEST, sum = 0;
#pragma unroll
                for (int i = 0; i < N; i++) {
                    const int chunk = i * 32 + me.lane;
                    stat[i] = chunk < n_chunks ? __ldcg(stats + chunk * KV_HEADS * QUERIES) : make_float2(LOWEST, 0);
                }
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
            __syncthreads();
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
            __syncthreads();
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
            __syncthreads();
        }
    }

    __device__ __forceinline__ void add_tile(int tile, int pairs, int part) {
        const Place me;
        const int i = me.thread % 8, token = me.thread / 8;
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + tile * 8 + i;
        if (i >= pairs || pair >= Output::PAIRS) return;
        const float y0 = row_sum(i, token), y1 = row_sum(i + 8, token);
#pragma unroll
        for (int at = 0; at < Output::TILES; at++) {
            if (at != tile) continue;
            x0[at] += y0;
            x1[at] += y1;
            if (float* to = trace(token, part + 2 * pair)) to[0] = x0[at], to[1] = x1[at];
        }
    }

    // SiLU(gate) x up.
    __device__ __forceinline__ void finish_gate_up(int tile, int pairs) {
        const Place me;
        const int i = me.thread % 8, token = me.thread / 8;
        const int j = blockIdx.x * GateUp::BLOCK_PAIRS + tile * 8 + i;
        const bool is_mine = i < pairs && j < INTERMEDIATE;
        float h = 0;
        if (is_mine) {
            const float scale = shared.scale[token];
            const float gate = row_sum(i, token) * scale, up = row_sum(i + 8, token) * scale;
            h = __fdividef(gate, 1.f + __expf(-gate)) * up;
            if (float* to = trace(token, Trace::GATED + j)) *to = h;
        }
        const float near = __shfl_down_sync(~0u, h, 1);
        if (is_mine && i % 2 == 0) {
            *reinterpret_cast<u32*>(p.prefill + Prefill::GATED + operand_place(j, token)) = pack(h, near);
        }
    }

    __device__ __forceinline__ void down() {
        const Place me;
        constexpr int STEPS = Down::SEGMENT_STEPS;
        constexpr bool EXACT = Down::K_STEPS == WARPS * Down::SEGMENTS * STEPS;
        const int base = me.warp * Down::WARP_STEPS, end = min(base + Down::WARP_STEPS, Down::K_STEPS);
#pragma unroll 1
        for (int tile = 0; tile < Down::TILES; tile++) {
            const int pairs = Down::TILES == 1 ? Down::LAST_PAIRS : Down::tile_pairs(tile);
            float c[4][4] = {};
#pragma unroll 1
            for (int segment = 0; segment < Down::SEGMENTS; segment++) {
                u32 b[STEPS][4][2];
                load_operand<STEPS, EXACT>(p.prefill + Prefill::GATED, base + segment * STEPS, end, me.lane, b);
                const char* stage = ring.wait();
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const uint4 a = load_fragment(stage, pairs * 64, s, me.lane, pairs);
#pragma unroll
                    for (int n = 0; n < 4; n++) mma(c[n], a, b[s][n][0], b[s][n][1]);
                }
                ring.release();
            }
            buffer ^= 1;
            leave_sums(me, c);
            __syncthreads();
            add_tile(tile, pairs, Trace::OUT);
        }
    }

    __device__ __forceinline__ void mark(int phase) const {
        if (IS_TRACED && p.marks && threadIdx.x == 0) {
            p.marks[((GRID + blockIdx.x) * (LAYERS + 1) + layer) * MARKS + phase] = device_time_ns();
        }
    }

    // Block 0 tells all blocks, at their next meeting, to stop if what remains cannot end in time.
    __device__ __forceinline__ void look_at_time(int layers_left) const {
        if (blockIdx.x != 0 || threadIdx.x != 0) return;
        Command& command = *p.command;
        const u64 steps_ns = u64(command.n_steps) * LAYERS * command.decode_layer_ns;
        if (is_too_late(command.abort_ns - min(command.abort_ns, steps_ns), layers_left, command.prefill_layer_ns)) {
            command.is_aborted = 1;
        }
    }
    __device__ __forceinline__ bool is_stopped() const { return __ldcg(&p.command->is_aborted); }

    // All layers. False if the pass was stopped after one of them.
    __device__ __forceinline__ bool run(int full_layers) {
#pragma unroll 1
        for (layer = 0; layer < LAYERS; layer++) {
            const float* norms = p.norms + size_t(2 * layer) * HIDDEN;
            // Three projections by the same code: its instructions must stay in the cache.
#pragma unroll 1
            for (int phase = 0; phase < 3; phase++) {
                const Place me;
                mark(phase == 0 ? 0 : phase + 2);
                if (phase != 1) take_scales(phase == 0 ? Prefill::LAYER_SQUARES : Prefill::MLP_SQUARES);
                const size_t operand = phase == 0 ? Prefill::LAYER_INPUT : phase == 1 ? Prefill::ATTENDED : Prefill::MLP_INPUT;
                const int tiles = phase == 0 ? Qkv::TILES : phase == 1 ? Output::TILES : GateUp::TILES;
                const int last = phase == 0 ? Qkv::LAST_PAIRS : phase == 1 ? Output::LAST_PAIRS : GateUp::LAST_PAIRS;
                products<Qkv>(me, p.prefill + operand, tiles, last, [&](int tile, int pairs) {
                    if (phase == 0) {
                        finish_qkv(tile, pairs);
                    } else if (phase == 1) {
                        add_tile(tile, pairs, Trace::MIDDLE);
                    } else {
                        finish_gate_up(tile, pairs);
                    }
                });
                if (phase == 0) {
                    if (layer >= full_layers) return true;
                    meet();
                    mark(1);
                    attention();
                    meet();
                    mark(2);
                    combination();
                } else if (phase == 1) {
                    pass_on(norms + HIDDEN, Prefill::MLP_INPUT, Prefill::MLP_SQUARES);
                } else {
                    meet();
                    mark(5);
                    down();
                    pass_on(norms + 2 * HIDDEN, Prefill::LAYER_INPUT, Prefill::LAYER_SQUARES);
                    look_at_time(LAYERS - 1 - layer);
                }
                meet();
            }
            mark(6);
            if (is_stopped()) return false;
        }
        return true;
    }
};

extern "C" __device__ const u64 SHARED_BYTES = WARPS * RING_SLOTS * STAGE_BYTES + sizeof(Shared);

extern "C" __device__ const u64 BLOCK_THREADS = THREADS;

extern "C" __global__ void __launch_bounds__(THREADS, 1) prefill(const __grid_constant__ Arguments p) {
    extern __shared__ __align__(128) char memory[];
    const Command* command = p.command;
    if (command->is_void) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) p.result->prefill_began_ns = device_time_ns();

    Shared& shared = *reinterpret_cast<Shared*>(memory + WARPS * RING_SLOTS * STAGE_BYTES);
    const int n_context = command->n_context, n_tokens = command->n_tokens, warp = threadIdx.x / 32;
    const int n_chunks = ceil_div(n_context + n_tokens, CHUNK);
    const bool is_frame = command->is_frame;
    const int full_layers = IS_TRACED && p.prefill_trace ? LAYERS : LAYERS - 1;
    if (threadIdx.x == 0) shared.program.fill(n_chunks);
    __syncthreads();
    PrefillRing ring(memory + warp * RING_SLOTS * STAGE_BYTES, shared.barriers[warp], shared.program, p, n_context, full_layers, is_frame);
    ring.fill();
    Prefiller prefiller{p, shared, ring, n_context, n_tokens, n_chunks, 0, command->epoch, 0};

    if (blockIdx.x == 0) {   // what `ranked` holds from now on
        for (int rank = threadIdx.x; rank < N_SLOTS; rank += THREADS) {
            const int token = rank - n_context;
            p.ranked_slots[rank] = token < 0                     ? command->context_slots[rank]
                                   : token < n_tokens ? command->token_slots[token]
                                                                : -1;
        }
    }
    if (is_frame) {
        prefiller.embed_frame();
    } else {
        prefiller.embed_prompt();
    }
    prefiller.pass_on(p.norms, Prefill::LAYER_INPUT, Prefill::LAYER_SQUARES);
    prefiller.look_at_time(LAYERS);
    prefiller.meet();
    if (blockIdx.x == 0 && threadIdx.x == 0) p.result->embedded_ns = device_time_ns();

    const bool is_done = !prefiller.is_stopped() && prefiller.run(full_layers);
    prefiller.ring.drain();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (!is_done) {
            p.result->is_aborted = 1;
            p.result->stopped_ns = device_time_ns();
        }
        p.result->prefill_ended_ns = device_time_ns();
    }
}
