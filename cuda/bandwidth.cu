// The read ceiling of device memory: what a kernel that only reads reaches.
//
// Shapes: n 16-byte words. Geometry: set by the caller; the best of several is the ceiling.
// Bound by: device memory.
#include <stdint.h>

template <int UNROLL>
__device__ void read_words(const uint4* words, uint64_t n, uint32_t* sink) {
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint32_t sum = 0;
    uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x;
    for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
        uint4 v[UNROLL];
#pragma unroll
        for (int j = 0; j < UNROLL; j++) v[j] = __ldcs(words + i + j * stride);
#pragma unroll
        for (int j = 0; j < UNROLL; j++) sum ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
    }
    for (; i < n; i += stride) sum ^= words[i].x;
    if (sum == 0x9e3779b9u) *sink = sum;
}
extern "C" __global__ void read_4(const uint4* words, uint64_t n, uint32_t* sink) { read_words<4>(words, n, sink); }
extern "C" __global__ void read_8(const uint4* words, uint64_t n, uint32_t* sink) { read_words<8>(words, n, sink); }
extern "C" __global__ void read_16(const uint4* words, uint64_t n, uint32_t* sink) { read_words<16>(words, n, sink); }

extern "C" __global__ void fill_random(uint4* words, uint64_t n) {
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x; i < n; i += stride) {
        uint64_t z = i * 0x9e3779b97f4a7c15ull + 1;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        z ^= z >> 31;
        words[i] = make_uint4(uint32_t(z), uint32_t(z >> 32), uint32_t(z * 3), uint32_t((z * 5) >> 16));
    }
}

extern "C" __global__ void copy_words(const uint4* from, uint4* to, uint64_t n) {
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    uint64_t i = blockIdx.x * uint64_t(blockDim.x) + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 v[4];
#pragma unroll
        for (int j = 0; j < 4; j++) v[j] = __ldcs(from + i + j * stride);
#pragma unroll
        for (int j = 0; j < 4; j++) __stcs(to + i + j * stride, v[j]);
    }
    for (; i < n; i += stride) to[i] = from[i];
}
