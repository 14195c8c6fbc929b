// Weights as the persistent kernels read them: see geometry.cuh for the layout.
//
// Shapes: source [ROWS][K] float32, row-major; result Matrix::BYTES of bf16 (round to nearest even).
// Geometry: any grid x 256 threads, one 16-byte piece a thread at a time. Runs once at configure.
// Bound by: device memory; the host's reading of weights takes longer.
#include "workspace.cuh"

struct Neighbours {
    static __device__ int row(int pair, int half) { return 2 * pair + half; }
};
struct Rotated {
    static __device__ int row(int pair, int half) { return pair / HALF_DIM * HEAD_DIM + pair % HALF_DIM + half * HALF_DIM; }
};
struct Gated {
    static __device__ int row(int pair, int half) { return half * INTERMEDIATE + pair; }
};

template <class M, class Rows>
__device__ void pack_matrix(const float* source, uint4* packed) {
    constexpr int STAGE_PIECES = GRID * WARPS * M::SEGMENT_STEPS * 4;   // of one pair
    for (u64 piece = blockIdx.x * u64(blockDim.x) + threadIdx.x; piece < M::BYTES / 16; piece += u64(gridDim.x) * blockDim.x) {
        // Tiles before the last have 8 pairs.
        const u32 full = u32(STAGE_PIECES) * 8 * M::SEGMENTS;
        int tile = piece / full;
        tile = tile < M::TILES - 1 ? tile : M::TILES - 1;
        const int pairs = M::tile_pairs(tile);
        u32 rest = piece - u64(full) * tile;
        const int segment = rest / (STAGE_PIECES * pairs);
        rest %= STAGE_PIECES * pairs;
        const int lane = rest % (4 * pairs), step = rest / (4 * pairs) % M::SEGMENT_STEPS;
        const int place = rest / (4 * pairs) / M::SEGMENT_STEPS, block = place / WARPS, warp = place % WARPS;
        const int pair = block * M::BLOCK_PAIRS + tile * 8 + lane / 4;
        const int warp_step = segment * M::SEGMENT_STEPS + step, k_step = warp * M::WARP_STEPS + warp_step;
        const bool is_real = pair < M::PAIRS && warp_step < M::WARP_STEPS && k_step < M::K_STEPS;
        __nv_bfloat162 out[4];
        for (int reg = 0; reg < 4; reg++) {
            float2 v = make_float2(0, 0);
            if (is_real) {
                const int k = k_step * 16 + lane % 4 * 2 + reg / 2 * 8;
                v = *reinterpret_cast<const float2*>(source + size_t(Rows::row(pair, reg % 2)) * M::K + k);
            }
            out[reg] = __floats2bfloat162_rn(v.x, v.y);
        }
        packed[piece] = *reinterpret_cast<uint4*>(out);
    }
}

#define PACK(name, matrix, rows) \
    extern "C" __global__ void pack_##name(const float* source, uint4* packed) { pack_matrix<matrix, rows>(source, packed); }
PACK(qkv, Qkv, Rotated)
PACK(output, Output, Neighbours)
PACK(gate_up, GateUp, Gated)
PACK(down, Down, Neighbours)
PACK(head, Head, Neighbours)
PACK(vision, Vision, Neighbours)

// What the host must know to allocate: bytes of the packed matrices, of the workspaces, floats of a trace.
extern "C" __device__ const u64 SIZES[] = {Qkv::BYTES, Output::BYTES, GateUp::BYTES, Down::BYTES, Head::BYTES, Vision::BYTES,
                                           Words::COUNT * 8, Prefill::BYTES, Trace::SIZE, sizeof(Command), sizeof(Result)};
