// cube_dim 1 1 1 threads 256 shared 0 scratch 0
typedef int i32;
typedef unsigned long long u64;
typedef long long index;

extern "C" __global__ void __launch_bounds__(256)
search(const i32* __restrict__ b0, i32* b1, u64 s1_cell, index s2, index cubes) {
  const i32 s1 = (i32)s1_cell;
  const index cube = (index)blockIdx.x * blockDim.x + threadIdx.x;
  if (cube >= cubes) return;
  index x3 = cube;
  for (;;) {
    const index v4 = x3;
    const bool v5 = v4 >= s2;
    if (v5) {
      break;
    }
    const index v6 = x3;
    const i32 v7 = b0[v6];
    const bool v8 = v7 == s1;
    if (v8) {
      const index v9 = x3;
      const i32 v10 = (i32)v9;
      const i32 v11 = atomicMin(b1 + 0, v10);
    }
    const index v12 = x3;
    const index v13 = v12 + cubes;
    x3 = v13;
  }
}
