// What the two blocks of a cluster send each other: a pair of sums a thread, straight to the other's shared memory,
// where an mbarrier counts the bytes.
#pragma once
#include "ring.cuh"

struct Partner {
    u64 barrier;
    alignas(8) float2 received[THREADS];

    __device__ __forceinline__ u32 barrier_at() const { return u32(__cvta_generic_to_shared(&barrier)); }

    // By one thread, before the block meets.
    __device__ __forceinline__ void init() const {
        Copies::init(barrier_at(), 1);
        Copies::publish_init();
    }
#if __CUDA_ARCH__ >= 900
    // By one thread, once an exchange: `pairs` of every 8 threads of the other block send. They may do so before.
    __device__ __forceinline__ void expect(int pairs) const {
        const u32 bytes = pairs * (THREADS / 8) * sizeof(float2);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier_at()), "r"(bytes) : "memory");
    }
    // To the same thread of the other block.
    __device__ __forceinline__ void send(int thread, float a, float b) const {
        const u32 to = u32(__cvta_generic_to_shared(received + thread)), other = blockIdx.x % 2 ^ 1;
        asm volatile(
            "{ .reg .b32 to, counted;\n"
            "mapa.shared::cluster.u32 to, %0, %2;\n"
            "mapa.shared::cluster.u32 counted, %1, %2;\n"
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [counted]; }" ::"r"(to),
            "r"(barrier_at()), "r"(other), "f"(a), "f"(b)
            : "memory");
    }
    // parity: of the exchange's number, from 0 on.
    __device__ __forceinline__ float2 take(int thread, u32 parity) const {
        u32 is_there;
        Watchdog dog;
        do {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(is_there) : "r"(barrier_at()), "r"(parity) : "memory");
            dog.spin();
        } while (!is_there);
        return received[thread];
    }
#endif
};
