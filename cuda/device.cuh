// Pieces shared by the kernels: clock, tensor-core product, who a thread is, keys and values as fragments, grid barrier.
#pragma once
#include "geometry.cuh"

__device__ __forceinline__ u64 device_time_ns() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

// Whether `left` layers of at least `layer_ns` each cannot end by `end_ns` any more (all ones: never).
__device__ __forceinline__ bool is_too_late(u64 end_ns, u32 left, u32 layer_ns) {
    return device_time_ns() + u64(left) * layer_ns > end_ns;
}

// A wait for another block or for memory ends after about a second in a trap: a lost block must end the process,
// not hang the GPU.
struct Watchdog {
    u32 spins = 0;
    __device__ __forceinline__ void spin() {
        if (++spins == 1u << 21) __trap();
    }
};

// c (16 x 8, float32) += a (16 x 16, bf16) b (16 x 8, bf16). With g = lane / 4 and t = lane % 4: a = rows g, g + 8
// by columns 2t, 2t + 8; b = rows 2t, 2t + 8 of column g; c = rows g, g + 8 by columns 2t, 2t + 1.
__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

constexpr float LOG2E = 1.4426950408889634f;
__device__ __forceinline__ float exp2_fast(float v) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(v));
    return e;
}
constexpr float LOWEST = -1e30f;    // below every score, and its differences are finite

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

__device__ __forceinline__ u32 pack(float low, float high) {
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<u32*>(&v);
}
__device__ __forceinline__ float low_of(u32 v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float high_of(u32 v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ float rounded(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }

// a b + c d with its roundings spelled out: a compiler may contract either product, and what two kernels or two builds
// compute must have the same bits.
__device__ __forceinline__ float two_products(float a, float b, float c, float d) { return __fmaf_rn(a, b, __fmul_rn(c, d)); }

// RoPE of one pair: (low, high) turned by (cosine, sine).
__device__ __forceinline__ float2 turned(float low, float high, const float2& turn) {
    return make_float2(two_products(low, turn.x, -high, turn.y), two_products(high, turn.x, low, turn.y));
}

// The eight computing warps meet.
__device__ __forceinline__ void meet_workers() { asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory"); }

// Who a thread is. READ_ANEW: values derived from it are worked out where they are used; kept over all phases of
// the prefill kernel they would not fit the registers.
struct Place {
    int thread, lane, warp, g, t;
    __device__ __forceinline__ Place() {
#ifdef READ_ANEW
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
#else
        thread = threadIdx.x;
#endif
        lane = thread % 32;
        warp = thread / 32;
        g = lane / 4;
        t = lane % 4;
    }
};

// Where rank r of a split and dimension d lie in the split's fragments (bytes from the split's start): all keys,
// then all values, each [8 * KV_FRAGMENTS][32 lanes] 16 bytes. Keys are the row operand (rank x dimension), values
// the transposed one (dimension x rank).
__device__ __forceinline__ int fragment_element(int fragment, int row, int column, bool is_value) {
    int lane = (row % 8) * 4 + (column % 8) / 2;
    int reg = (column / 8) * 2 + row / 8;
    return (is_value ? CHUNK * HEAD_DIM * 2 : 0) + fragment * 512 + lane * 16 + reg * 4 + (column % 2) * 2;
}
__device__ __forceinline__ int key_offset(int r, int d) {
    return fragment_element(r / 16 * (HEAD_DIM / 16) + d / 16, r % 16, d % 16, false);
}
__device__ __forceinline__ int value_offset(int r, int d) {
    return fragment_element(d / 16 * (CHUNK / 16) + r / 16, d % 16, r % 16, true);
}
constexpr size_t SPLIT_BYTES = size_t(CHUNK) * HEAD_DIM * 4;
constexpr size_t RANKED_LAYER_BYTES = SPLIT_BYTES * CHUNKS * KV_HEADS;
__device__ __forceinline__ size_t split_offset(int layer, int chunk, int kv_head) {
    return ((size_t(layer) * CHUNKS + chunk) * KV_HEADS + kv_head) * SPLIT_BYTES;
}

__device__ __forceinline__ uint4 load_fragment(const char* stage, int fragment_bytes, int step, int lane, int pairs) {
    if (lane / 4 < pairs) return *reinterpret_cast<const uint4*>(stage + step * fragment_bytes + lane * 16);
    return make_uint4(0, 0, 0, 0);
}

// All blocks meet; `flags` [GRID], `tag` larger at each meeting. What was written before is visible after
// to loads that bypass L1.
__device__ __forceinline__ void grid_barrier(u32* flags, u32 tag) {
    meet_workers();
    // A thread waits for a block by loads that acquire: a fence after them would take another round trip to L2.
    static_assert(GRID <= THREADS, "a thread each for all blocks");
    if (threadIdx.x < ceil_div(GRID, 32) * 32) {
        if (threadIdx.x == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(tag) : "memory");
        const u32* at = flags + min(int(threadIdx.x), GRID - 1);
        u32 seen;
        Watchdog dog;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(at) : "memory");
            dog.spin();
        } while (int(seen - tag) < 0);
    }
    meet_workers();
}
