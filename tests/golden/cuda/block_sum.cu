// cube_dim 32 1 1 threads 32 shared 144 scratch 0
typedef int i32;
typedef long long index;
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
static __device__ __forceinline__ u8 cas_u8(u8* at, u8 old, u8 value) {
  u32* const word = (u32*)((u64)at & ~3ull);
  const u32 shift = ((u64)at & 3) * 8, mask = 0xffu << shift;
  u32 seen = *(const volatile u32*)word, before;
  do {
    before = seen;
    if ((u8)(before >> shift) != old) return before >> shift;
    seen = atomicCAS(word, before, (before & ~mask) | (u32)value << shift);
  } while (seen != before);
  return old;
}

extern "C" __global__ void __launch_bounds__(32)
block_sum(const i32* __restrict__ b0, i32* __restrict__ b1, i32* b2, index cubes) {
  extern __shared__ __align__(16) u8 shared[];
  const index cube = blockIdx.x;
  i32* const a0 = (i32*)(shared + 0);
  u8* const a1 = (u8*)(shared + 128);
  alignas(16) i32 a2[2];
  const index v1 = cube * 32;
  const index v2 = v1 + (index)threadIdx.x;
  const i32 v3 = b0[v2];
  a2[1] = v3;
  const i32 v4 = a2[1];
  a0[(index)threadIdx.x] = v4;
  const bool v5 = (index)threadIdx.x == 0;
  if (v5) {
    a1[1] = 0;
  }
  __syncthreads();
  const i32 v6 = v3 & 1;
  const u8 v7 = (u8)v6;
  u8 w8 = *(const volatile u8*)(a1 + 1), w9;
  do {
    w9 = w8;
    const u8 v10 = (u8)w9;
    const u8 v11 = v10 + v7;
    w8 = cas_u8((u8*)(a1 + 1), w9, v11);
  } while (w8 != w9);
  const u8 v12 = (u8)w9;
  const bool v13 = (index)threadIdx.x < 16;
  if (v13) {
    const i32 v14 = a0[(index)threadIdx.x];
    const index v15 = (index)threadIdx.x + 16;
    const i32 v16 = a0[v15];
    const i32 v17 = (u32)v14 + (u32)v16;
    a0[(index)threadIdx.x] = v17;
  }
  __syncthreads();
  const bool v18 = (index)threadIdx.x < 8;
  if (v18) {
    const i32 v19 = a0[(index)threadIdx.x];
    const index v20 = (index)threadIdx.x + 8;
    const i32 v21 = a0[v20];
    const i32 v22 = (u32)v19 + (u32)v21;
    a0[(index)threadIdx.x] = v22;
  }
  __syncthreads();
  const bool v23 = (index)threadIdx.x < 4;
  if (v23) {
    const i32 v24 = a0[(index)threadIdx.x];
    const index v25 = (index)threadIdx.x + 4;
    const i32 v26 = a0[v25];
    const i32 v27 = (u32)v24 + (u32)v26;
    a0[(index)threadIdx.x] = v27;
  }
  __syncthreads();
  const bool v28 = (index)threadIdx.x < 2;
  if (v28) {
    const i32 v29 = a0[(index)threadIdx.x];
    const index v30 = (index)threadIdx.x + 2;
    const i32 v31 = a0[v30];
    const i32 v32 = (u32)v29 + (u32)v31;
    a0[(index)threadIdx.x] = v32;
  }
  __syncthreads();
  const bool v33 = (index)threadIdx.x < 1;
  if (v33) {
    const i32 v34 = a0[(index)threadIdx.x];
    const index v35 = (index)threadIdx.x + 1;
    const i32 v36 = a0[v35];
    const i32 v37 = (u32)v34 + (u32)v36;
    a0[(index)threadIdx.x] = v37;
  }
  __syncthreads();
  if (v5) {
    const i32 v38 = a0[0];
    b1[cube] = v38;
    const u8 v39 = a1[1];
    const i32 v40 = (i32)v39;
    b2[cube] = v40;
  }
}
