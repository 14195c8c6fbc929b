// The context's keys and values in rank order: gathered from their slots, keys rotated to their ranks, laid out
// as the fragments that attention feeds to the tensor cores.
//
// Shapes: cache [LAYERS][N_SLOTS][KV_HEADS][key, value][HEAD_DIM] bf16, keys before RoPE -> ranked, see
//   key_offset and value_offset. Ranks from n_context on become zeros.
// Geometry: (CHUNKS * KV_HEADS, LAYERS) blocks x 256 threads, a split of 64 ranks each.
// Bound by: device memory, 2 x the bytes of the splits that changed. A split whose ranks still have the slots
//   of the last pass is left as it is: without an eviction nothing is moved.
#include "device.cuh"
#include "workspace.cuh"

constexpr int ROW = HEAD_DIM + 8;   // keeps rows of a column in different banks

extern "C" __global__ void __launch_bounds__(THREADS) rank_context(const __grid_constant__ Arguments p) {
    __shared__ __align__(16) __nv_bfloat16 keys[CHUNK][ROW], values[CHUNK][ROW];
    __shared__ int slots[CHUNK];
    const Command* command = p.command;
    if (command->is_void) return;
    const int chunk = blockIdx.x / KV_HEADS, kv_head = blockIdx.x % KV_HEADS, layer = blockIdx.y, thread = threadIdx.x;

    bool is_same = true;
    if (thread < CHUNK) {
        const int rank = chunk * CHUNK + thread;
        const int slot = rank < int(command->n_context) ? command->context_slots[rank] : -1;
        slots[thread] = slot;
        is_same = rank >= N_SLOTS || p.ranked_slots[rank] == slot;
    }
    if (__syncthreads_and(is_same)) return;

    auto row_of = [&](int r, int is_value) {
        return p.cache + (((size_t(layer) * N_SLOTS + slots[r]) * KV_HEADS + kv_head) * 2 + is_value) * HEAD_DIM;
    };
#pragma unroll 4
    for (int i = thread; i < CHUNK * HALF_DIM / 4; i += THREADS) {
        const int r = i / (HALF_DIM / 4), d = i % (HALF_DIM / 4) * 4;
        uint2 low = make_uint2(0, 0), high = make_uint2(0, 0);
        if (slots[r] >= 0) {
            low = *reinterpret_cast<const uint2*>(row_of(r, 0) + d);
            high = *reinterpret_cast<const uint2*>(row_of(r, 0) + d + HALF_DIM);
        }
        const float4* turns = reinterpret_cast<const float4*>(p.rope + size_t(chunk * CHUNK + r) * HALF_DIM + d);
        u32 to_low[2], to_high[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float4 turn = turns[j];
            const u32 a = j ? low.y : low.x, b = j ? high.y : high.x;
            const float2 first = turned(low_of(a), low_of(b), make_float2(turn.x, turn.y));
            const float2 second = turned(high_of(a), high_of(b), make_float2(turn.z, turn.w));
            to_low[j] = pack(first.x, second.x);
            to_high[j] = pack(first.y, second.y);
        }
        *reinterpret_cast<uint2*>(&keys[r][d]) = make_uint2(to_low[0], to_low[1]);
        *reinterpret_cast<uint2*>(&keys[r][d + HALF_DIM]) = make_uint2(to_high[0], to_high[1]);
    }
#pragma unroll 4
    for (int i = thread; i < CHUNK * HEAD_DIM / 8; i += THREADS) {
        const int r = i / (HEAD_DIM / 8), d = i % (HEAD_DIM / 8) * 8;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (slots[r] >= 0) v = *reinterpret_cast<const uint4*>(row_of(r, 1) + d);
        *reinterpret_cast<uint4*>(&values[r][d]) = v;
    }
    __syncthreads();

    uint4* split = reinterpret_cast<uint4*>(p.ranked + split_offset(layer, chunk, kv_head));
#pragma unroll 4
    for (int i = thread; i < int(SPLIT_BYTES) / 16; i += THREADS) {
        const bool is_value = i >= int(SPLIT_BYTES) / 32;
        const int fragment = i % (int(SPLIT_BYTES) / 32) / 32, g = i % 32 / 4, t = i % 4;
        u32 out[4];
#pragma unroll
        for (int reg = 0; reg < 4; reg++) {
            if (is_value) {
                const int d = fragment / (CHUNK / 16) * 16 + g + reg % 2 * 8;
                const int r = fragment % (CHUNK / 16) * 16 + 2 * t + reg / 2 * 8;
                const uint16_t a = *reinterpret_cast<const uint16_t*>(&values[r][d]);
                const uint16_t b = *reinterpret_cast<const uint16_t*>(&values[r + 1][d]);
                out[reg] = a | u32(b) << 16;
            } else {
                const int r = fragment / (HEAD_DIM / 16) * 16 + g + reg % 2 * 8;
                const int d = fragment % (HEAD_DIM / 16) * 16 + 2 * t + reg / 2 * 8;
                out[reg] = *reinterpret_cast<const u32*>(&keys[r][d]);
            }
        }
        split[i] = make_uint4(out[0], out[1], out[2], out[3]);
    }
}
