/* Matrices of 4-byte numbers, rows to columns, in blocks that fit in registers.
 *
 * Bounds: reads rows 0..rows-1 and columns 0..columns-1 of `from`, writes the same turned. Blocks of 8 are used where both
 * sizes are >= 8: r = min(i, rows - 8) and c = min(j, columns - 8) are >= 0, and r + 7 < rows, c + 7 < columns.
 */
#if DL_LANES >= 8
typedef float dl_v8 __attribute__((vector_size(32)));
typedef float dl_v8u __attribute__((vector_size(32), aligned(4), may_alias));

/* An 8 by 8 block of numbers, rows to columns. */
DL_INLINE void dl_transpose_8(const float *from, int64_t from_step, float *to, int64_t to_step) {
#define DL_R(i) ((dl_v8) * (const dl_v8u *)(from + i * from_step))
#define DL_W(i, v) (*(dl_v8u *)(to + i * to_step) = (dl_v8u)(v))
#define DL_LOW(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define DL_HIGH(a, b) __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define DL_LOW2(a, b) __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define DL_HIGH2(a, b) __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define DL_LOW4(a, b) __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define DL_HIGH4(a, b) __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
  const dl_v8 a0 = DL_R(0), a1 = DL_R(1), a2 = DL_R(2), a3 = DL_R(3);
  const dl_v8 a4 = DL_R(4), a5 = DL_R(5), a6 = DL_R(6), a7 = DL_R(7);
  const dl_v8 b0 = DL_LOW(a0, a1), b1 = DL_HIGH(a0, a1), b2 = DL_LOW(a2, a3), b3 = DL_HIGH(a2, a3);
  const dl_v8 b4 = DL_LOW(a4, a5), b5 = DL_HIGH(a4, a5), b6 = DL_LOW(a6, a7), b7 = DL_HIGH(a6, a7);
  const dl_v8 c0 = DL_LOW2(b0, b2), c1 = DL_HIGH2(b0, b2), c2 = DL_LOW2(b1, b3), c3 = DL_HIGH2(b1, b3);
  const dl_v8 c4 = DL_LOW2(b4, b6), c5 = DL_HIGH2(b4, b6), c6 = DL_LOW2(b5, b7), c7 = DL_HIGH2(b5, b7);
  DL_W(0, DL_LOW4(c0, c4));
  DL_W(1, DL_LOW4(c1, c5));
  DL_W(2, DL_LOW4(c2, c6));
  DL_W(3, DL_LOW4(c3, c7));
  DL_W(4, DL_HIGH4(c0, c4));
  DL_W(5, DL_HIGH4(c1, c5));
  DL_W(6, DL_HIGH4(c2, c6));
  DL_W(7, DL_HIGH4(c3, c7));
}
#endif

/* to[j][i] = from[i][j]. Where less than a block is left, the last one overlaps the one before. */
DL_FUNCTION void dl_transpose_f32(int64_t rows, int64_t columns, const float *from, int64_t from_step, float *to,
                                  int64_t to_step) {
#if DL_LANES >= 8
  if (rows >= 8 && columns >= 8) {
    for (int64_t i = 0; i < rows; i += 8) {
      const int64_t r = i + 8 <= rows ? i : rows - 8;
      for (int64_t j = 0; j < columns; j += 8) {
        const int64_t c = j + 8 <= columns ? j : columns - 8;
        dl_transpose_8(from + r * from_step + c, from_step, to + c * to_step + r, to_step);
      }
    }
    return;
  }
#endif
  for (int64_t j = 0; j < columns; j++)
    for (int64_t i = 0; i < rows; i++) to[j * to_step + i] = from[i * from_step + j];
}
