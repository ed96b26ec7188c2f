// cube_dim 1 1 1 threads 256 shared 0 scratch 0
typedef unsigned short bf16;
typedef float f32;
typedef long long index;
typedef unsigned int u32;
static __device__ __forceinline__ f32 f32_from_bf16(bf16 x) {
  return __uint_as_float((u32)x << 16);
}
static __device__ __forceinline__ f32 max_f32(f32 x, f32 y) {
  f32 result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

extern "C" __global__ void __launch_bounds__(256)
row_maximum(const bf16* __restrict__ b0, f32* __restrict__ b1, index s1, index cubes) {
  const index cube = (index)blockIdx.x * blockDim.x + threadIdx.x;
  if (cube >= cubes) return;
  f32 x2_0 = __uint_as_float(0xff800000);
  f32 x2_1 = __uint_as_float(0xff800000);
  f32 x2_2 = __uint_as_float(0xff800000);
  f32 x2_3 = __uint_as_float(0xff800000);
  f32 x2_4 = __uint_as_float(0xff800000);
  f32 x2_5 = __uint_as_float(0xff800000);
  f32 x2_6 = __uint_as_float(0xff800000);
  f32 x2_7 = __uint_as_float(0xff800000);
  for (index k3 = 0; k3 < s1; k3 += 8) {
    const index v4_0 = 0 + k3;
    const index v4_1 = 1 + k3;
    const index v4_2 = 2 + k3;
    const index v4_3 = 3 + k3;
    const index v4_4 = 4 + k3;
    const index v4_5 = 5 + k3;
    const index v4_6 = 6 + k3;
    const index v4_7 = 7 + k3;
    const bool v5_0 = v4_0 < s1;
    const bool v5_1 = v4_1 < s1;
    const bool v5_2 = v4_2 < s1;
    const bool v5_3 = v4_3 < s1;
    const bool v5_4 = v4_4 < s1;
    const bool v5_5 = v4_5 < s1;
    const bool v5_6 = v4_6 < s1;
    const bool v5_7 = v4_7 < s1;
    const index v6 = cube * s1;
    const index v7 = v6 + k3;
    const bf16 v8_0 = v5_0 ? b0[v7] : 0x0000;
    const bf16 v8_1 = v5_1 ? b0[v7 + 1] : 0x0000;
    const bf16 v8_2 = v5_2 ? b0[v7 + 2] : 0x0000;
    const bf16 v8_3 = v5_3 ? b0[v7 + 3] : 0x0000;
    const bf16 v8_4 = v5_4 ? b0[v7 + 4] : 0x0000;
    const bf16 v8_5 = v5_5 ? b0[v7 + 5] : 0x0000;
    const bf16 v8_6 = v5_6 ? b0[v7 + 6] : 0x0000;
    const bf16 v8_7 = v5_7 ? b0[v7 + 7] : 0x0000;
    const f32 v9_0 = f32_from_bf16(v8_0);
    const f32 v9_1 = f32_from_bf16(v8_1);
    const f32 v9_2 = f32_from_bf16(v8_2);
    const f32 v9_3 = f32_from_bf16(v8_3);
    const f32 v9_4 = f32_from_bf16(v8_4);
    const f32 v9_5 = f32_from_bf16(v8_5);
    const f32 v9_6 = f32_from_bf16(v8_6);
    const f32 v9_7 = f32_from_bf16(v8_7);
    const f32 v10_0 = x2_0;
    const f32 v10_1 = x2_1;
    const f32 v10_2 = x2_2;
    const f32 v10_3 = x2_3;
    const f32 v10_4 = x2_4;
    const f32 v10_5 = x2_5;
    const f32 v10_6 = x2_6;
    const f32 v10_7 = x2_7;
    const f32 v11_0 = max_f32(v10_0, v9_0);
    const f32 v11_1 = max_f32(v10_1, v9_1);
    const f32 v11_2 = max_f32(v10_2, v9_2);
    const f32 v11_3 = max_f32(v10_3, v9_3);
    const f32 v11_4 = max_f32(v10_4, v9_4);
    const f32 v11_5 = max_f32(v10_5, v9_5);
    const f32 v11_6 = max_f32(v10_6, v9_6);
    const f32 v11_7 = max_f32(v10_7, v9_7);
    const f32 v12_0 = x2_0;
    const f32 v12_1 = x2_1;
    const f32 v12_2 = x2_2;
    const f32 v12_3 = x2_3;
    const f32 v12_4 = x2_4;
    const f32 v12_5 = x2_5;
    const f32 v12_6 = x2_6;
    const f32 v12_7 = x2_7;
    const f32 v13_0 = v5_0 ? v11_0 : v12_0;
    const f32 v13_1 = v5_1 ? v11_1 : v12_1;
    const f32 v13_2 = v5_2 ? v11_2 : v12_2;
    const f32 v13_3 = v5_3 ? v11_3 : v12_3;
    const f32 v13_4 = v5_4 ? v11_4 : v12_4;
    const f32 v13_5 = v5_5 ? v11_5 : v12_5;
    const f32 v13_6 = v5_6 ? v11_6 : v12_6;
    const f32 v13_7 = v5_7 ? v11_7 : v12_7;
    x2_0 = v13_0;
    x2_1 = v13_1;
    x2_2 = v13_2;
    x2_3 = v13_3;
    x2_4 = v13_4;
    x2_5 = v13_5;
    x2_6 = v13_6;
    x2_7 = v13_7;
  }
  const f32 v14_0 = x2_0;
  const f32 v14_1 = x2_1;
  const f32 v14_2 = x2_2;
  const f32 v14_3 = x2_3;
  const f32 v14_4 = x2_4;
  const f32 v14_5 = x2_5;
  const f32 v14_6 = x2_6;
  const f32 v14_7 = x2_7;
  const f32 v15 = max_f32(v14_0, v14_4);
  const f32 v16 = max_f32(v14_1, v14_5);
  const f32 v17 = max_f32(v14_2, v14_6);
  const f32 v18 = max_f32(v14_3, v14_7);
  const f32 v19 = max_f32(v15, v17);
  const f32 v20 = max_f32(v16, v18);
  const f32 v21 = max_f32(v19, v20);
  b1[cube] = v21;
}
