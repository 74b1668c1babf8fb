/* Linear systems, a matrix at a time and row by row. All work is in f64, whatever the numbers in memory are.
 *
 * Bounds: n >= 1; a has n n numbers and b n k; work n n + n k (solving.py). Indices are i n + j with i, j < n, and i k + j
 * with j < k. A pivot of zero ends the loop before it divides; NaN goes on, as in LAPACK.
 */

/* a, of which the lower triangle is read, becomes its Cholesky factor; 0 when it has none. */
DL_FUNCTION int dl_cholesky(int64_t n, double *restrict a) {
  for (int64_t i = 0; i < n; i++) {
    double *const row = a + i * n;
    for (int64_t j = 0; j <= i; j++) {
      const double *const other = a + j * n;
      double sum = row[j];
      for (int64_t k = 0; k < j; k++) sum -= row[k] * other[k];
      if (j < i)
        row[j] = sum / other[j];
      else if (!(sum <= 0))
        row[j] = __builtin_sqrt(sum);
      else
        return 0;
    }
    for (int64_t j = i + 1; j < n; j++) row[j] = 0;
  }
  return 1;
}

/* a becomes its factors, L below the diagonal (ones are left out) and U; rows of a, and of b (n by k), change places.
 * Gives the sign of the permutation, or 0 when a pivot is zero. */
DL_FUNCTION int dl_factor(int64_t n, double *restrict a, int64_t k, double *restrict b) {
  int sign = 1;
  for (int64_t c = 0; c < n; c++) {
    int64_t best = c;
    for (int64_t i = c + 1; i < n; i++)
      if (__builtin_fabs(a[i * n + c]) > __builtin_fabs(a[best * n + c])) best = i;
    const double pivot = a[best * n + c];
    if (pivot == 0) return 0;
    if (best != c) {
      sign = -sign;
      for (int64_t j = 0; j < n; j++) {
        const double t = a[c * n + j];
        a[c * n + j] = a[best * n + j], a[best * n + j] = t;
      }
      for (int64_t j = 0; j < k; j++) {
        const double t = b[c * k + j];
        b[c * k + j] = b[best * k + j], b[best * k + j] = t;
      }
    }
    for (int64_t i = c + 1; i < n; i++) {
      const double f = a[i * n + c] /= pivot;
      for (int64_t j = c + 1; j < n; j++) a[i * n + j] -= f * a[c * n + j];
    }
  }
  return sign;
}

/* b (n by k) becomes the solution; `unit` takes the diagonal for ones. 0 when an element of it is zero. */
DL_FUNCTION int dl_substitute(int64_t n, int64_t k, const double *restrict a, double *restrict b, int lower, int unit) {
  for (int64_t s = 0; s < n; s++) {
    const int64_t i = lower ? s : n - 1 - s;
    double *const row = b + i * k;
    for (int64_t m = lower ? 0 : i + 1; m < (lower ? i : n); m++) {
      const double f = a[i * n + m];
      for (int64_t j = 0; j < k; j++) row[j] -= f * b[m * k + j];
    }
    if (unit) continue;
    const double d = a[i * n + i];
    if (d == 0) return 0;
    for (int64_t j = 0; j < k; j++) row[j] /= d;
  }
  return 1;
}

/* For each element type: one matrix in, one out; `work` holds n n + n k numbers. */
#define DL_SOLVE(T, S)                                                                                \
  DL_FUNCTION void dl_widen_##S(int64_t n, const T *restrict x, double *restrict y) {                 \
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];                                              \
  }                                                                                                   \
  DL_FUNCTION void dl_narrow_##S(int64_t n, int good, const double *restrict x, T *restrict y) {      \
    for (int64_t i = 0; i < n; i++) y[i] = good ? (T)x[i] : (T)__builtin_nan("");                     \
  }                                                                                                   \
  DL_FUNCTION void dl_cholesky_##S(int64_t n, const T *a, T *to, double *work) {                      \
    dl_widen_##S(n *n, a, work);                                                                      \
    dl_narrow_##S(n *n, dl_cholesky(n, work), work, to);                                              \
    for (int64_t i = 0; i < n; i++)                                                                   \
      for (int64_t j = i + 1; j < n; j++) to[i * n + j] = 0;                                          \
  }                                                                                                   \
  DL_FUNCTION void dl_triangular_##S(int64_t n, int64_t k, int lower, const T *a, const T *b, T *to,  \
                                     double *work) {                                                  \
    double *const x = work + n * n;                                                                   \
    dl_widen_##S(n *n, a, work);                                                                      \
    dl_widen_##S(n *k, b, x);                                                                         \
    dl_narrow_##S(n *k, dl_substitute(n, k, work, x, lower, 0), x, to);                               \
  }                                                                                                   \
  DL_FUNCTION void dl_solve_##S(int64_t n, int64_t k, const T *a, const T *b, T *to, double *work) {  \
    double *const x = work + n * n;                                                                   \
    dl_widen_##S(n *n, a, work);                                                                      \
    dl_widen_##S(n *k, b, x);                                                                         \
    const int good = dl_factor(n, work, k, x) != 0 && dl_substitute(n, k, work, x, 1, 1) &&           \
                     dl_substitute(n, k, work, x, 0, 0);                                              \
    dl_narrow_##S(n *k, good, x, to);                                                                 \
  }                                                                                                   \
  DL_FUNCTION void dl_slogdet_##S(int64_t n, const T *a, T *sign, T *size, double *work) {            \
    dl_widen_##S(n *n, a, work);                                                                      \
    double s = dl_factor(n, work, 0, work), sum = 0;                                                  \
    for (int64_t i = 0; i < n && s != 0; i++) {                                                       \
      const double d = work[i * n + i];                                                               \
      s = d < 0 ? -s : s;                                                                             \
      sum += log(__builtin_fabs(d));                                                                  \
    }                                                                                                 \
    *sign = (T)s;                                                                                     \
    *size = (T)(s == 0 ? -__builtin_inf() : sum);                                                     \
  }
DL_SOLVE(double, f64)
DL_SOLVE(float, f32)
