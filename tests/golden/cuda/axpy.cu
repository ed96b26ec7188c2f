// cube_dim 1 1 1 threads 256 shared 0 scratch 0
typedef float f32;
typedef unsigned long long u64;
typedef long long index;
typedef unsigned int u32;
struct alignas(16) f32x4 { f32 at[4]; };

extern "C" __global__ void __launch_bounds__(256)
axpy(const f32* __restrict__ b0, const f32* __restrict__ b1, f32* __restrict__ b2, u64 s1_cell, index s2, index cubes) {
  const f32 s1 = __uint_as_float((u32)s1_cell);
  const index cube = (index)blockIdx.x * blockDim.x + threadIdx.x;
  if (cube >= cubes) return;
  const index v3 = cube * 1024;
  const index v4 = v3 + 1024;
  const index v5 = v4 < s2 ? v4 : s2;
  for (index k6 = v3; k6 < v5; k6 += 16) {
    const f32x4 v7 = *(const f32x4*)(b0 + k6);
    const f32x4 v8 = *(const f32x4*)(b0 + k6 + 4);
    const f32x4 v9 = *(const f32x4*)(b0 + k6 + 8);
    const f32x4 v10 = *(const f32x4*)(b0 + k6 + 12);
    const f32x4 v11 = *(const f32x4*)(b1 + k6);
    const f32x4 v12 = *(const f32x4*)(b1 + k6 + 4);
    const f32x4 v13 = *(const f32x4*)(b1 + k6 + 8);
    const f32x4 v14 = *(const f32x4*)(b1 + k6 + 12);
    const f32 v15_0 = fmaf(s1, v7.at[0], v11.at[0]);
    const f32 v15_1 = fmaf(s1, v7.at[1], v11.at[1]);
    const f32 v15_2 = fmaf(s1, v7.at[2], v11.at[2]);
    const f32 v15_3 = fmaf(s1, v7.at[3], v11.at[3]);
    const f32 v15_4 = fmaf(s1, v8.at[0], v12.at[0]);
    const f32 v15_5 = fmaf(s1, v8.at[1], v12.at[1]);
    const f32 v15_6 = fmaf(s1, v8.at[2], v12.at[2]);
    const f32 v15_7 = fmaf(s1, v8.at[3], v12.at[3]);
    const f32 v15_8 = fmaf(s1, v9.at[0], v13.at[0]);
    const f32 v15_9 = fmaf(s1, v9.at[1], v13.at[1]);
    const f32 v15_10 = fmaf(s1, v9.at[2], v13.at[2]);
    const f32 v15_11 = fmaf(s1, v9.at[3], v13.at[3]);
    const f32 v15_12 = fmaf(s1, v10.at[0], v14.at[0]);
    const f32 v15_13 = fmaf(s1, v10.at[1], v14.at[1]);
    const f32 v15_14 = fmaf(s1, v10.at[2], v14.at[2]);
    const f32 v15_15 = fmaf(s1, v10.at[3], v14.at[3]);
    *(f32x4*)(b2 + k6) = f32x4{v15_0, v15_1, v15_2, v15_3};
    *(f32x4*)(b2 + k6 + 4) = f32x4{v15_4, v15_5, v15_6, v15_7};
    *(f32x4*)(b2 + k6 + 8) = f32x4{v15_8, v15_9, v15_10, v15_11};
    *(f32x4*)(b2 + k6 + 12) = f32x4{v15_12, v15_13, v15_14, v15_15};
  }
}
