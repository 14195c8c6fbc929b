// Device memory beside weights and KV: tagged words of decoding, plain activations of prefill, checks' traces.
#pragma once
#include "geometry.cuh"

// Tagged words (64 bit) of decoding, by offset.
struct Words {
    static constexpr size_t SQUARES_SIZE = ceil_div(GRID, 16) * 16;                   // what follows begins a line
    static constexpr size_t MLP_INPUT = 0;                                            // operand words, K = HIDDEN
    static constexpr size_t LAYER_INPUT = MLP_INPUT + HIDDEN / 2;                     // [step % 2] likewise
    static constexpr size_t MLP_SQUARES = LAYER_INPUT + 2 * (HIDDEN / 2);             // [GRID] sums of squares
    static constexpr size_t LAYER_SQUARES = MLP_SQUARES + SQUARES_SIZE;               // [step % 2][GRID]
    static constexpr size_t QUERY = LAYER_SQUARES + 2 * SQUARES_SIZE;                 // [kv head][k-step][lane][2]
    static constexpr size_t TOKEN_KV = QUERY + KV_HEADS * HEAD_DIM * 4;               // [kv head][key, value][HEAD_DIM/2]
    static constexpr size_t ATTENDED = TOKEN_KV + KV_HEADS * HEAD_DIM;                // operand words, K = QUERY_SIZE
    static constexpr size_t PARTIAL = ATTENDED + QUERY_SIZE / 2;                      // [split][dimension][8 heads]
    static constexpr size_t PARTIAL_SUM = PARTIAL + size_t(CHUNKS) * KV_HEADS * HEAD_DIM * 8;  // [split][8 heads][m, l]
    static constexpr size_t GATED = PARTIAL_SUM + size_t(CHUNKS) * KV_HEADS * 16;     // operand words, K = INTERMEDIATE
    static constexpr size_t LOGITS = GATED + INTERMEDIATE / 2;   // [ACTION_ROWS]
    static constexpr size_t COUNT = LOGITS + ACTION_ROWS;
};

constexpr size_t padded(size_t n) { return (n + 255) / 256 * 256; }
constexpr size_t operand_bytes(int k) { return padded(size_t(k) / 16 * 1024); }

// Prefill's buffers, by offset in bytes. Operands of 32 tokens: [k-step][token half][lane] 16 bytes, the two
// 8-token column operands of that half one after another.
struct Prefill {
    static constexpr size_t PIXELS = 0;
    static constexpr size_t MLP_INPUT = PIXELS + operand_bytes(PATCH_SIZE);
    static constexpr size_t LAYER_INPUT = MLP_INPUT + operand_bytes(HIDDEN);
    static constexpr size_t ATTENDED = LAYER_INPUT + operand_bytes(HIDDEN);
    static constexpr size_t GATED = ATTENDED + operand_bytes(QUERY_SIZE);
    static constexpr size_t QUERY = GATED + operand_bytes(INTERMEDIATE);                    // [kv head][query/8][k-step][lane] 8 B
    static constexpr size_t MLP_SQUARES = QUERY + padded(size_t(QUERY_SIZE) * FRAME_TOKENS * 2);   // [GRID][32] float
    static constexpr size_t LAYER_SQUARES = MLP_SQUARES + padded(size_t(GRID) * FRAME_TOKENS * 4);
    static constexpr size_t PARTIAL = LAYER_SQUARES + padded(size_t(GRID) * FRAME_TOKENS * 4);     // [split][query][dim] bf16
    static constexpr size_t PARTIAL_SUM =
        PARTIAL + padded(size_t(CHUNKS) * QUERY_SIZE * FRAME_TOKENS * 2);              // [split][query][m, l] float
    static constexpr size_t FLAGS = PARTIAL_SUM + padded(size_t(CHUNKS) * Q_HEADS * FRAME_TOKENS * 8);
    static constexpr size_t BYTES = FLAGS + padded(size_t(GRID) * 4);
};

// Trace of one token in one layer, float32, for checks: queries, keys and values before RoPE; attention's
// output; the stream after attention; gated MLP activations; the stream after the layer. [token][layer][SIZE].
struct Trace {
    static constexpr int QKV = 0;
    static constexpr int ATTENDED = QKV + QKV_ROWS;
    static constexpr int MIDDLE = ATTENDED + QUERY_SIZE;
    static constexpr int GATED = MIDDLE + HIDDEN;
    static constexpr int OUT = GATED + INTERMEDIATE;
    static constexpr int SIZE = OUT + HIDDEN;
};

#ifdef TRACED
constexpr bool IS_TRACED = true;
#else
constexpr bool IS_TRACED = false;
#endif

// A fault for the gate to find: attention leaves out this split. No other build defines it.
#ifdef LOST_SPLIT
__device__ constexpr bool is_lost(int chunk) { return chunk == LOST_SPLIT; }
#else
__device__ constexpr bool is_lost(int) { return false; }
#endif

struct Arguments {
    const char* weights;             // packed decoder layers, then the head
    const char* vision;              // packed patch embedding
    const float* vision_bias;        // [HIDDEN]
    const float* norms;              // [2 * LAYERS + 1][HIDDEN]: before attention, before the MLP, ..., final
    const float* qkv_bias;           // [LAYERS][QKV_ROWS]
    const __nv_bfloat16* rows;       // [1 + ACTION_ROWS][HIDDEN]: action-start token, then the actions
    const float2* rope;              // [N_SLOTS][HALF_DIM] cosine, sine
    __nv_bfloat16* cache;            // [LAYERS][N_SLOTS][KV_HEADS][key, value][HEAD_DIM], keys before RoPE
    char* ranked;                    // the same in rank order, keys rotated, as fragments: see split_offset
    int32_t* ranked_slots;           // [N_SLOTS] the slot whose data `ranked` holds at each rank; -1: zeros
    Command* command;                // device copy
    const Command* host_command;     // page-locked
    const __nv_bfloat16* prompt_rows;// [FRAME_TOKENS][HIDDEN] embeddings of a piece of the prompt
    const char* frame_buffer;        // page-locked, layout of perception/frame_buffer.py
    u64 pixel_offsets[2];            // of its two buffers
    u64* words;                      // Words
    char* prefill;                   // Prefill
    Result* result;                  // page-locked
    float* trace;                    // Trace of the decoded tokens (built with TRACED)
    float* prefill_trace;            // Trace of the block's tokens (built with TRACED)
};
