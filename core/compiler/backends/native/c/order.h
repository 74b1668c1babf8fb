/* Order: a stable sort of indices by key, NaN last, as bottom-up merges of sorted runs.
 *
 * Bounds: keys and places hold 2 n each: k and k2 are the halves, indices from..end-1 <= n - 1, and a < middle or b < end is
 * what is taken. run <= 2 n < 2^42. NaN, being last, keeps the order total.
 */
#define DL_RUN 16

/* `step` numbers lie between neighbours; keys and places hold 2 n each. */
#define DL_ARGSORT(T, S)                                                                              \
  DL_FUNCTION void dl_argsort_##S(int64_t n, const T *x, int64_t step, int64_t *out, T *key,          \
                                  int64_t *place) {                                                   \
    T *k = key, *k2 = key + n;                                                                        \
    int64_t *p = place, *p2 = place + n;                                                              \
    for (int64_t i = 0; i < n; i++) k[i] = x[i * step], p[i] = i;                                     \
    for (int64_t from = 0; from < n; from += DL_RUN) {                                                \
      const int64_t end = from + DL_RUN < n ? from + DL_RUN : n;                                      \
      for (int64_t i = from + 1; i < end; i++) {                                                      \
        const T v = k[i];                                                                             \
        const int64_t q = p[i];                                                                       \
        int64_t j = i;                                                                                \
        for (; j > from && DL_BEFORE(v, k[j - 1]); j--) k[j] = k[j - 1], p[j] = p[j - 1];             \
        k[j] = v, p[j] = q;                                                                           \
      }                                                                                               \
    }                                                                                                 \
    for (int64_t run = DL_RUN; run < n; run *= 2) {                                                   \
      for (int64_t from = 0; from < n; from += 2 * run) {                                             \
        const int64_t middle = from + run < n ? from + run : n;                                       \
        const int64_t end = from + 2 * run < n ? from + 2 * run : n;                                  \
        int64_t a = from, b = middle;                                                                 \
        for (int64_t i = from; i < end; i++) {                                                        \
          const _Bool second = b < end && (a >= middle || DL_BEFORE(k[b], k[a]));                     \
          const int64_t at = second ? b++ : a++;                                                      \
          k2[i] = k[at], p2[i] = p[at];                                                               \
        }                                                                                             \
      }                                                                                               \
      T *const kt = k;                                                                                \
      int64_t *const pt = p;                                                                          \
      k = k2, k2 = kt, p = p2, p2 = pt;                                                               \
    }                                                                                                 \
    for (int64_t i = 0; i < n; i++) out[i * step] = p[i];                                             \
  }
/* NaN comes after every number. */
#define DL_BEFORE(a, b) ((a) < (b) || ((b) != (b) && (a) == (a)))
DL_ARGSORT(double, f64)
DL_ARGSORT(float, f32)
DL_ARGSORT(int64_t, i64)
DL_ARGSORT(int32_t, i32)
DL_ARGSORT(uint32_t, u32)
DL_ARGSORT(uint8_t, u8)
DL_ARGSORT(uint8_t, bool)
