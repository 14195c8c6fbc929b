// Pieces shared by the persistent kernels: tensor-core product, tagged words, weight ring, grid barrier, clock.
#pragma once
#include "geometry.cuh"

#ifndef RING_SLOTS
#define RING_SLOTS SLOTS
#endif


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

// RoPE of one pair: (low, high) turned by (cosine, sine). Roundings are spelled out, since a key is turned by two
// kernels, when it is new and when its rank changes, and a compiler may contract a b - c d either way.
__device__ __forceinline__ float2 turned(float low, float high, const float2& turn) {
    return make_float2(__fmaf_rn(low, turn.x, -__fmul_rn(high, turn.y)), __fmaf_rn(high, turn.x, __fmul_rn(low, turn.y)));
}

// Word of the one-token operand that holds rows k and k + 1 (k even): [k-step][t][half].
__device__ __forceinline__ int operand_word(int k) {
    return (k / 16) * 8 + (k % 8) / 2 * 2 + (k % 16) / 8;
}

// Tagged words: 32 bits of data and the tag of their layer in one 64-bit access. The reader polls the data
// itself, so that a value crosses the device in one store and one load, with no fence, flag or atomic.
// A word is written again only after every block has read it: in each layer every block needs a word of
// every other (the sums of squares), twice.
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
// are asked for at once, those not yet there again.
template <class M>
__device__ __forceinline__ void take_operand(const u64* words, u32 tag, int warp, int lane, uint2* to) {
    constexpr int N = ceil_div(M::WARP_STEPS * 4, 32);
    constexpr bool EXACT = M::K_STEPS == WARPS * M::WARP_STEPS;
    const int n_real = EXACT ? M::WARP_STEPS * 4 : max(0, min(M::WARP_STEPS, M::K_STEPS - warp * M::WARP_STEPS)) * 4;
    const u64* from = words + size_t(warp) * M::WARP_STEPS * 8;
    ulonglong2 v[N];
    if (EXACT || n_real > 0) {
        bool is_whole;
        Watchdog dog;
#pragma unroll
        for (int i = 0; i < N; i++) v[i] = peek2(from + min(i * 32 + lane, n_real - 1) * 2);
        do {
            is_whole = true;
#pragma unroll
            for (int i = 0; i < N; i++) {
                if (!has_tag(v[i].x, tag) || !has_tag(v[i].y, tag)) {
                    is_whole = false;
                    v[i] = peek2(from + min(i * 32 + lane, n_real - 1) * 2);
                }
            }
            dog.spin();
        } while (!is_whole);
    }
    __syncwarp();   // everyone has read what lay here before
#pragma unroll
    for (int i = 0; i < N; i++) {
        const int at = i * 32 + lane;
        if (at < M::WARP_STEPS * 4) to[at] = EXACT || at < n_real ? make_uint2(u32(v[i].x), u32(v[i].y)) : make_uint2(0, 0);
    }
    __syncwarp();
}

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

// What a block reads, stage by stage: an entry names 8 warps' shares, which lie one after another.
struct Stage {
    u64 offset;               // from the layer's weights, or from its ranked keys and values
    u32 bytes;                // of one warp's share
    u32 is_ranked;
};

// The block's stages of a layer, then those of the other matrix (head or patch embedding); filled in at the start.
template <class Other>
struct Program {
    static constexpr int MOST = Qkv::STAGES + 2 * KV_UNITS + Output::STAGES + GateUp::STAGES + Down::STAGES + Other::STAGES;
    Stage stages[MOST];
    int n_layer, n_all, ranked_at;    // stages of a layer, of both; the first that reads `ranked`

    template <class M>
    __device__ void add(int& n, u64& offset) {
        for (int s = 0; s < M::STAGES; s++) {
            const u32 bytes = M::stage_bytes(s);
            stages[n++] = {offset + u64(blockIdx.x) * WARPS * bytes, bytes, 0};
            offset += u64(GRID) * WARPS * bytes;
        }
    }

    // By one thread. Splits from `n_chunks` on are not read.
    __device__ void fill(int n_chunks) {
        int n = 0;
        u64 offset = 0;
        add<Qkv>(n, offset);
        ranked_at = n;
        for (int unit = blockIdx.x; unit / KV_HEADS < n_chunks; unit += GRID) {
            const u64 split = split_offset(0, unit / KV_HEADS, unit % KV_HEADS);
            stages[n++] = {split, KV_STAGE_BYTES, 1};
            stages[n++] = {split + SPLIT_BYTES / 2, KV_STAGE_BYTES, 1};
        }
        add<Output>(n, offset);
        add<GateUp>(n, offset);
        add<Down>(n, offset);
        n_layer = n;
        offset = 0;
        add<Other>(n, offset);
        n_all = n;
    }
};

// Stages on their way to shared memory, as mbarriers tell. sm_90: bulk copies; before: 16-byte asynchronous ones.
struct Copies {
    static __device__ __forceinline__ u64 policy() {
        u64 p;   // weights pass through L2 without driving out what is used again, code included
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(p));
        return p;
    }

    // By one thread, for each barrier.
    static __device__ __forceinline__ void init(u32 barrier, u32 count) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
    }
    static __device__ __forceinline__ void publish_init() {
#if __CUDA_ARCH__ >= 900
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
    }
    // Arrivals that complete a copy: see `start`.
#if __CUDA_ARCH__ >= 900
    static constexpr u32 ARRIVALS = 1;
#else
    static constexpr u32 ARRIVALS = 32;
#endif

    // By a whole warp.
    static __device__ __forceinline__ void start(u32 to, const char* from, u32 bytes, u32 barrier, u64 policy) {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x % 32 == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(to),
                "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
                : "memory");
        }
#else
#pragma unroll 4
        for (u32 i = threadIdx.x % 32 * 16; i < bytes; i += 512) {
            asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to + i), "l"(from + i), "l"(policy) : "memory");
        }
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
    }

    static __device__ __forceinline__ bool is_past(u32 barrier, u32 parity) {
        u32 ready;
#if __CUDA_ARCH__ >= 900
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ready) : "r"(barrier), "r"(parity) : "memory");
#else
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ready) : "r"(barrier), "r"(parity) : "memory");
#endif
        return ready;
    }
    static __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
        Watchdog dog;
        while (!is_past(barrier, parity)) dog.spin();
    }
};

// One warp's ring of its shares: the warp asks for the next whenever it releases one, so that device memory stays
// busy through every wait for other blocks.
struct Ring {
    char* slots;              // [RING_SLOTS][STAGE_BYTES], the warp's own
    u32 barriers;             // shared address of [RING_SLOTS] mbarriers
    u32 head = 0, tail = 0;   // shares asked for and taken
    u64 policy;

    __device__ __forceinline__ Ring(char* slots_, u64* barriers_) : slots(slots_), policy(Copies::policy()) {
        barriers = u32(__cvta_generic_to_shared(barriers_));
        if (threadIdx.x % 32 == 0) {
            for (int s = 0; s < RING_SLOTS; s++) Copies::init(barriers + 8 * s, Copies::ARRIVALS);
            Copies::publish_init();
        }
        __syncwarp();
    }

    __device__ __forceinline__ void ask(const char* from, u32 bytes) {
        const u32 slot = head++ % RING_SLOTS;
        Copies::start(u32(__cvta_generic_to_shared(slots)) + slot * STAGE_BYTES, from, bytes, barriers + 8 * slot, policy);
    }

    // The oldest share asked for, once it is there.
    __device__ __forceinline__ char* wait() const {
        const u32 slot = tail % RING_SLOTS;
        Copies::wait(barriers + 8 * slot, tail / RING_SLOTS & 1);
        return slots + slot * STAGE_BYTES;
    }
    __device__ __forceinline__ char* wait_second() const {
        const u32 second = tail + 1;
        Copies::wait(barriers + 8 * (second % RING_SLOTS), second / RING_SLOTS & 1);
        return slots + second % RING_SLOTS * STAGE_BYTES;
    }

    // Copies in flight must land before the block ends.
    __device__ __forceinline__ void drain() {
        for (; tail != head; tail++) wait();
    }
};

// The block's ring of whole stages, fed by a ninth warp: the others only say that they have read one.
struct FedRing {
    static constexpr u32 BYTES = WARPS * STAGE_BYTES;
    char* slots;              // [RING_SLOTS][BYTES]
    u32 full;                 // shared address of [RING_SLOTS] mbarriers; those for `empty` follow
    u32 slot = 0, parity = 0; // of the next stage

    __device__ __forceinline__ FedRing(char* slots_, u64* barriers) : slots(slots_) {
        full = u32(__cvta_generic_to_shared(barriers));
    }
    // By one thread, before the block meets.
    __device__ __forceinline__ void init() const {
        for (int s = 0; s < RING_SLOTS; s++) {
            Copies::init(full + 8 * s, Copies::ARRIVALS);
            Copies::init(full + 8 * (RING_SLOTS + s), WARPS);
        }
        Copies::publish_init();
    }
    __device__ __forceinline__ void step() {
        if (++slot == RING_SLOTS) slot = 0, parity ^= 1;
    }

    // The next stage, once it is there; and the one after it.
    __device__ __forceinline__ char* wait() const {
        Copies::wait(full + 8 * slot, parity);
        return slots + slot * BYTES;
    }
    __device__ __forceinline__ char* wait_second() const {
        const bool is_last = slot + 1 == RING_SLOTS;
        const u32 second = is_last ? 0 : slot + 1;
        Copies::wait(full + 8 * second, is_last ? parity ^ 1 : parity);
        return slots + second * BYTES;
    }
    // This warp has read it.
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(full + 8 * (RING_SLOTS + slot)) : "memory");
        }
        step();
    }

    // The ninth warp: `take(from, bytes)` names the stages one after another, false at the end; `in_flight` copies at
    // most are under way, and `stop` ends it early.
    template <class Take>
    __device__ __forceinline__ void feed(Take take, const volatile int& in_flight, const volatile int& stop) {
        const u64 policy = Copies::policy();
        const char* from;
        u32 bytes, n_started = 0;
        bool is_stopped = false;
#pragma unroll 1
        while (take(from, bytes)) {
            while (!Copies::is_past(full + 8 * (RING_SLOTS + slot), parity ^ 1) && !is_stopped) is_stopped = __any_sync(~0u, stop);
            if (__any_sync(~0u, is_stopped)) break;
            const u32 most = in_flight;
            if (n_started >= most) {
                const u32 earlier = n_started - most;
                Copies::wait(full + 8 * (earlier % RING_SLOTS), earlier / RING_SLOTS & 1);
            }
            Copies::start(u32(__cvta_generic_to_shared(slots)) + slot * BYTES, from, bytes, full + 8 * slot, policy);
            step();
            n_started++;
        }
        // Copies in flight must land before the block ends.
#pragma unroll 1
        for (u32 i = min(n_started, u32(RING_SLOTS)); i > 0; i--) {
            if (slot-- == 0) slot = RING_SLOTS - 1, parity ^= 1;
            Copies::wait(full + 8 * slot, parity);
        }
    }
};

__device__ __forceinline__ uint4 load_fragment(const char* stage, int fragment_bytes, int step, int lane, int pairs) {
    if (lane / 4 < pairs) return *reinterpret_cast<const uint4*>(stage + step * fragment_bytes + lane * 16);
    return make_uint4(0, 0, 0, 0);
}

// All blocks meet; `flags` [GRID], `tag` larger at each meeting. What was written before is visible after
// to loads that bypass L1.
__device__ __forceinline__ void grid_barrier(u32* flags, u32 tag) {
    __syncthreads();
    if (threadIdx.x < 32) {
        if (threadIdx.x == 0) {
            __threadfence();
            asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flags + blockIdx.x), "r"(tag) : "memory");
        }
        __syncwarp();
        for (int block = threadIdx.x; block < GRID; block += 32) {
            u32 seen;
            Watchdog dog;
            while (true) {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flags + block) : "memory");
                if (int(seen - tag) >= 0) break;
                dog.spin();
            }
        }
        __threadfence();
    }
    __syncthreads();
}
