// Tagged words: how decoding's blocks exchange activations, each in one store and one load.
#pragma once
#include "device.cuh"

// Word of the one-token operand that holds rows k and k + 1 (k even): [k-step][t][half].
__device__ __forceinline__ int operand_word(int k) {
    return (k / 16) * 8 + (k % 8) / 2 * 2 + (k % 16) / 8;
}

// Tagged words: 32 bits of data and the tag of their layer in one 64-bit access. The reader polls the data
// itself, so that a value crosses the device in one store and one load, with no fence, flag or atomic.
// A word is written again only after every block has read it: between the two its writer needs a word of every block
// (the sums of squares, twice a layer) that was put after the reading. For the head see `layer_input` in decode.cu.
__device__ __forceinline__ void put(u64* at, u32 data, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"((u64(tag) << 32) | data) : "memory");
}
__device__ __forceinline__ void put2(u64* at, u32 first, u32 second, u32 tag) {
    u64 high = u64(tag) << 32;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(high | first), "l"(high | second)
                 : "memory");
}
__device__ __forceinline__ u64 peek(const u64* at) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ ulonglong2 peek2(const u64* at) {
    ulonglong2 v;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v.x), "=l"(v.y) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ bool has_tag(u64 v, u32 tag) { return u32(v >> 32) == tag; }
__device__ __forceinline__ u32 take(const u64* at, u32 tag) {
    Watchdog dog;
    u64 v = peek(at);
    while (!has_tag(v, tag)) {
        dog.spin();
        v = peek(at);
    }
    return u32(v);
}

// The warp's part of a one-token operand, from tagged words to shared memory: [k-step][t] both halves. All words
// are asked for at once, those not yet there again; each time `ask_others` asks for what is put beside them.
template <class M, class Ask>
__device__ __forceinline__ void take_operand(const u64* words, u32 tag, int warp, int lane, uint2* to, Ask ask_others) {
    constexpr int N = ceil_div(M::WARP_STEPS * 4, 32);
    constexpr bool EXACT = M::K_STEPS == WARPS * M::WARP_STEPS;
    const int n_real = EXACT ? M::WARP_STEPS * 4 : max(0, min(M::WARP_STEPS, M::K_STEPS - warp * M::WARP_STEPS)) * 4;
    const u64* from = words + size_t(warp) * M::WARP_STEPS * 8;
    ulonglong2 v[N];
    if (EXACT || n_real > 0) {
        Watchdog dog;
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = peek2(from + min(i * 32 + lane, n_real - 1) * 2);
        ask_others();
        while (true) {
            bool is_whole = true;
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (!has_tag(v[i].x, tag) || !has_tag(v[i].y, tag)) {
                    is_whole = false;
                    v[i] = peek2(from + min(i * 32 + lane, n_real - 1) * 2);
                }
            }
            if (__all_sync(~0u, is_whole)) break;
            ask_others();
            dog.spin();
        }
    }
    __syncwarp();   // everyone has read what lay here before
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int at = i * 32 + lane;
        if (at < M::WARP_STEPS * 4) to[at] = EXACT || at < n_real ? make_uint2(u32(v[i].x), u32(v[i].y)) : make_uint2(0, 0);
    }
    __syncwarp();
}
