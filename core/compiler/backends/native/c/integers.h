/* What elementwise.h has of integers, for the types that few programs have: i8, i16, u16 and u64.
 *
 * No memory is touched but operands and results. Integers wrap as unsigned ones; no division is by zero, nor of the least
 * number by -1; a float is only made an integer that holds it. (Narrow numbers are ints in C, which hold what is made of
 * two of them here.)
 */
DL_INT(int8_t, uint8_t, i8, 1)
DL_INT(int16_t, uint16_t, i16, 1)
DL_INT(uint16_t, uint16_t, u16, 0)
DL_INT(uint64_t, uint64_t, u64, 0)

#define dl_to_i8(x) ((int8_t)(x))
#define dl_to_i16(x) ((int16_t)(x))
#define dl_to_u16(x) ((uint16_t)(x))
#define dl_to_u64(x) ((uint64_t)(x))
/* Narrow ones are the low bits of an i32, as in NumPy. A negative float wraps; one beyond u64 is 0, as on x86. */
#define DL_MORE_INTS_OF(T, S)                                                                         \
  DL_INLINE int8_t dl_i8_of_##S(T x) { return (int8_t)dl_i32_of_##S(x); }                             \
  DL_INLINE int16_t dl_i16_of_##S(T x) { return (int16_t)dl_i32_of_##S(x); }                          \
  DL_INLINE uint16_t dl_u16_of_##S(T x) { return (uint16_t)dl_i32_of_##S(x); }                        \
  DL_INLINE uint64_t dl_u64_of_##S(T x) {                                                             \
    return x < (T)0x1p63 || x != x ? (uint64_t)dl_i64_of_##S(x) : x < (T)0x1p64 ? (uint64_t)x : 0;     \
  }
DL_MORE_INTS_OF(float, f32)
DL_MORE_INTS_OF(double, f64)

DL_BITCAST(int8_t, i8, int8_t, i8)
DL_BITCAST(int8_t, i8, uint8_t, u8)
DL_BITCAST(uint8_t, u8, int8_t, i8)
DL_BITCAST(int16_t, i16, int16_t, i16)
DL_BITCAST(int16_t, i16, uint16_t, u16)
DL_BITCAST(uint16_t, u16, int16_t, i16)
DL_BITCAST(uint16_t, u16, uint16_t, u16)
DL_BITCAST(uint16_t, f16, int16_t, i16)
DL_BITCAST(uint16_t, f16, uint16_t, u16)
DL_BITCAST(int16_t, i16, uint16_t, f16)
DL_BITCAST(uint16_t, u16, uint16_t, f16)
DL_BITCAST(uint16_t, bf16, int16_t, i16)
DL_BITCAST(uint16_t, bf16, uint16_t, u16)
DL_BITCAST(int16_t, i16, uint16_t, bf16)
DL_BITCAST(uint16_t, u16, uint16_t, bf16)
DL_BITCAST(uint16_t, f16, uint16_t, f16)
DL_BITCAST(uint16_t, f16, uint16_t, bf16)
DL_BITCAST(uint16_t, bf16, uint16_t, f16)
DL_BITCAST(uint16_t, bf16, uint16_t, bf16)
DL_BITCAST(double, f64, uint64_t, u64)
DL_BITCAST(int64_t, i64, uint64_t, u64)
DL_BITCAST(uint64_t, u64, double, f64)
DL_BITCAST(uint64_t, u64, int64_t, i64)
DL_BITCAST(uint64_t, u64, uint64_t, u64)
