// Greedy decoding of up to 8 action tokens, one persistent launch for all steps and layers.
//
// Shapes: one token at a time; stream float32 [HIDDEN], operands bf16, KV bf16, accumulation float32.
// Geometry: GRID blocks (at most one a multiprocessor) x 256 threads and a ninth warp that feeds the weight ring,
//   launched cooperatively. Each block owns the same rows of every projection and, for attention, splits of 64 ranks
//   of one KV head.
// Bound by: device memory. A step reads every weight and every valid key and value once. The weight ring runs
//   ahead through the six exchanges of a layer (QKV, split attention, combination, output, gate/up, down), so
//   their latency costs nothing as long as they take less time than the ring takes to fill.
// Order of summation: k-steps within a warp (every fourth of a tile together, in down every fourth of each stage),
//   then warps 0..7; splits of 64 ranks at fixed ranks, combined in a fixed tree. Grid and stage bytes decide down's
//   stages, and nothing else of it. A token is column 0 of an n = 8 product: several in the others, the same bits.
#define READ_ANEW
#include "ring.cuh"
#include "words.cuh"
#include "workspace.cuh"

// Copies in flight in a block. Few delay the blocks' exchanges least: their words wait in the same queues. While
// the long projections are read there is little to exchange, and memory is kept as busy as it can be.
#ifndef STREAM_COPIES
#define STREAM_COPIES 2
#endif
#ifndef EXCHANGE_COPIES
#define EXCHANGE_COPIES 1
#endif


static_assert(EXCHANGE_COPIES <= STREAM_COPIES && STREAM_COPIES <= RING_SLOTS, "more copies in flight than places for them");

// The block's stages in the order of reading: for each step the layers, then the head.
struct Cursor {
    const Program<Head>& program;
    const Arguments& p;
    int steps_left, layer = 0, next = 0;

    __device__ __forceinline__ bool is_ended() const { return steps_left == 0; }
    __device__ __forceinline__ bool is_open() const { return true; }
    __device__ __forceinline__ void take(const char*& from, u32& bytes) {
        const Stage stage = program.stages[next];
        bytes = stage.bytes * WARPS;
        from = (stage.is_ranked ? p.ranked + layer * RANKED_LAYER_BYTES : p.weights + layer * LAYER_BYTES) + stage.offset;
        if (++next == (layer == LAYERS ? program.n_all : program.n_layer)) {
            next = 0;
            if (layer++ == LAYERS) {
                layer = 0;
                steps_left--;
            } else if (layer == LAYERS) {
                next = program.n_layer;
            }
        }
    }
};

constexpr int STEPS = Qkv::WARP_STEPS;     // k-steps of a warp in every projection but the last of a layer
constexpr int MOST_TILES = max_of(max_of(Qkv::TILES, GateUp::TILES), max_of(Output::TILES, max_of(Down::TILES, Head::TILES)));

struct Shared {
    Program<Head> program;
    u64 barriers[2 * RING_SLOTS];
    volatile int in_flight, stop;
    alignas(16) float sums[2][16 * MOST_TILES][WARPS];  // of the projection in hand, and of the one before
    alignas(16) uint2 operand[WARPS][max_of(STEPS, Down::WARP_STEPS) * 4];
    alignas(16) float scores[KV_UNITS > 1 ? 2 : 1][2][CHUNK][8];
    uint2 query[2][HEAD_DIM / 32][32];
    float4 combined[WARPS][8];
    float scale[2];
    float squares[WARPS];
    u32 best[WARPS], best_row[WARPS];
};

constexpr int N_SQUARES = ceil_div(GRID, 32);

__device__ __forceinline__ void peek_squares(const u64* from, int lane, u64 (&square)[N_SQUARES]) {
#pragma unroll
    for (int i = 0; i < N_SQUARES; i++) square[i] = peek(from + min(i * 32 + lane, GRID - 1));
}

__device__ __forceinline__ bool has_squares(const u64 (&square)[N_SQUARES], u32 tag) {
    u32 wrong = 0;
#pragma unroll
    for (int i = 0; i < N_SQUARES; i++) wrong |= u32(square[i] >> 32) ^ tag;
    return wrong == 0;
}

// 1 / RMS of the stream from the blocks' sums of squares, looked at before; -1 if block 0 stopped the pass.
// Asking again for those that were there already is safe: none is written before this block has put its next one.
__device__ __forceinline__ float take_scale(const u64* from, u32 tag, int lane, u64 (&square)[N_SQUARES]) {
    Watchdog dog;
    while (!has_squares(square, tag)) {
        peek_squares(from, lane, square);
        dog.spin();
    }
    __syncwarp();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N_SQUARES; i++) {
        if (GRID % 32 == 0 || i * 32 + lane < GRID) sum += __uint_as_float(u32(square[i]));
    }
    const bool is_stopped = __shfl_sync(~0u, __uint_as_float(u32(square[0])), 0) < 0;
    sum = warp_sum(sum);
    return is_stopped ? -1.f : rsqrtf(sum * (1.f / HIDDEN) + RMS_EPS);
}

// A projection with the operand in registers, as the common code of `project` sees it.
struct Projection {
    int operand, squares;      // words; squares < 0: the operand is not normed
    int tiles, last_pairs;
};

struct Decoder {
    const Arguments& p;
    Shared& shared;
    Ring ring;
    u64* words;
    u64 abort_ns;
    u32 layer_ns;       // what a layer takes at least
    int layers_left;    // of all steps
    float x0, x1;       // stream rows of the pair of threads < Output::BLOCK_PAIRS
    u32 tag;            // of this layer's words
    int first_rank;     // of the decoded tokens
    int n_chunks;
    int step, rank, layer;
    int row;            // of p.rows, this step's token: 0 is the action-start token
    int buffer;         // of shared.sums

    __device__ __forceinline__ float* trace(int part) const {
        return IS_TRACED && p.trace ? p.trace + (size_t(step) * LAYERS + layer) * Trace::SIZE + part : nullptr;
    }
    __device__ __forceinline__ float row_sum(int row) const {
        const float4* at = reinterpret_cast<const float4*>(shared.sums[buffer][row]);
        const float4 a = at[0], b = at[1];
        return ((((((a.x + a.y) + a.z) + a.w) + b.x) + b.y) + b.z) + b.w;
    }
    __device__ __forceinline__ void leave_sums(const Place& me, int tile, const float (&c)[4][4]) {
        if (me.t == 0) {
            shared.sums[buffer][tile * 16 + me.g][me.warp] = (c[0][0] + c[1][0]) + (c[2][0] + c[3][0]);
            shared.sums[buffer][tile * 16 + 8 + me.g][me.warp] = (c[0][2] + c[1][2]) + (c[2][2] + c[3][2]);
        }
    }

    // Products of the block's rows with an operand of HIDDEN rows: sums to shared.sums[buffer], 1 / RMS to
    // shared.scale[buffer]. The block has met when it returns.
    __device__ __forceinline__ void project(const Projection& which, u32 its_tag, bool is_long) {
        const Place me;
        buffer ^= 1;
        const bool takes_squares = me.warp == 0 && which.squares >= 0;
        u64 square[N_SQUARES] = {};
        // The first tile is taken to registers while other blocks are waited for: the ring runs so much further ahead.
        uint4 held[STEPS];
        {
            const int pairs = which.tiles == 1 ? which.last_pairs : 8;
#pragma unroll
            for (int segment = 0; segment < Qkv::SEGMENTS; segment++) {
                const char* stage = ring.wait() + me.warp * (Qkv::SEGMENT_STEPS * 64) * pairs;
#pragma unroll
                for (int s = 0; s < Qkv::SEGMENT_STEPS; s++) {
                    const int k = segment * Qkv::SEGMENT_STEPS + s;
                    if (k < STEPS) held[k] = load_fragment(stage, pairs * 64, s, me.lane, pairs);
                }
                ring.release();
            }
        }
        uint2* operand = shared.operand[me.warp];
        auto ask_squares = [&] {
            if (takes_squares) peek_squares(words + which.squares, me.lane, square);
        };
        take_operand<Qkv>(words + which.operand, its_tag, me.warp, me.lane, operand, ask_squares);
        // They are put right after the operand: those that just missed it come while it is multiplied.
        if (takes_squares && !has_squares(square, its_tag)) peek_squares(words + which.squares, me.lane, square);
        if (is_long && me.thread == 0) shared.in_flight = STREAM_COPIES;
        // All eight columns hold the token.
        uint2 b[STEPS];
#pragma unroll
        for (int s = 0; s < STEPS; s++) b[s] = operand[s * 4 + me.t];
        {
            float c[4][4] = {};
#pragma unroll
            for (int k = 0; k < STEPS; k++) mma(c[k % 4], held[k], b[k].x, b[k].y);
            leave_sums(me, 0, c);
        }
        if (takes_squares) {
            const float scale = take_scale(words + which.squares, its_tag, me.lane, square);
            if (me.lane == 0) shared.scale[buffer] = scale;
        }
#pragma unroll 1
        for (int tile = 1; tile < which.tiles; tile++) {
            const int pairs = tile + 1 == which.tiles ? which.last_pairs : 8;
            float c[4][4] = {};
#pragma unroll
            for (int segment = 0; segment < Qkv::SEGMENTS; segment++) {
                const char* stage = ring.wait() + me.warp * (Qkv::SEGMENT_STEPS * 64) * pairs;
#pragma unroll
                for (int s = 0; s < Qkv::SEGMENT_STEPS; s++) {
                    const int k = segment * Qkv::SEGMENT_STEPS + s;
                    if (k < STEPS) mma(c[k % 4], load_fragment(stage, pairs * 64, s, me.lane, pairs), b[k].x, b[k].y);
                }
                ring.release();
            }
            leave_sums(me, tile, c);
        }
        meet_workers();
    }

    // What `finish_qkv` adds and turns by: two biases, cosine and sine. Loaded before the wait for other blocks.
    __device__ __forceinline__ float4 qkv_constants() const {
        const Place me;
        const int i = min(blockIdx.x * Qkv::BLOCK_PAIRS + min(me.thread, Qkv::BLOCK_PAIRS - 1), Qkv::PAIRS - 1);
        const int head = i / HALF_DIM, d = i % HALF_DIM;
        const float* bias = p.qkv_bias + min(layer, LAYERS - 1) * QKV_ROWS + head * HEAD_DIM + d;
        const float2 turn = head < Q_HEADS + KV_HEADS ? p.rope[rank * HALF_DIM + d] : make_float2(1, 0);
        return make_float4(bias[0], bias[HALF_DIM], turn.x, turn.y);
    }

    // Norm weights of the thread's pair of the stream, for `pass_on`; likewise.
    __device__ __forceinline__ float2 norm_weights(const float* norm) const {
        const Place me;
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + min(me.thread, Output::BLOCK_PAIRS - 1);
        return reinterpret_cast<const float2*>(norm)[min(pair, Output::PAIRS - 1)];
    }

    // Queries, keys and values with bias; RoPE of the new token.
    __device__ __forceinline__ void finish_qkv(float scale, const float4& constants) {
        const Place me;
        if (me.warp >= ceil_div(Qkv::BLOCK_PAIRS, 32)) return;
        const int i = blockIdx.x * Qkv::BLOCK_PAIRS + me.thread;
        const bool is_mine = me.thread < Qkv::BLOCK_PAIRS && i < Qkv::PAIRS;
        const int head = i / HALF_DIM, d = i % HALF_DIM, upper = head * HEAD_DIM + d;
        float y0 = 0, y1 = 0;
        if (is_mine) {
            const int at = me.thread / 8 * 16 + me.thread % 8;
            y0 = row_sum(at) * scale + constants.x;
            y1 = row_sum(at + 8) * scale + constants.y;
            if (float* to = trace(Trace::QKV + upper)) to[0] = y0, to[HALF_DIM] = y1;
        }
        if (head >= Q_HEADS) {   // the cache holds bf16, and keys are rotated as they are read
            y0 = rounded(y0);
            y1 = rounded(y1);
        }
        const float2 z = turned(y0, y1, make_float2(constants.z, constants.w));
        // Even threads hold dimensions d, d + 1; odd ones the same of the upper half.
        const bool is_odd = me.thread % 2;
        const float near = __shfl_xor_sync(~0u, is_odd ? z.x : z.y, 1);
        if (!is_mine) return;
        const u32 word = is_odd ? pack(near, z.y) : pack(z.x, near);
        const int dim = is_odd ? d - 1 + HALF_DIM : d;
        size_t to;
        if (head < Q_HEADS) {
            int at = (head / GROUP * (HEAD_DIM / 16) + dim / 16) * 32 + head % GROUP * 4 + dim % 8 / 2;
            to = Words::QUERY + at * 2 + dim % 16 / 8;
        } else {
            int which = head - Q_HEADS, is_value = which >= KV_HEADS;
            to = Words::TOKEN_KV + (which - is_value * KV_HEADS) * HEAD_DIM + is_value * HALF_DIM + dim / 2;
        }
        put(words + to, word, tag);
    }

    // In decode_attention.cuh.
    __device__ __forceinline__ void attend(int chunk, int kv_head, float (&scores)[2][CHUNK][8]);
    __device__ __forceinline__ void attention();
    __device__ __forceinline__ void combine(int kv_head, int d);
    __device__ __forceinline__ void combination();

    // Whether the thread holds a pair of the stream.
    static __device__ __forceinline__ bool has_pair(const Place& me) {
        return me.thread < Output::BLOCK_PAIRS && blockIdx.x * Output::BLOCK_PAIRS + me.thread < Output::PAIRS;
    }

    // Whether what is left of the pass, these layers at least, cannot end in time, as thread 0 of block 0 sees it.
    __device__ __forceinline__ bool is_late(int left) const {
        return blockIdx.x == 0 && threadIdx.x == 0 && is_too_late(abort_ns, left, layer_ns);
    }

    // Passes the stream on: the next norm's operand, and the block's part of the sum of squares. Block 0 stops the
    // pass before a step or after a layer by a negative part: every block reads it at the same place.
    __device__ __forceinline__ void pass_on(const float2& weight, int operand, int squares, bool stops) {
        const Place me;
        constexpr int BUSY_WARPS = ceil_div(Output::BLOCK_PAIRS, 32);
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + me.thread;
        float square = 0;
        if (has_pair(me)) {
            put(words + operand + operand_word(2 * pair), pack(x0 * weight.x, x1 * weight.y), tag);
            square = two_products(x0, x0, x1, x1);
        }
        if (me.warp < BUSY_WARPS) {
#pragma unroll
            for (int d = 1; d < min_of(Output::BLOCK_PAIRS, 32); d *= 2) square += __shfl_xor_sync(~0u, square, d);
        }
        if (BUSY_WARPS > 1) {
            if (me.lane == 0) shared.squares[me.warp] = square;
            meet_workers();
            if (me.thread == 0) {
                for (int w = 1; w < BUSY_WARPS; w++) square += shared.squares[w];
            }
        }
        if (me.thread == 0) {
            put(words + squares + blockIdx.x, __float_as_uint(stops ? -1.f : square), tag);
        }
    }

    // Residual: the block's rows of the projection join the stream.
    __device__ __forceinline__ void add_to_stream(int part, const float2& weight, int operand, int squares, bool stops) {
        const Place me;
        const int pair = blockIdx.x * Output::BLOCK_PAIRS + me.thread;
        if (has_pair(me)) {
            const int at = me.thread / 8 * 16 + me.thread % 8;
            x0 += row_sum(at);
            x1 += row_sum(at + 8);
            if (float* to = trace(part + 2 * pair)) to[0] = x0, to[1] = x1;
        }
        pass_on(weight, operand, squares, stops);
    }

    // SiLU(gate) x up.
    __device__ __forceinline__ void finish_gate_up(float scale) {
        const Place me;
#pragma unroll 1
        for (int i = me.thread; i < ceil_div(GateUp::BLOCK_PAIRS, 32) * 32; i += THREADS) {
            const int j = blockIdx.x * GateUp::BLOCK_PAIRS + i;
            const bool is_mine = i < GateUp::BLOCK_PAIRS && j < INTERMEDIATE;
            float h = 0;
            if (is_mine) {
                const float gate = row_sum(i / 8 * 16 + i % 8) * scale;
                const float up = row_sum(i / 8 * 16 + 8 + i % 8) * scale;
                h = __fdividef(gate, 1.f + __expf(-gate)) * up;
                if (float* to = trace(Trace::GATED + j)) *to = h;
            }
            const float near = __shfl_down_sync(~0u, h, 1);
            if (is_mine && i % 2 == 0) put(words + Words::GATED + operand_word(j), pack(h, near), tag);
        }
    }

    __device__ __forceinline__ void down() {
        const Place me;
        buffer ^= 1;
        constexpr int STEPS = Down::SEGMENT_STEPS;
#if __CUDA_ARCH__ >= 900
        // Before the ring reads the newest token's keys and values in the next step. A fence takes long: here is time.
        constexpr int LAYER_STAGES = Qkv::STAGES + 2 + Output::STAGES + GateUp::STAGES + Down::STAGES;
        static_assert(LAYERS * LAYER_STAGES + Head::STAGES - RING_SLOTS >= 2 + Output::STAGES + GateUp::STAGES,
                      "the ring would read keys that are not fenced yet");
        const int newest = rank / CHUNK * KV_HEADS;
        if ((GRID + blockIdx.x - newest % GRID) % GRID < KV_HEADS) asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
        uint2* operand = shared.operand[me.warp];
        take_operand<Down>(words + Words::GATED, tag, me.warp, me.lane, operand, [] {});
#pragma unroll 1
        for (int tile = 0; tile < Down::TILES; tile++) {
            const int pairs = Down::TILES == 1 ? Down::LAST_PAIRS : Down::tile_pairs(tile);
            float c[4][4] = {};
#pragma unroll 1
            for (int segment = 0; segment < Down::SEGMENTS; segment++) {
                const uint2* from = operand + segment * STEPS * 4 + me.t;
                const char* stage = ring.wait() + me.warp * (STEPS * 64) * pairs;
#pragma unroll
                for (int s = 0; s < STEPS; s++) {
                    const bool is_real = Down::WARP_STEPS == Down::SEGMENTS * STEPS || segment * STEPS + s < Down::WARP_STEPS;
                    const uint2 b = is_real ? from[s * 4] : make_uint2(0, 0);
                    mma(c[s % 4], load_fragment(stage, pairs * 64, s, me.lane, pairs), b.x, b.y);
                }
                ring.release();
            }
            leave_sums(me, tile, c);
        }
        if (me.thread == 0) shared.in_flight = EXCHANGE_COPIES;
        meet_workers();
    }

    // Logits of the action rows to the host; the best (ties to the lowest row) is the next step's token.
    __device__ __forceinline__ void finish_head(float scale) {
        const Place me;
        const int i = blockIdx.x * Head::BLOCK_PAIRS + me.thread;
        if (me.thread < Head::BLOCK_PAIRS && i < Head::PAIRS) {
            const int at = me.thread / 8 * 16 + me.thread % 8;
            put2(words + Words::LOGITS + 2 * i, __float_as_uint(row_sum(at) * scale), __float_as_uint(row_sum(at + 8) * scale), tag);
        }
        const u32 bits = take(words + Words::LOGITS + me.thread, tag);
        __syncwarp();
        const u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;   // unsigned order of floats
        const u32 warp_best = __reduce_max_sync(~0u, order);
        const u32 warp_row = __reduce_min_sync(~0u, order == warp_best ? me.thread : ACTION_ROWS);
        if (me.lane == 0) shared.best[me.warp] = warp_best, shared.best_row[me.warp] = warp_row;
        meet_workers();
        const u32 other = shared.best[me.lane % WARPS], best = __reduce_max_sync(~0u, other);
        row = 1 + __reduce_min_sync(~0u, other == best ? shared.best_row[me.lane % WARPS] : ACTION_ROWS);
        if (blockIdx.x == 0) {
            p.result->logits[step][me.thread] = __uint_as_float(bits);
            if (me.thread == 0) {
                p.result->actions[step] = row - 1;
                p.result->step_ended_ns[step] = device_time_ns();
                p.result->steps_done = step + 1;
            }
        }
    }

    // Steps write the layers' words to two copies in turn, since the head waits for its rows' owners alone: a block
    // without any may read a step's last words when others begin the next. Whoever begins step s took all blocks' squares
    // in step s - 1, each put after its block ended step s - 2 and with it the reading of the copy that s writes.
    __device__ __forceinline__ int layer_input() const { return int(Words::LAYER_INPUT) + step % 2 * (HIDDEN / 2); }
    __device__ __forceinline__ int layer_squares() const { return int(Words::LAYER_SQUARES) + step % 2 * int(Words::SQUARES_SIZE); }

    // One token through all layers and the head. False if the pass was stopped.
    __device__ __forceinline__ bool run_step() {
        rank = first_rank + step;
        tag++;
        const float2 weight = norm_weights(p.norms);
        {
            const Place me;
            const int pair = blockIdx.x * Output::BLOCK_PAIRS + me.thread;
            if (has_pair(me)) {
                const u32 both = reinterpret_cast<const u32*>(p.rows + size_t(row) * HIDDEN)[pair];
                x0 = low_of(both);
                x1 = high_of(both);
            }
        }
        pass_on(weight, layer_input(), layer_squares(), is_late(layers_left));
#pragma unroll 1
        for (layer = 0;; layer++) {
            const float* norms = p.norms + size_t(2 * layer) * HIDDEN;
            const u32 before = tag++;
            // Three projections by the same code: its instructions must stay in the cache.
#pragma unroll 1
            for (int phase = 0; phase < 3; phase++) {
                Projection which;
                u32 its_tag = tag;
                if (phase == 0) {
                    which = {layer_input(), layer_squares(), Qkv::TILES, Qkv::LAST_PAIRS};
                    if (layer == LAYERS) which.tiles = Head::TILES, which.last_pairs = Head::LAST_PAIRS;
                    its_tag = before;
                } else if (phase == 1) {
                    which = {int(Words::ATTENDED), -1, Output::TILES, Output::LAST_PAIRS};
                } else {
                    which = {int(Words::MLP_INPUT), int(Words::MLP_SQUARES), GateUp::TILES, GateUp::LAST_PAIRS};
                }
                float4 constants = make_float4(0, 0, 0, 0);
                if (phase == 0) {
                    constants = qkv_constants();
                } else if (phase == 1) {
                    const float2 weight = norm_weights(norms + HIDDEN);
                    constants.x = weight.x;
                    constants.y = weight.y;
                }
                project(which, its_tag, phase == 2);
                const float scale = shared.scale[buffer];
                if (phase == 0) {
                    if (scale < 0) return false;
                    if (layer == LAYERS) {
                        finish_head(scale);
                        return true;
                    }
                    finish_qkv(scale, constants);
                    attention();
                    combination();
                } else if (phase == 1) {
                    add_to_stream(Trace::MIDDLE, make_float2(constants.x, constants.y), Words::MLP_INPUT, Words::MLP_SQUARES, false);
                } else {
                    finish_gate_up(scale);
                    const float2 weight = norm_weights(norms + 2 * HIDDEN);
                    // Looked at early: reading the time here delays no other block.
                    const bool stops = is_late(--layers_left);
                    down();
                    add_to_stream(Trace::OUT, weight, layer_input(), layer_squares(), stops);
                }
            }
        }
    }
};

#include "decode_attention.cuh"

extern "C" __device__ const u64 SHARED_BYTES = RING_SLOTS * Ring::BYTES + sizeof(Shared);
extern "C" __device__ const u64 BLOCK_THREADS = THREADS + 32;

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1) decode(const __grid_constant__ Arguments p) {
    extern __shared__ __align__(128) char memory[];
    const Command* command = p.command;
    const int n_steps = command->n_steps;
    if (command->is_void || command->is_aborted || n_steps == 0) return;

    Shared& shared = *reinterpret_cast<Shared*>(memory + RING_SLOTS * Ring::BYTES);
    const int first_rank = command->n_context + command->n_tokens;
    const int n_chunks = min((first_rank + MAX_STEPS + CHUNK - 1) / CHUNK, CHUNKS);
    Ring ring(memory, shared.barriers);
    if (threadIdx.x == 0) {
        ring.init();
        shared.stop = 0;
        shared.in_flight = STREAM_COPIES;
    }
    shared.program.fill(n_chunks);
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        Feeder<Cursor>(ring, {shared.program, p, n_steps}, shared.in_flight).run(shared.stop);
        return;
    }

    Decoder decoder{p, shared, ring, p.words, command->abort_ns, command->decode_layer_ns, n_steps * LAYERS,
                    0, 0, command->epoch, first_rank, n_chunks};
    decoder.row = decoder.buffer = 0;
    bool is_stopped = false;
#pragma unroll 1
    for (decoder.step = 0; decoder.step < n_steps && !is_stopped; decoder.step++) is_stopped = !decoder.run_step();
    if (is_stopped) {
        shared.stop = 1;
        if (blockIdx.x == 0 && threadIdx.x == 0) {
            p.result->is_aborted = p.command->is_aborted = 1;
            p.result->stopped_ns = device_time_ns();
        }
    }
}
