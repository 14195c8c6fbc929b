// What is fixed when the kernels are compiled: the model's sizes, the grid, and how weights are laid out.
//
// The plan passes HIDDEN, INTERMEDIATE, LAYERS, Q_HEADS, KV_HEADS, HEAD_DIM, N_SLOTS, RMS_EPS, GRID (blocks of
// the persistent kernels, at most one a multiprocessor) STAGE_BYTES and
// SLOTS (a warp's weight ring: bytes of a stage, stages).
//
// Every projection is W (rows x K) times activations (K x tokens) by mma.m16n8k16: W is the 16 x 16 operand, so
// one token is a product with 7 idle columns and a frame is four such products, summed in the same order.
// Rows come in pairs: (gate j, up j), (dimension d, d + HEAD_DIM/2) of a head, or two neighbours. A block owns
// consecutive pairs in tiles of at most 8; its 8 warps split K, and their sums are added in warp order.
//
// Packed weights: [stage][block][warp][k-step][lane] 16 bytes, exactly what a lane feeds to mma: rows g, g + 8
// and columns 2t, 2t + 8 (+1) with g = lane / 4, t = lane % 4. A tile of p < 8 pairs stores only lanes g < p.
#pragma once
#include <cuda_bf16.h>
#include <stddef.h>
#include <stdint.h>

using u32 = uint32_t;
using u64 = uint64_t;

constexpr int WARPS = 8;
constexpr int THREADS = 32 * WARPS;             // that compute; decoding has a ninth warp that feeds the ring
constexpr int FRAME_TOKENS = 32;
constexpr int MAX_STEPS = 8;
constexpr int ACTION_ROWS = 256;
constexpr int PATCH_SIZE = 768;
constexpr int FRAME_BYTES = FRAME_TOKENS * PATCH_SIZE;

constexpr int GROUP = Q_HEADS / KV_HEADS;
constexpr int QUERY_SIZE = Q_HEADS * HEAD_DIM;
constexpr int KV_SIZE = KV_HEADS * HEAD_DIM;
constexpr int QKV_ROWS = QUERY_SIZE + 2 * KV_SIZE;
constexpr int HALF_DIM = HEAD_DIM / 2;

constexpr int CHUNK = 64;                                      // ranks of one attention split
constexpr int CHUNKS = (N_SLOTS + CHUNK - 1) / CHUNK;          // splits of one KV head
constexpr int KV_FRAGMENTS = HEAD_DIM / 32;                    // one warp's share of a split's keys, and of its values
constexpr int KV_STAGE_BYTES = KV_FRAGMENTS * 512;


__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a > b ? a : b; }
__host__ __device__ constexpr int even(int n) { return n + n % 2; }

// The fewest pieces of at most `most` that n falls into, alike if twice as many pieces allow it.
__host__ __device__ constexpr int pieces(int n, int most) {
    const int fewest = ceil_div(n, most);
    for (int p = fewest; p <= 2 * fewest; p++) {
        if (n % p == 0) return p;
    }
    return fewest;
}

// One projection's tiling. EVEN: neighbouring pairs of a block are packed in one word, so their count is even.
// LIKE: a warp's k-steps are cut into stages as for tiles of 8 pairs, so that all matrices with that K are read
// by the same code.
template <int ROWS_, int K_, bool EVEN, bool LIKE>
struct Matrix {
    static constexpr int ROWS = ROWS_, K = K_;
    static constexpr int PAIRS = ROWS / 2;
    static constexpr int FEWEST = ceil_div(PAIRS, GRID);
    static constexpr int BLOCK_PAIRS = EVEN ? FEWEST + FEWEST % 2 : FEWEST;
    static constexpr int TILES = ceil_div(BLOCK_PAIRS, 8);
    static constexpr int LAST_PAIRS = BLOCK_PAIRS - 8 * (TILES - 1);
    static constexpr int WIDEST = LIKE ? 8 : min_of(BLOCK_PAIRS, 8);
    static constexpr int K_STEPS = K / 16;
    static constexpr int WARP_STEPS = ceil_div(K_STEPS, WARPS);
    static constexpr int SEGMENTS = pieces(WARP_STEPS, STAGE_BYTES / (WIDEST * 64));
    static constexpr int SEGMENT_STEPS = ceil_div(WARP_STEPS, SEGMENTS);
    static constexpr int STAGES = TILES * SEGMENTS;
    static constexpr size_t BYTES =
        size_t(GRID) * WARPS * SEGMENTS * SEGMENT_STEPS * 64 * (8 * (TILES - 1) + LAST_PAIRS);
    static_assert(ROWS % 2 == 0 && K % 16 == 0, "rows must be even and K a multiple of 16");

    __host__ __device__ static constexpr int tile_pairs(int tile) { return tile == TILES - 1 ? LAST_PAIRS : 8; }
    // Bytes of one warp's stage, counted over [tile][segment].
    __host__ __device__ static constexpr int stage_bytes(int stage) {
        return SEGMENT_STEPS * 64 * tile_pairs(stage / SEGMENTS);
    }
    // Where a stage of all blocks begins.
    __host__ __device__ static constexpr size_t stage_offset(int stage) {
        const int tile = stage / SEGMENTS;
        return size_t(GRID) * WARPS * (tile * SEGMENTS * SEGMENT_STEPS * 512 + stage % SEGMENTS * stage_bytes(stage));
    }
    static_assert(stage_offset(STAGES - 1) + size_t(GRID) * WARPS * stage_bytes(STAGES - 1) == BYTES, "stages without gaps");
};

using Qkv = Matrix<QKV_ROWS, HIDDEN, true, true>;
using Output = Matrix<HIDDEN, QUERY_SIZE, false, true>;
using GateUp = Matrix<2 * INTERMEDIATE, HIDDEN, true, true>;
using Down = Matrix<HIDDEN, INTERMEDIATE, false, false>;
using Head = Matrix<ACTION_ROWS, HIDDEN, false, true>;
using Vision = Matrix<HIDDEN, PATCH_SIZE, false, false>;

constexpr int KV_UNITS = ceil_div(CHUNKS * KV_HEADS, GRID);    // splits that a block handles
constexpr size_t LAYER_BYTES = Qkv::BYTES + Output::BYTES + GateUp::BYTES + Down::BYTES;

static_assert(HEAD_DIM == 32 || HEAD_DIM == 64 || HEAD_DIM == 128, "head size must be 32, 64 or 128");
static_assert(QUERY_SIZE == HIDDEN, "the heads together must be as wide as the stream");
static_assert(GROUP <= 8, "at most 8 query heads share a KV head");
static_assert(SLOTS >= 2 && KV_STAGE_BYTES <= STAGE_BYTES, "the ring is too small");
static_assert(Output::BLOCK_PAIRS <= THREADS && Qkv::BLOCK_PAIRS <= THREADS, "the grid is too small");

// What one pass is told: filled in by the host in page-locked memory, copied to the device by `fetch`.
struct Command {
    uint32_t epoch;            // tags of this pass are epoch + 1 ...; grows by EPOCHS a pass
    uint32_t n_context;        // ranks before this block of tokens
    uint32_t n_tokens;         // tokens of the block (32 for a frame)
    uint32_t n_steps;          // decode steps afterwards (0 for a prompt)
    uint32_t is_frame;         // 1: tokens are the frame's patches; 0: rows of `prompt_rows`
    uint32_t is_void;          // set by `fetch` if there is no whole frame: the pass ends at once
    uint32_t is_aborted;       // set by the kernel that met the abort time
    uint32_t frame_index;
    uint64_t abort_ns;         // device time (globaltimer) by which the pass must end; all ones: never
    uint32_t prefill_layer_ns; // what a layer that is still to come takes at least, in prefill and in a decode
    uint32_t decode_layer_ns;  // step: the pass stops after a layer as soon as the layers left do not fit
    int32_t token_slots[FRAME_TOKENS];
    int32_t context_slots[N_SLOTS];
};
static_assert(offsetof(Command, token_slots) == 48, "command_dtype in engine/cuda/kernels.py has other fields");
constexpr uint32_t EPOCHS = 512;                               // > 6 barriers a layer, > MAX_STEPS * (LAYERS + 1)
static_assert(MAX_STEPS * (LAYERS + 2) < EPOCHS && 6 * LAYERS + 8 < EPOCHS, "tags of two passes would meet");

// What one pass answers, in page-locked memory. Times are device time in nanoseconds.
struct Result {
    uint32_t is_void, is_aborted, steps_done, frame_index;
    int64_t frame_meta[4];                                     // index, stamp_ns, capture_ns, receipt_ns
    uint64_t fetched_ns, prefill_began_ns, prefill_ended_ns, embedded_ns;
    uint64_t stopped_ns, unused;                               // when an aborted pass ended
    uint64_t step_ended_ns[MAX_STEPS];
    int32_t actions[MAX_STEPS];                                // 0..255
    float logits[MAX_STEPS][ACTION_ROWS];
    float embedding[HIDDEN];                                   // mean of the patch embeddings
};
