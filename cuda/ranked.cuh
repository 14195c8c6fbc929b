// The context's keys and values in rank order: gathered from their slots, keys rotated to their ranks, laid out
// as the fragments that attention feeds to the tensor cores. A warp moves an eighth of a split at a time:
// the keys or the values of 16 ranks.
//
// Shapes: cache [LAYERS][N_SLOTS][KV_HEADS][key, value][HEAD_DIM] bf16, keys before RoPE -> ranked, see
//   key_offset and value_offset. Ranks from n_context on become zeros.
// A split whose ranks still have the slots of the last pass is left as it is: without an eviction nothing is moved.
#pragma once
#include "device.cuh"
#include "workspace.cuh"

constexpr int PIECE_RANKS = 16, SPLIT_PIECES = 2 * CHUNK / PIECE_RANKS;   // those of keys, then those of values
using PieceRows = __nv_bfloat16[PIECE_RANKS][HEAD_DIM + 8];              // rows of a column in different banks

// The slot of a rank, -1 from n_context on; and whether `ranked` does not hold it at that rank yet.
__device__ __forceinline__ int slot_of_rank(const Arguments& p, int rank, int n_context) {
    return rank < n_context ? p.command->context_slots[rank] : -1;
}
__device__ __forceinline__ bool is_moved(const Arguments& p, int rank, int slot) {
    return rank < N_SLOTS && p.ranked_slots[rank] != slot;
}

// By a whole warp. slots: of the split's ranks; rows: the warp's own.
__device__ __forceinline__ void rank_piece(const Arguments& p, PieceRows& rows, const int* slots, int layer, int chunk, int kv_head, int piece) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const bool is_value = piece >= SPLIT_PIECES / 2;
    const int part = piece % (SPLIT_PIECES / 2), first = part * PIECE_RANKS;
    auto row_of = [&](int r) {
        return p.cache + (((size_t(layer) * N_SLOTS + slots[first + r]) * KV_HEADS + kv_head) * 2 + is_value) * HEAD_DIM;
    };
    if (is_value) {
#pragma unroll
        for (int i = lane; i < PIECE_RANKS * HEAD_DIM / 8; i += 32) {
            const int r = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
            uint4 v = make_uint4(0, 0, 0, 0);
            if (slots[first + r] >= 0) v = *reinterpret_cast<const uint4*>(row_of(r) + d);
            *reinterpret_cast<uint4*>(&rows[r][d]) = v;
        }
    } else {
#pragma unroll 4
        for (int i = lane; i < PIECE_RANKS * HALF_DIM / 4; i += 32) {
            const int r = i / (HALF_DIM / 4), d = i % (HALF_DIM / 4) * 4;
            uint2 low = make_uint2(0, 0), high = make_uint2(0, 0);
            if (slots[first + r] >= 0) {
                low = *reinterpret_cast<const uint2*>(row_of(r) + d);
                high = *reinterpret_cast<const uint2*>(row_of(r) + d + HALF_DIM);
            }
            const float4* turns = reinterpret_cast<const float4*>(p.rope + size_t(chunk * CHUNK + first + r) * HALF_DIM + d);
            u32 to_low[2], to_high[2];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float4 turn = turns[j];
                const u32 a = j ? low.y : low.x, b = j ? high.y : high.x;
                const float2 one = turned(low_of(a), low_of(b), make_float2(turn.x, turn.y));
                const float2 other = turned(high_of(a), high_of(b), make_float2(turn.z, turn.w));
                to_low[j] = pack(one.x, other.x);
                to_high[j] = pack(one.y, other.y);
            }
            *reinterpret_cast<uint2*>(&rows[r][d]) = make_uint2(to_low[0], to_low[1]);
            *reinterpret_cast<uint2*>(&rows[r][d + HALF_DIM]) = make_uint2(to_high[0], to_high[1]);
        }
    }
    __syncwarp();
    uint4* to = reinterpret_cast<uint4*>(p.ranked + split_offset(layer, chunk, kv_head)) + lane;
#pragma unroll 4
    for (int f = 0; f < HEAD_DIM / 16; f++) {
        u32 out[4];
#pragma unroll
        for (int reg = 0; reg < 4; reg++) {
            if (is_value) {
                const int d = f * 16 + g + reg % 2 * 8, r = 2 * t + reg / 2 * 8;
                const uint16_t a = *reinterpret_cast<const uint16_t*>(&rows[r][d]);
                const uint16_t b = *reinterpret_cast<const uint16_t*>(&rows[r + 1][d]);
                out[reg] = a | u32(b) << 16;
            } else {
                out[reg] = *reinterpret_cast<const u32*>(&rows[g + reg % 2 * 8][f * 16 + 2 * t + reg / 2 * 8]);
            }
        }
        const int fragment = is_value ? int(SPLIT_BYTES / 1024) + f * (CHUNK / 16) + part : part * (HEAD_DIM / 16) + f;
        to[fragment * 32] = make_uint4(out[0], out[1], out[2], out[3]);
    }
    __syncwarp();
}
