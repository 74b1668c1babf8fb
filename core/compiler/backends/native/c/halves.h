/* 16-bit floats as their bits: conversions to and from f32, to nearest, ties to even.
 *
 * No memory is touched but operands and results. Shifts are of uint32_t by less than 32; sums of uint32_t wrap.
 */
DL_INLINE float dl_f32_of_bits(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}
DL_INLINE uint32_t dl_bits_of_f32(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

/* bf16 is the upper half of an f32. */
DL_INLINE float dl_f32_of_bf16(uint16_t x) { return dl_f32_of_bits((uint32_t)x << 16); }
DL_INLINE uint16_t dl_bf16_of_f32(float f) {
  const uint32_t u = dl_bits_of_f32(f), rounded = u + 0x7fff + (u >> 16 & 1);
  return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : rounded >> 16);
}

/* f16: the exponent is moved by a product, which makes subnormals normal. */
DL_INLINE float dl_f32_of_f16(uint16_t x) {
  const uint32_t size = x & 0x7fff, sign = (uint32_t)(x & 0x8000) << 16;
  const uint32_t finite = dl_bits_of_f32(dl_f32_of_bits(size << 13) * 0x1p112f);
  return dl_f32_of_bits((size >= 0x7c00 ? (size << 13 | 0x7f800000) : finite) | sign);
}
DL_INLINE uint16_t dl_f16_of_f32(float f) {
  const uint32_t u = dl_bits_of_f32(f), size = u & 0x7fffffff, sign = u >> 16 & 0x8000;
  const uint32_t normal = (size - (112u << 23) + 0xfff + (size >> 13 & 1)) >> 13;
  const uint32_t tiny = dl_bits_of_f32(dl_f32_of_bits(size) + 0.5f) - 0x3f000000;
  const uint32_t large = size > 0x7f800000 ? 0x7e00 : 0x7c00;
  return (uint16_t)((size >= 0x47800000 ? large : size < 0x38800000 ? tiny : normal) | sign);
}

#ifdef DL_ADDER
#define DL_HALF_ADDER(S)                                                                                          \
  DL_FUNCTION void dl_add_##S(void *to, const void *a, const void *b, size_t n) {                                 \
    uint16_t *restrict t = to;                                                                                    \
    const uint16_t *x = a, *y = b;                                                                                \
    for (size_t i = 0; i < n; i++) t[i] = dl_##S##_of_f32(dl_f32_of_##S(x[i]) + dl_f32_of_##S(y[i]));             \
  }
DL_HALF_ADDER(bf16)
DL_HALF_ADDER(f16)
#endif
