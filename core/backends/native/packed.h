/* Products whose B was packed beforehand by dl_pack_all: what a loop multiplies with in every trip. */

/* C = A B; the panels are [k][width], as long as k is. Parts of a panel that the first cache holds are gone through by
 * all rows, unless the rows are few: then each panel is read just once. */
DL_FUNCTION void dl_gemm_packed(int64_t m, int64_t n, int64_t k, const float *a, int64_t am, int64_t ak,
                                const float *panels, const dl_target *c) {
  const dl_rows rows = {a, m, 0, am, 1, k, 0, ak};
  const int64_t most = m <= 2 * DL_MR || c->after ? k : DL_KC;
  for (int64_t n0 = 0; n0 < n; n0 += DL_NR) {
    const int64_t columns = n - n0 < DL_NR ? n - n0 : DL_NR, width = dl_width(columns);
    for (int64_t k0 = 0; k0 < k || k0 == 0; k0 += most) {
      dl_rows part = rows;
      part.data += k0 * ak;
      part.length = k - k0 < most ? k - k0 : most;
      dl_panel(0, m, &part, panels + k0 * width, width, n0, columns, c, k0 > 0);
    }
    panels += k * width;
  }
}
