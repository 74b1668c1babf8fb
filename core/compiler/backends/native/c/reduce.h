/* Reductions along contiguous numbers, in a fixed order whatever the compiler: lanes side by side, then the lanes.
 *
 * Loops hand over chunks of at most DL_CHUNK numbers, so that a long sum is a sum of short ones, and rounds little.
 *
 * Bounds: a loop of vectors goes on while i + 2 LANES <= n, or i + LANES <= n, and each load covers i..i+LANES-1; the
 * rest goes one by one while i < n. n <= DL_CHUNK.
 */
#define DL_CHUNK 256

DL_FUNCTION float dl_reduce_sum_f32(float from, const float *p, int64_t n) {
  dl_vf a = {0}, b = {0};
  int64_t i = 0;
  for (; i + 2 * DL_LANES <= n; i += 2 * DL_LANES) {
    a += dl_load(p + i);
    b += dl_load(p + i + DL_LANES);
  }
  if (i + DL_LANES <= n) {
    a += dl_load(p + i);
    i += DL_LANES;
  }
  a += b;
  float sum = 0.0f;
  for (; i < n; i++) sum += p[i];
  for (int l = 0; l < DL_LANES; l++) sum += DL_LANE(a, l);
  return from + sum;
}

DL_FUNCTION double dl_reduce_sum_f64(double from, const double *p, int64_t n) {
  double lane[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int l = 0; l < 4; l++) lane[l] += p[i + l];
  for (; i < n; i++) lane[0] += p[i];
  return from + ((lane[0] + lane[1]) + (lane[2] + lane[3]));
}

#if DL_LANES == 1
#define DL_EXTREME(NAME, ORDER)                                                                       \
  DL_FUNCTION float dl_reduce_##NAME##_f32(float from, const float *p, int64_t n) {                   \
    for (int64_t i = 0; i < n; i++) from = dl_##NAME##_f32(from, p[i]);                               \
    return from;                                                                                      \
  }
#else
typedef int32_t dl_vi __attribute__((vector_size(4 * DL_LANES)));
#define DL_EXTREME(NAME, ORDER)                                                                       \
  DL_FUNCTION float dl_reduce_##NAME##_f32(float from, const float *p, int64_t n) {                   \
    int64_t i = 0;                                                                                    \
    if (n >= DL_LANES) {                                                                              \
      dl_vf a = dl_load(p);                                                                           \
      for (i = DL_LANES; i + DL_LANES <= n; i += DL_LANES) {                                          \
        const dl_vf b = dl_load(p + i);                                                               \
        const dl_vi keep = (dl_vi)((a ORDER b) | (a != a));                                           \
        a = (dl_vf)(((dl_vi)a & keep) | ((dl_vi)b & ~keep));                                          \
      }                                                                                               \
      for (int l = 0; l < DL_LANES; l++) from = dl_##NAME##_f32(from, a[l]);                          \
    }                                                                                                 \
    for (; i < n; i++) from = dl_##NAME##_f32(from, p[i]);                                            \
    return from;                                                                                      \
  }
#endif
DL_EXTREME(max, >=)
DL_EXTREME(min, <=)
