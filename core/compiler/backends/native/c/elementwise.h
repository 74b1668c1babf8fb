/* One element of each elementwise primitive, `dl_NAME_TYPE`.
 *
 * The f32 functions are branch-free scalar code that compilers turn into vector loops; they are within 4 ulp, and right
 * for NaN, infinities, zeros and overflow. Coefficients are minimax fits (Lawson iteration, 40 digits, rounded to f32).
 * The f64 functions are those of libm.
 *
 * No memory is touched but operands and results. Integers wrap as unsigned ones; no division is by zero, nor of the least
 * number by -1; shifts are below the width; a float is only made an integer that holds it.
 */
double exp(double), log(double), log1p(double), expm1(double), sin(double), cos(double), tanh(double), erf(double);
double pow(double, double), fmod(double, double), atan2(double, double);
float powf(float, float), fmodf(float, float), atan2f(float, float);

/* x = n ln2 + r with |r| <= ln2 / 2, n rounded by adding 1.5 * 2^23; ln2 is split so that n * high is exact. */
#define DL_ROUND_F32 12582912.0f
#define DL_LN2_HIGH 0.693359375f
#define DL_LN2_LOW -2.12194440e-4f

/* (e^r - 1 - r) / r^2 */
DL_INLINE float dl_exp_tail_f32(float r) {
  float q = 1.3951628e-3f;
  q = q * r + 8.369599e-3f;
  q = q * r + 4.1666187e-2f;
  q = q * r + 1.6666512e-1f;
  return q * r + 0.5f;
}

DL_INLINE float dl_exp_f32(float x) {
  x = x > 89.0f ? 89.0f : x; /* over is inf all the same, and n stays in range */
  x = x < -104.0f ? -104.0f : x;
  const float z = x * 1.44269504f + DL_ROUND_F32;
  const float n = z - DL_ROUND_F32;
  const int32_t k = (int32_t)dl_as_u32(z) - (int32_t)dl_as_u32(DL_ROUND_F32);
  float r = x - n * DL_LN2_HIGH;
  r = r - n * DL_LN2_LOW;
  const float p = r * r * dl_exp_tail_f32(r) + r + 1.0f;
  const int32_t half = k >> 1; /* 2^k in two factors: subnormal results round once, 2^128 does not overflow early */
  return p * dl_as_f32((uint32_t)(half + 127) << 23) * dl_as_f32((uint32_t)(k - half + 127) << 23);
}

DL_INLINE float dl_expm1_f32(float x) {
  const float y = x > 89.0f ? 89.0f : x < -18.0f ? -18.0f : x;
  const float z = y * 1.44269504f + DL_ROUND_F32;
  const float n = z - DL_ROUND_F32;
  const int32_t k = (int32_t)dl_as_u32(z) - (int32_t)dl_as_u32(DL_ROUND_F32);
  float r = y - n * DL_LN2_HIGH;
  r = r - n * DL_LN2_LOW;
  const float p = r * r * dl_exp_tail_f32(r) + r;
  const float t = dl_as_f32((uint32_t)(k + 126) << 23); /* 2^(k-1) */
  const float m = 2.0f * (t * p + (t - 0.5f));
  return __builtin_fabsf(x) < 1e-20f ? x : m;
}

/* log(m) for the reduced m = 1 + f, and the exponent. The caller deals with 0, negatives, inf and NaN. */
DL_INLINE float dl_log_normal_f32(float x) {
  const _Bool tiny = x < 1.17549435e-38f;
  const uint32_t bits = dl_as_u32(tiny ? x * 8388608.0f : x) - 0x3f3504f3u; /* 1/sqrt(2) */
  const float e = (float)((int32_t)bits >> 23) - (tiny ? 23.0f : 0.0f);
  const float f = dl_as_f32((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
  float p = -7.851987e-2f;
  p = p * f + 1.2881474e-1f;
  p = p * f - 1.3131453e-1f;
  p = p * f + 1.4181401e-1f;
  p = p * f - 1.6624312e-1f;
  p = p * f + 2.000227e-1f;
  p = p * f - 2.5000817e-1f;
  p = p * f + 3.3333316e-1f;
  const float s = f * f;
  return (f + (e * DL_LN2_LOW + (s * f * p - 0.5f * s))) + e * DL_LN2_HIGH;
}

DL_INLINE float dl_log_f32(float x) {
  float r = dl_log_normal_f32(x);
  r = x == 0.0f ? -__builtin_inff() : r;
  r = x < 0.0f ? __builtin_nanf("") : r;
  return x < __builtin_inff() ? r : x; /* inf and NaN */
}

DL_INLINE float dl_log1p_f32(float x) {
  const float u = 1.0f + x;
  const float rest = x - (u - 1.0f); /* what rounding u lost */
  float r = dl_log_normal_f32(u) + rest / u;
  r = u == 0.0f ? -__builtin_inff() : r;
  r = u < 0.0f ? __builtin_nanf("") : r;
  r = x == 0.0f ? x : r;
  return x < __builtin_inff() ? r : x;
}

DL_INLINE float dl_sigmoid_f32(float x) {
  const float e = dl_exp_f32(x < 0.0f ? x : -x);
  const float s = 1.0f / (1.0f + e);
  return x < 0.0f ? e * s : s;
}

DL_INLINE float dl_tanh_f32(float x) {
  const float t = dl_expm1_f32(-2.0f * __builtin_fabsf(x));
  const float r = __builtin_fabsf(t) / (t + 2.0f);
  return x != x ? x : __builtin_copysignf(r, x);
}

DL_INLINE float dl_erf_f32(float x) {
  const float s = x * x;
  float small = 8.193767e-05f;
  small = small * s - 8.0998737e-04f;
  small = small * s + 5.1971544e-03f;
  small = small * s - 2.6857791e-02f;
  small = small * s + 1.1283666e-01f;
  small = small * s - 3.7612632e-01f;
  small = small * s + 1.1283792f;
  float t = __builtin_fabsf(x);
  t = t > 4.0f ? 4.0f : t; /* 1 - erf(4) < 2^-25 */
  float big = -4.6245693e-4f; /* (1 - erf t) e^(t^2), where 1 - erf t is weighed */
  big = big * t + 6.916072e-3f;
  big = big * t - 4.572362e-2f;
  big = big * t + 1.7745033e-1f;
  big = big * t - 4.53706056e-1f;
  big = big * t + 8.139895e-1f;
  big = big * t - 1.059517f;
  big = big * t + 9.886368e-1f;
  /* e^(-s) is what the derivative has too: in one loop with it, it is computed once. */
  const float r = __builtin_copysignf(1.0f - dl_exp_f32(-s) * big, x);
  return __builtin_fabsf(x) < 0.92f ? x * small : x != x ? x : r;
}

/* Sine and cosine of f32: x = k pi/2 + r with |r| <= pi/4, r in f64. `near`: |x| < 2^24, where k has so few bits that its
 * product with the upper part of pi/2 is exact. Anything else gives some number, and NaN for infinities and NaN. */
DL_INLINE float dl_sine_f32(double r, int64_t k) {
  const double s = r * r;
  double sine = 2.718311321163398e-06;
  sine = sine * s - 1.983933481004948e-04;
  sine = sine * s + 8.333329385770498e-03;
  sine = sine * s - 1.6666666641624922e-01;
  sine = sine * s * r + r;
  double cosine = -2.7210231120095483e-07;
  cosine = cosine * s + 2.4799519918934485e-05;
  cosine = cosine * s - 1.388888375302681e-03;
  cosine = cosine * s + 4.166666662282296e-02;
  cosine = cosine * s * s - 0.5 * s + 1.0;
  const double v = (k & 1) ? cosine : sine;
  return (float)((k & 2) ? -v : v);
}
DL_INLINE float dl_sincos_near_f32(float x, int64_t quarter) {
  const double y = (double)x;
  const double z = y * 0x1.45f306dc9c883p-1 + 0x1.8p52;
  const double n = z - 0x1.8p52;
  int64_t k;
  __builtin_memcpy(&k, &z, 8);
  const double r = (y - n * 0x1.921fb54p0) - n * 0x1.10b4611a62633p-30;
  return dl_sine_f32(r, k + quarter);
}
DL_INLINE float dl_sin_near_f32(float x) { return x == 0.0f ? x : dl_sincos_near_f32(x, 0); }
DL_INLINE float dl_cos_near_f32(float x) { return dl_sincos_near_f32(x, 1); }

/* Of a large |x| = m 2^s, with m < 2^24 and 1 <= s <= 104, the product with 2/pi modulo 4 (Payne and Hanek, "Radian
 * reduction for trigonometric functions", 1983): bits of 2/pi that 2^s makes multiples of 4 count for nothing, and the
 * next 96 give 2^s 2/pi modulo 4 in units of 2^-94. No f32 times 2/pi is nearer to a whole number than 2^-30, so r has more
 * than 30 bits. The words are 2/pi after a word of zeros; bit s - 1 of 2/pi is bit s + 30 of them, and k + 3 <= 7. */
static const uint32_t dl_two_over_pi[8] = {0,           0xa2f9836eu, 0x4e441529u, 0xfc2757d1u,
                                           0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu};
DL_INLINE int dl_is_far_f32(float x) { return __builtin_fabsf(x) >= 0x1p24f; }
DL_INLINE float dl_sincos_f32(float x, int64_t quarter) {
  if (!dl_is_far_f32(x) || x - x != 0.0f) return dl_sincos_near_f32(x, quarter);
  const uint32_t bits = dl_as_u32(x), first = (bits >> 23 & 255) - 120, k = first >> 5, by = first & 31;
  const uint64_t m = (bits & 0x007fffffu) | 0x00800000u;
  const uint32_t *const w = dl_two_over_pi + k;
  const uint64_t high = ((uint64_t)w[0] << 32 | w[1]) << by | (uint64_t)w[2] >> (32 - by);
  const uint64_t low = (((uint64_t)w[2] << 32 | w[3]) << by) >> 32;
  const uint64_t turns = m * high + (m * low >> 32); /* in units of 2^-62 quarters, modulo 4 of them */
  const int64_t nearest = (int64_t)((turns + (UINT64_C(1) << 61)) >> 62);
  const double r = (double)(int64_t)(turns - ((uint64_t)nearest << 62)) * (0x1.921fb54442d18p0 * 0x1p-62);
  return x < 0.0f ? dl_sine_f32(-r, quarter - nearest) : dl_sine_f32(r, quarter + nearest);
}
DL_INLINE float dl_sin_f32(float x) { return x == 0.0f ? x : dl_sincos_f32(x, 0); }
DL_INLINE float dl_cos_f32(float x) { return dl_sincos_f32(x, 1); }

DL_INLINE float dl_floor_f32(float x) { return __builtin_floorf(x); }
DL_INLINE float dl_ceil_f32(float x) { return __builtin_ceilf(x); }
DL_INLINE float dl_round_f32(float x) { return __builtin_rintf(x); } /* half to even */
DL_INLINE float dl_atan2_f32(float y, float x) { return atan2f(y, x); }
DL_INLINE float dl_sqrt_f32(float x) { return __builtin_sqrtf(x); }
DL_INLINE float dl_rsqrt_f32(float x) { return 1.0f / __builtin_sqrtf(x); }
DL_INLINE float dl_abs_f32(float x) { return __builtin_fabsf(x); }
DL_INLINE float dl_pow_f32(float x, float y) { return powf(x, y); }

DL_INLINE double dl_exp_f64(double x) { return exp(x); }
DL_INLINE double dl_log_f64(double x) { return log(x); }
DL_INLINE double dl_log1p_f64(double x) { return log1p(x); }
DL_INLINE double dl_expm1_f64(double x) { return expm1(x); }
DL_INLINE double dl_sin_f64(double x) { return sin(x); }
DL_INLINE double dl_cos_f64(double x) { return cos(x); }
DL_INLINE double dl_tanh_f64(double x) { return tanh(x); }
DL_INLINE double dl_erf_f64(double x) { return erf(x); }
DL_INLINE double dl_sigmoid_f64(double x) {
  const double e = exp(x < 0.0 ? x : -x);
  return (x < 0.0 ? e : 1.0) / (1.0 + e);
}
DL_INLINE double dl_floor_f64(double x) { return __builtin_floor(x); }
DL_INLINE double dl_ceil_f64(double x) { return __builtin_ceil(x); }
DL_INLINE double dl_round_f64(double x) { return __builtin_rint(x); }
DL_INLINE double dl_atan2_f64(double y, double x) { return atan2(y, x); }
DL_INLINE double dl_sqrt_f64(double x) { return __builtin_sqrt(x); }
DL_INLINE double dl_rsqrt_f64(double x) { return 1.0 / __builtin_sqrt(x); }
DL_INLINE double dl_abs_f64(double x) { return __builtin_fabs(x); }
DL_INLINE double dl_pow_f64(double x, double y) { return pow(x, y); }

/* For the reductions; the rows of the primitives spell out their own. NaN on either side gives NaN. Two choices, of
 * which compilers make two instructions, also where several maxima follow one another. */
#define DL_FLOAT(T, S, FMOD, COPYSIGN, FLOOR)                                                         \
  DL_INLINE T dl_max_##S(T a, T b) {                                                                  \
    const T m = a >= b ? a : b;                                                                       \
    return a != a ? a : m;                                                                            \
  }                                                                                                   \
  DL_INLINE T dl_min_##S(T a, T b) {                                                                  \
    const T m = a <= b ? a : b;                                                                       \
    return a != a ? a : m;                                                                            \
  }                                                                                                   \
  DL_INLINE T dl_mod_##S(T a, T b) { /* NumPy's: the sign of b, and a zero has it too */              \
    const T m = FMOD(a, b);                                                                           \
    return m == 0 ? COPYSIGN((T)0, b) : (b < 0) != (m < 0) ? m + b : m;                               \
  }                                                                                                   \
  DL_INLINE T dl_floordiv_##S(T a, T b) {                                                             \
    if (b == 0) return a / b;                                                                         \
    const T m = FMOD(a, b);                                                                           \
    const T q = (a - m) / b - (T)((m != 0) & ((b < 0) != (m < 0)));                                   \
    if (q == 0) return COPYSIGN((T)0, a / b);                                                         \
    const T f = FLOOR(q);                                                                             \
    return q - f > (T)0.5 ? f + 1 : f;                                                                \
  }
DL_FLOAT(float, f32, fmodf, __builtin_copysignf, __builtin_floorf)
DL_FLOAT(double, f64, fmod, __builtin_copysign, __builtin_floor)

/* Integers wrap, as U, which is unsigned; dividing by zero gives zero. */
#define DL_INT(T, U, S, IS_SIGNED)                                                                    \
  DL_INLINE T dl_max_##S(T a, T b) { return a > b ? a : b; }                                          \
  DL_INLINE T dl_min_##S(T a, T b) { return a < b ? a : b; }                                          \
  DL_INLINE T dl_abs_##S(T a) { return IS_SIGNED && a < 0 ? (T)(0 - (U)a) : a; }                      \
  DL_INLINE T dl_not_##S(T a) { return (T)~a; }                                                       \
  DL_INLINE T dl_floordiv_##S(T a, T b) {                                                             \
    if (b == 0) return 0;                                                                             \
    if (IS_SIGNED && b == (T)-1) return (T)(0 - (U)a); /* the least number has no quotient by -1 */   \
    return (T)(a / b - ((a % b != 0) & ((a < 0) != (b < 0))));                                        \
  }                                                                                                   \
  DL_INLINE T dl_mod_##S(T a, T b) {                                                                  \
    if (b == 0 || (IS_SIGNED && b == (T)-1)) return 0;                                                \
    const T m = a % b;                                                                                \
    return (T)(((m != 0) & ((m < 0) != (b < 0))) ? m + b : m);                                        \
  }
DL_INT(int64_t, uint64_t, i64, 1)
DL_INT(int32_t, uint32_t, i32, 1)
DL_INT(uint32_t, uint32_t, u32, 0)
DL_INT(uint8_t, uint8_t, u8, 0)

DL_INLINE _Bool dl_max_bool(_Bool a, _Bool b) { return a | b; }
DL_INLINE _Bool dl_min_bool(_Bool a, _Bool b) { return a & b; }
DL_INLINE _Bool dl_not_bool(_Bool a) { return !a; }

#define dl_to_f64(x) ((double)(x))
#define dl_to_f32(x) ((float)(x))
#define dl_to_i64(x) ((int64_t)(x))
#define dl_to_i32(x) ((int32_t)(x))
#define dl_to_u32(x) ((uint32_t)(x))
#define dl_to_u8(x) ((uint8_t)(x))
#define dl_to_bool(x) ((_Bool)((x) != 0))
/* Of a float that the integer type cannot hold C says nothing. Here it is the least number, which is what the
 * instructions of most processors give. u32 and u8 go through a signed type: a negative float wraps, as in NumPy. */
#define DL_INT_OF(T, S)                                                                               \
  DL_INLINE int64_t dl_i64_of_##S(T x) {                                                              \
    return x >= (T)-0x1p63 && x < (T)0x1p63 ? (int64_t)x : INT64_MIN;                                 \
  }                                                                                                   \
  DL_INLINE int32_t dl_i32_of_##S(T x) {                                                              \
    return x > (T)-2147483649.0 && x < (T)0x1p31 ? (int32_t)x : INT32_MIN;                            \
  }                                                                                                   \
  DL_INLINE uint32_t dl_u32_of_##S(T x) { return (uint32_t)dl_i64_of_##S(x); }                        \
  DL_INLINE uint8_t dl_u8_of_##S(T x) { return (uint8_t)dl_i32_of_##S(x); }
DL_INT_OF(float, f32)
DL_INT_OF(double, f64)

#define DL_BITCAST(T, S, U, R)                                                                        \
  DL_INLINE U dl_bitcast_##S##_##R(T x) {                                                             \
    U y;                                                                                              \
    __builtin_memcpy(&y, &x, sizeof y);                                                               \
    return y;                                                                                         \
  }
DL_BITCAST(float, f32, uint32_t, u32)
DL_BITCAST(float, f32, int32_t, i32)
DL_BITCAST(float, f32, float, f32)
DL_BITCAST(uint32_t, u32, float, f32)
DL_BITCAST(uint32_t, u32, int32_t, i32)
DL_BITCAST(uint32_t, u32, uint32_t, u32)
DL_BITCAST(int32_t, i32, float, f32)
DL_BITCAST(int32_t, i32, uint32_t, u32)
DL_BITCAST(int32_t, i32, int32_t, i32)
DL_BITCAST(double, f64, int64_t, i64)
DL_BITCAST(double, f64, double, f64)
DL_BITCAST(int64_t, i64, double, f64)
DL_BITCAST(int64_t, i64, int64_t, i64)
DL_BITCAST(uint8_t, u8, uint8_t, u8)

/* threefry2x32, 20 rounds: Salmon et al. 2011. */
#define DL_MIX(R)                                                                                     \
  a += b;                                                                                             \
  b = (b << R) | (b >> (32 - R));                                                                     \
  b ^= a;
DL_INLINE void dl_threefry(uint32_t k0, uint32_t k1, uint32_t c0, uint32_t c1, uint32_t *y0, uint32_t *y1) {
  const uint32_t k2 = k0 ^ k1 ^ 0x1bd11bdau;
  uint32_t a = c0 + k0, b = c1 + k1;
  DL_MIX(13) DL_MIX(15) DL_MIX(26) DL_MIX(6)
  a += k1, b += k2 + 1u;
  DL_MIX(17) DL_MIX(29) DL_MIX(16) DL_MIX(24)
  a += k2, b += k0 + 2u;
  DL_MIX(13) DL_MIX(15) DL_MIX(26) DL_MIX(6)
  a += k0, b += k1 + 3u;
  DL_MIX(17) DL_MIX(29) DL_MIX(16) DL_MIX(24)
  a += k1, b += k2 + 4u;
  DL_MIX(13) DL_MIX(15) DL_MIX(26) DL_MIX(6)
  *y0 = a + k2, *y1 = b + k0 + 5u;
}
