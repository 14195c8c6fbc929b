// One block of up to 32 tokens (a frame's patches, or a piece of the prompt) through all layers, one persistent
// launch. It leaves keys and values in the tokens' slots and at their ranks; nothing else is needed afterwards,
// so the last layer ends with its keys and values.
//
// Shapes: 32 tokens; stream float32 in registers, operands bf16, KV bf16, accumulation float32.
// Geometry: GRID blocks x 256 threads and (HAS_FEEDER) a ninth warp that feeds the weight ring, launched cooperatively;
//   rows and weight stages as in decode.cu, each 16 x 16 fragment times four 8-token columns.
// Bound by: device memory for the weights; then L2 for the activations that every block reads, most of all the
//   down projection's 32 x INTERMEDIATE. Blocks meet at a barrier six times a layer while the ring runs ahead.
// Attention: causal within the block, over all ranks before it. A split of 64 ranks belongs to one block, each
//   warp takes some of the group's queries, and splits are combined in a fixed order.
#define READ_ANEW
#define RING_SLOTS (SLOTS - 2)   // the rest of shared memory holds sums
#include "ring.cuh"
#include "workspace.cuh"

constexpr int COPIES = 2;                                        // in flight in a block
static_assert(COPIES <= RING_SLOTS, "attention reads two stages at once");

// Where a row has its columns, so that neither writing products nor adding rows meets twice in a bank.
__device__ __forceinline__ int sum_place(int row, int column) { return column ^ (row % 4 * 8) ^ (row / 4 % 2 * 4); }

constexpr int QUERIES = GROUP * FRAME_TOKENS;                    // of one KV head
constexpr int QUERY_TILES = ceil_div(QUERIES / 8, WARPS);        // of 8 queries, a warp
constexpr int ROUND_QUERIES = min_of(4, ceil_div(KV_HEADS * QUERIES, GRID));     // combined between two barriers

// A ninth warp feeds the ring where the registers suffice for three warps a quarter of a multiprocessor, as they do
// where copies are the engine's and operands are not too wide; else the first warp feeds it whenever it waits.
#if __CUDA_ARCH__ >= 900
constexpr bool HAS_FEEDER = 8 * Qkv::WARP_STEPS + 2 * Output::TILES <= 100 && QUERY_TILES <= 3;
#else
constexpr bool HAS_FEEDER = false;
#endif
constexpr int ALL_THREADS = THREADS + 32 * HAS_FEEDER;

#include "prefill_ring.cuh"

static_assert(sizeof(Shared::sums) >= sizeof(float) * ROUND_QUERIES * (CHUNKS + WARPS * HEAD_DIM), "combination uses `sums`");

// Place of rows k, k + 1 (k even) of a token in an operand of 32 tokens, in bytes.
__device__ __forceinline__ int operand_place(int k, int token) {
    return k / 16 * 1024 + token / 16 * 512 + (token % 8 * 4 + k % 8 / 2) * 16 + token / 8 % 2 * 8 + k % 16 / 8 * 4;
}

// A warp's k-steps of an operand, four 8-token columns each; those from `end` on are zero.
template <bool EXACT>
__device__ __forceinline__ void load_step(const char* operand, int step, int end, int lane, u32 (&b)[4][2]) {
    const uint4* at = reinterpret_cast<const uint4*>(operand) + size_t(step) * 64 + lane;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (EXACT || step < end) v = __ldcg(at + half * 32);
        b[2 * half][0] = v.x;
        b[2 * half][1] = v.y;
        b[2 * half + 1][0] = v.z;
        b[2 * half + 1][1] = v.w;
    }
}
template <int STEPS, bool EXACT>
__device__ __forceinline__ void load_operand(const char* operand, int first, int end, int lane, u32 (&b)[STEPS][4][2]) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) load_step<EXACT>(operand, first + s, end, lane, b[s]);
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

    __device__ __forceinline__ void meet() {
        ring.feed();
        grid_barrier(reinterpret_cast<u32*>(p.prefill + Prefill::FLAGS), ++tag);
    }

    __device__ __forceinline__ float* trace(int token, int part) const {
        return IS_TRACED && p.prefill_trace ? p.prefill_trace + (size_t(token) * LAYERS + layer) * Trace::SIZE + part : nullptr;
    }

    // The warp's sums of one tile over its k-steps, to shared memory.
    __device__ __forceinline__ void leave_sums(const Place& me, const float (&c)[4][4]) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            *reinterpret_cast<float2*>(&shared.sums[buffer][me.warp][me.g][sum_place(me.g, n * 8 + 2 * me.t)]) = make_float2(c[n][0], c[n][1]);
            *reinterpret_cast<float2*>(&shared.sums[buffer][me.warp][8 + me.g][sum_place(me.g, n * 8 + 2 * me.t)]) = make_float2(c[n][2], c[n][3]);
        }
    }
    __device__ __forceinline__ float row_sum(int row, int token) const {
        float sum = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += shared.sums[buffer][w][row][sum_place(row, token)];
        return sum;
    }

    // Products of the block's rows with an operand in registers, tile by tile; `finish(tile, pairs)` takes
    // each tile's sums.
    template <class M, class Finish>
    __device__ __forceinline__ void products(const Place& me, const char* operand, const char* squares, int tiles, int last_pairs, Finish finish) {
        u32 b[M::WARP_STEPS][4][2];
        constexpr int N = ceil_div(GRID, WARPS);
        float square[N], sum = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const int block = me.warp + i * WARPS;
            square[i] = GRID % WARPS == 0 || block < GRID ? __ldcg(reinterpret_cast<const float*>(squares) + block * FRAME_TOKENS + me.lane) : 0;
        }
        load_whole_operand<M>(operand, me, b);
#pragma unroll
        for (int i = 0; i < N; i++) sum += square[i];
        shared.parts[me.warp][me.lane] = sum;
        meet_workers();
        if (me.warp == 0) {
            sum = 0;
#pragma unroll
            for (int w = 0; w < WARPS; w++) sum += shared.parts[w][me.lane];
            shared.scale[me.lane] = rsqrtf(sum * (1.f / HIDDEN) + RMS_EPS);   // read after the next meeting
        }
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int pairs = tile + 1 == tiles ? last_pairs : 8;
            float c[4][4] = {};
#pragma unroll
            for (int segment = 0; segment < M::SEGMENTS; segment++) {
                const char* stage = ring.wait() + me.warp * (M::SEGMENT_STEPS * 64) * pairs;
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
            meet_workers();
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
                square += two_products(x0[tile], x0[tile], x1[tile], x1[tile]);
            }
        }
#pragma unroll
        for (int d = 1; d < 8; d *= 2) square += __shfl_xor_sync(~0u, square, d);
        if (i == 0) reinterpret_cast<float*>(p.prefill + squares)[blockIdx.x * FRAME_TOKENS + token] = square;
    }

    // In prefill_embedding.cuh.
    __device__ __forceinline__ void embed_frame();
    __device__ __forceinline__ void embed_prompt();

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

    // In prefill_attention.cuh.
    __device__ __forceinline__ void attend(int chunk, int kv_head);
    __device__ __forceinline__ void attention();
    __device__ __forceinline__ void combination();

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
    __device__ __forceinline__ bool run() {
#pragma unroll 1
        for (layer = 0; layer < LAYERS; layer++) {
            const float* norms = p.norms + size_t(2 * layer) * HIDDEN;
            // Three projections by the same code: its instructions must stay in the cache.
#pragma unroll 1
            for (int phase = 0; phase < 3; phase++) {
                const Place me;
                const size_t squares = phase == 2 ? Prefill::MLP_SQUARES : Prefill::LAYER_SQUARES;
                const size_t operand = phase == 0 ? Prefill::LAYER_INPUT : phase == 1 ? Prefill::ATTENDED : Prefill::MLP_INPUT;
                const int tiles = phase == 0 ? Qkv::TILES : phase == 1 ? Output::TILES : GateUp::TILES;
                const int last = phase == 0 ? Qkv::LAST_PAIRS : phase == 1 ? Output::LAST_PAIRS : GateUp::LAST_PAIRS;
                products<Qkv>(me, p.prefill + operand, p.prefill + squares, tiles, last, [&](int tile, int pairs) {
                    if (phase == 0) {
                        finish_qkv(tile, pairs);
                    } else if (phase == 1) {
                        add_tile(tile, pairs, Trace::MIDDLE);
                    } else {
                        finish_gate_up(tile, pairs);
                    }
                });
                if (phase == 0) {
                    if (layer >= full_layers(p)) return true;
                    meet();
                    attention();
                    meet();
                    combination();
                } else if (phase == 1) {
                    pass_on(norms + HIDDEN, Prefill::MLP_INPUT, Prefill::MLP_SQUARES);
                } else {
                    meet();
                    down();
                    pass_on(norms + 2 * HIDDEN, Prefill::LAYER_INPUT, Prefill::LAYER_SQUARES);
                    look_at_time(LAYERS - 1 - layer);
                }
                meet();
            }
            if (is_stopped()) return false;
        }
        return true;
    }
};

#include "prefill_attention.cuh"
#include "prefill_embedding.cuh"

extern "C" __device__ const u64 SHARED_BYTES = RING_SLOTS * Ring::BYTES + sizeof(Shared);
extern "C" __device__ const u64 BLOCK_THREADS = ALL_THREADS;

extern "C" __global__ void __launch_bounds__(ALL_THREADS, 1) prefill(const __grid_constant__ Arguments p) {
    extern __shared__ __align__(128) char memory[];
    const Command* command = p.command;
    if (command->is_void) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) p.result->prefill_began_ns = device_time_ns();

    Shared& shared = *reinterpret_cast<Shared*>(memory + RING_SLOTS * Ring::BYTES);
    const int n_context = command->n_context, n_tokens = command->n_tokens;
    const int n_chunks = ceil_div(n_context + n_tokens, CHUNK);
    const bool is_frame = command->is_frame;
    Ring ring(memory, shared.barriers);
    if (threadIdx.x == 0) {
        ring.init();
        shared.open_layer = shared.stop = 0;
        shared.fed_layer = is_frame ? -1 : 0;
        shared.n_fed = 0;
        shared.in_flight = COPIES;
    }
    shared.program.fill(n_chunks);
    if (threadIdx.x == 0) shared.fed_next = is_frame ? shared.program.n_layer : 0;
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        const Cursor cursor{shared.program, p, shared.open_layer, n_context, full_layers(p), shared.fed_layer, shared.fed_next};
        Feeder<Cursor>(ring, cursor, shared.in_flight).run(shared.stop);
        return;
    }
    Prefiller prefiller{p, shared, {ring, p, shared, n_context}, n_context, n_tokens, n_chunks, 0, command->epoch, 0};
    prefiller.ring.feed();

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

    const bool is_done = !prefiller.is_stopped() && prefiller.run();
    if (!is_done) shared.stop = 1;
    prefiller.ring.drain();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        if (!is_done) {
            p.result->is_aborted = 1;
            p.result->stopped_ns = device_time_ns();
        }
        p.result->prefill_ended_ns = device_time_ns();
    }
}
