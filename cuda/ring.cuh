// The weight ring: a block's stages in the order of reading, copied ahead to shared memory through every wait for
// other blocks.
#pragma once
#include "device.cuh"

#ifndef RING_SLOTS
#define RING_SLOTS SLOTS
#endif

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
        for (int s = threadIdx.x; s < M::STAGES; s += blockDim.x) {
            const u32 bytes = M::stage_bytes(s);
            stages[n + s] = {offset + M::stage_offset(s) + u64(blockIdx.x) * WARPS * bytes, bytes, 0};
        }
        n += M::STAGES;
        offset += M::BYTES;
    }

    // By all threads, before they meet. Splits from `n_chunks` on are not read.
    __device__ void fill(int n_chunks) {
        int n = 0;
        u64 offset = 0;
        add<Qkv>(n, offset);
        const int first = n, n_units = max(0, ceil_div(n_chunks * KV_HEADS - int(blockIdx.x), GRID));
        for (int at = threadIdx.x; at < 2 * n_units; at += blockDim.x) {
            const int unit = blockIdx.x + at / 2 * GRID;
            stages[n + at] = {split_offset(0, unit / KV_HEADS, unit % KV_HEADS) + at % 2 * (SPLIT_BYTES / 2), KV_STAGE_BYTES, 1};
        }
        n += 2 * n_units;
        add<Output>(n, offset);
        add<GateUp>(n, offset);
        add<Down>(n, offset);
        const int n_of_layer = n;
        offset = 0;
        add<Other>(n, offset);
        if (threadIdx.x == 0) ranked_at = first, n_layer = n_of_layer, n_all = n;
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
#if __CUDA_ARCH__ >= 900
        u32 ready;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ready) : "r"(barrier), "r"(parity) : "memory");
        return ready;
#else
        return is_past_now(barrier, parity);
#endif
    }
    // The same without the wait of a moment that try_wait may make.
    static __device__ __forceinline__ bool is_past_now(u32 barrier, u32 parity) {
        u32 ready;
        asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(ready) : "r"(barrier), "r"(parity) : "memory");
        return ready;
    }
    static __device__ __forceinline__ void wait(u32 barrier, u32 parity) {
        Watchdog dog;
        while (!is_past(barrier, parity)) dog.spin();
    }
};

// The block's ring of whole stages, as who reads or fills it sees it. Two mbarriers a slot: `full` once the copy has
// landed, `empty` once all computing warps have read it.
struct Ring {
    static constexpr u32 BYTES = WARPS * STAGE_BYTES;
    char* slots;              // [RING_SLOTS][BYTES]
    u32 full_at;              // shared address of [RING_SLOTS] mbarriers; those for `empty` follow
    u32 slot = 0, parity = 0; // of the next stage

    __device__ __forceinline__ Ring(char* slots_, u64* barriers) : slots(slots_) {
        full_at = u32(__cvta_generic_to_shared(barriers));
    }
    // By one thread, before the block meets.
    __device__ __forceinline__ void init() const {
        for (int s = 0; s < RING_SLOTS; s++) {
            Copies::init(full(s), Copies::ARRIVALS);
            Copies::init(empty(s), WARPS);
        }
        Copies::publish_init();
    }
    __device__ __forceinline__ u32 full(u32 which) const { return full_at + 8 * which; }
    __device__ __forceinline__ u32 empty(u32 which) const { return full_at + 8 * (RING_SLOTS + which); }
    __device__ __forceinline__ void step() {
        if (++slot == RING_SLOTS) slot = 0, parity ^= 1;
    }

    // The next stage, once it is there; and the one after it.
    __device__ __forceinline__ char* wait() const {
        Copies::wait(full(slot), parity);
        return slots + slot * BYTES;
    }
    __device__ __forceinline__ char* wait_second() const {
        Ring second = *this;
        second.step();
        return second.wait();
    }
    // This warp has read it.
    __device__ __forceinline__ void release() {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(empty(slot)) : "memory");
        }
        step();
    }
};

// Starts the copies, by a whole warp. `Cursor` names the stages one after another: is_ended(), is_open() (the next
// one may be read already), take(from, bytes).
template <class Cursor>
struct Feeder {
    Ring ring;                      // where the next copy goes
    Cursor cursor;
    const volatile int& in_flight;  // so many copies at most are under way
    u64 policy;
    u32 n_started;

    __device__ __forceinline__ Feeder(const Ring& ring_, const Cursor& cursor_, const volatile int& in_flight_, u32 n_started_ = 0)
        : ring(ring_), cursor(cursor_), in_flight(in_flight_), policy(Copies::policy()), n_started(n_started_) {
        ring.slot = n_started % RING_SLOTS;
        ring.parity = n_started / RING_SLOTS & 1;
    }

    __device__ __forceinline__ void start(const char* from, u32 bytes) {
        Copies::start(u32(__cvta_generic_to_shared(ring.slots)) + ring.slot * Ring::BYTES, from, bytes, ring.full(ring.slot), policy);
        ring.step();
        n_started++;
    }

    // All of them, by a warp that does nothing else; `stop` ends it early.
    __device__ __forceinline__ void run(const volatile int& stop) {
#pragma unroll 1
        while (!cursor.is_ended()) {
            bool is_stopped = false;
            while (!cursor.is_open() && !is_stopped) is_stopped = __any_sync(~0u, stop);
            const char* from;
            u32 bytes;
            if (!is_stopped) cursor.take(from, bytes);
            while (!is_stopped && !__any_sync(~0u, Copies::is_past(ring.empty(ring.slot), ring.parity ^ 1))) {
                is_stopped = __any_sync(~0u, stop);
            }
            if (is_stopped) break;
            const u32 most = in_flight;
            if (n_started >= most) {
                const u32 earlier = n_started - most;
                Copies::wait(ring.full(earlier % RING_SLOTS), earlier / RING_SLOTS & 1);
            }
            start(from, bytes);
        }
        drain();
    }

    // The next one if it can start now, by a warp that has other things to do. False if it cannot.
    __device__ __forceinline__ bool try_next() {
        if (cursor.is_ended() || !cursor.is_open()) return false;
        const u32 most = in_flight, earlier = n_started - most;
        if (!__all_sync(~0u, Copies::is_past_now(ring.empty(ring.slot), ring.parity ^ 1))) return false;
        if (n_started >= most && !__all_sync(~0u, Copies::is_past_now(ring.full(earlier % RING_SLOTS), earlier / RING_SLOTS & 1))) return false;
        const char* from;
        u32 bytes;
        cursor.take(from, bytes);
        start(from, bytes);
        return true;
    }

    // Copies in flight must land before the block ends.
    __device__ __forceinline__ void drain() {
#pragma unroll 1
        for (u32 i = min(n_started, u32(RING_SLOTS)); i > 0; i--) {
            if (ring.slot-- == 0) ring.slot = RING_SLOTS - 1, ring.parity ^= 1;
            Copies::wait(ring.full(ring.slot), ring.parity);
        }
    }
};
