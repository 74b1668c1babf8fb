/* The command of a stand-alone program: reads arrays from files, runs one program, writes what it gives.
 *
 *     NAME                                        what there is: programs, with what they take and give
 *     NAME PROGRAM TAKES=FILE... GIVES:FILE...    runs one; `key=1,2` gives a random key in place of a file
 *
 * A file that ends in .npy is NumPy's format, versions 1 and 2; any other is the numbers alone, little-endian, row by
 * row. A file must hold exactly what the program takes. What is not written to a file and is one number is printed, as
 * one JSON object. Exit codes: 0 done, 1 a program that ran out of memory for its lists, 2 wrong input.
 *
 * Nothing is called of the system but what stdio calls, and no memory is taken but that of lists, below a limit.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DL_NPY_HEADER_MAX 4096
#define DL_WRONG 2

static int dl_wrong(const char *what, const char *which, const char *todo) {
  fprintf(stderr, "error: %s: %s\n  hint: %s\n", which, what, todo);
  return DL_WRONG;
}

/* The shape of an array as NumPy writes it: () or (3,) or (2, 3). */
static void dl_shape_text(const dl_port *p, char *to, size_t room) {
  size_t at = (size_t)snprintf(to, room, "(");
  for (int i = 0; i < p->rank && at < room; i++)
    at += (size_t)snprintf(to + at, room - at, i + 1 < p->rank ? "%lld, " : "%lld", (long long)p->shape[i]);
  if (at < room) snprintf(to + at, room - at, p->rank == 1 ? ",)" : ")");
}

static int dl_is_npy(const char *path) {
  const size_t n = strlen(path);
  return n > 4 && !strcmp(path + n - 4, ".npy");
}

/* Whether an .npy file's header says what the port takes; the file is then at its numbers. */
static const char *dl_npy_header(FILE *f, const dl_port *p) {
  unsigned char head[12];
  static char text[DL_NPY_HEADER_MAX + 1];
  char shape[256], wanted[288];
  if (fread(head, 1, 10, f) != 10 || memcmp(head, "\x93NUMPY", 6)) return "this is no .npy file";
  size_t size = (size_t)head[8] | (size_t)head[9] << 8;
  if (head[6] == 2) {
    if (fread(head + 10, 1, 2, f) != 2) return "the file ends in its header";
    size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
  } else if (head[6] != 1) {
    return "a version of .npy that is not known";
  }
  if (size > DL_NPY_HEADER_MAX) return "its header is too long";
  if (fread(text, 1, size, f) != size) return "the file ends in its header";
  text[size] = 0;
  snprintf(wanted, sizeof wanted, "'descr': '%s'", p->descr);
  if (!strstr(text, wanted)) return "its numbers are of another type";
  if (!strstr(text, "'fortran_order': False")) return "it is stored column by column";
  dl_shape_text(p, shape, sizeof shape);
  snprintf(wanted, sizeof wanted, "'shape': %s", shape);
  if (!strstr(text, wanted)) return "its shape is another";
  return 0;
}

static int dl_read(const dl_port *p, const char *path, char *to) {
  char hint[512], shape[256];
  dl_shape_text(p, shape, sizeof shape);
  snprintf(hint, sizeof hint, "%s takes %s numbers of shape %s, %lld bytes", p->name, p->descr, shape,
           (long long)p->bytes);
  FILE *f = fopen(path, "rb");
  if (!f) return dl_wrong("cannot be opened", path, hint);
  const char *why = dl_is_npy(path) ? dl_npy_header(f, p) : 0;
  if (!why && fread(to, 1, (size_t)p->bytes, f) != (size_t)p->bytes) why = "it is too short";
  if (!why && fgetc(f) != EOF) why = "it is too long";
  fclose(f);
  return why ? dl_wrong(why, path, hint) : 0;
}

static int dl_write(const dl_port *p, const char *path, const char *from) {
  FILE *f = fopen(path, "wb");
  if (!f) return dl_wrong("cannot be written", path, "name a file in a folder that is there");
  int bad = 0;
  if (dl_is_npy(path)) {
    char shape[256], text[512];
    dl_shape_text(p, shape, sizeof shape);
    int n = snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", p->descr, shape);
    while ((10 + n + 1) % 64) text[n++] = ' ';
    text[n++] = '\n';
    const unsigned char head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)n, (unsigned char)(n >> 8)};
    bad |= fwrite(head, 1, 10, f) != 10 || fwrite(text, 1, (size_t)n, f) != (size_t)n;
  }
  bad |= fwrite(from, 1, (size_t)p->bytes, f) != (size_t)p->bytes;
  bad |= fclose(f) != 0;
  return bad ? dl_wrong("not all of it could be written", path, "make room on the disk") : 0;
}

/* `key=1,2`: two numbers of 32 bits. */
static int dl_read_key(const char *text, char *to) {
  uint32_t key[2] = {0, 0};
  const char *at = text;
  for (int i = 0; i < 2; i++) {
    char *end;
    const unsigned long long v = strtoull(at, &end, 10);
    if (end == at || v > 0xffffffffu || *at == '-' || *end != (i ? 0 : ','))
      return dl_wrong("is no key", text, "two numbers below 2^32: key=1,2");
    key[i] = (uint32_t)v;
    at = end + 1;
  }
  memcpy(to, key, 8);
  return 0;
}

static void dl_print_number(const dl_port *p, const char *from) {
  if (!strcmp(p->descr, "<f4")) {
    float v;
    memcpy(&v, from, 4);
    printf(v - v == 0 ? "%.9g" : "null", (double)v);
  } else if (!strcmp(p->descr, "|b1")) {
    printf(*from ? "true" : "false");
  } else {
    long long v = 0;
    memcpy(&v, from, (size_t)p->bytes);
    printf("%lld", v);
  }
}

static int dl_is_number(const dl_port *p) {
  return !p->rank && (!strcmp(p->descr, "<f4") || !strcmp(p->descr, "|b1") || !strcmp(p->descr, "<i8"));
}

static void dl_describe(const char *name) {
  printf("%s\n\nusage: %s PROGRAM TAKES=FILE... GIVES:FILE...\n", dl_title, name);
  for (int i = 0; i < dl_program_count; i++) {
    const dl_program *q = dl_programs + i;
    char shape[256];
    printf("\n%s\n", q->name);
    for (int k = 0; k < q->takes + q->gives; k++) {
      const dl_port *p = q->ports + k;
      dl_shape_text(p, shape, sizeof shape);
      printf("  %s %-20s %s %s\n", k < q->takes ? "takes" : "gives", p->name, p->descr, shape);
    }
  }
}

/* What this processor lacks of what the compiler was told that it has; 0: nothing that is asked for. A C library that
 * was itself compiled for a larger processor, as zig's is, may end the program before. */
#if defined(__x86_64__) && defined(__AVX2__)
#include <cpuid.h>
static const char *dl_lacks(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 12 & 1) || !(c >> 27 & 1)) return "AVX2 and FMA";
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b >> 5 & 1)) return "AVX2 and FMA";
#if defined(__AVX512F__)
  if (!(b >> 16 & 1)) return "AVX-512";
#endif
#if defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__)
  if (!(b >> 17 & 1) || (b >> 30 & 3) != 3) return "AVX-512 with DQ, BW and VL";
#endif
  return 0;
}
#else
static const char *dl_lacks(void) { return 0; }
#endif

int main(int argc, char **argv) {
  if (dl_lacks())
    return dl_wrong("this processor does not have it", dl_lacks(), "build it with --target x86_64-linux-musl");
  if (argc < 2) {
    dl_describe(argv[0]);
    return 0;
  }
  const dl_program *q = 0;
  for (int i = 0; i < dl_program_count; i++)
    if (!strcmp(dl_programs[i].name, argv[1])) q = dl_programs + i;
  if (!q) return dl_wrong("there is no such program", argv[1], "without arguments it says which there are");

  char *place[DL_PORTS_MAX];
  const char *file[DL_PORTS_MAX] = {0};
  char *at = dl_memory;
  const int ports = q->takes + q->gives;
  for (int k = 0; k < ports; k++) {
    place[k] = at;
    at += (q->ports[k].bytes + 63) / 64 * 64 + (q->ports[k].bytes ? 0 : 64);
  }
  for (int i = 2; i < argc; i++) {
    int found = -1;
    const size_t n = strcspn(argv[i], "=:");
    for (int k = 0; k < ports; k++) {
      const dl_port *p = q->ports + k;
      if (strlen(p->name) == n && !strncmp(p->name, argv[i], n) && argv[i][n] == (k < q->takes ? '=' : ':')) found = k;
    }
    if (found < 0) return dl_wrong("the program neither takes nor gives that", argv[i], "TAKES=FILE, GIVES:FILE");
    if (file[found]) return dl_wrong("is given twice", argv[i], "name each once");
    file[found] = argv[i] + n + 1;
  }
  for (int k = 0; k < q->takes; k++) {
    const dl_port *p = q->ports + k;
    if (!file[k]) return dl_wrong("is missing", p->name, "give it as NAME=FILE");
    const int bad = !strcmp(p->name, "key") ? dl_read_key(file[k], place[k]) : dl_read(p, file[k], place[k]);
    if (bad) return bad;
  }
  void *params[DL_ARGUMENTS_MAX], *results[DL_ARGUMENTS_MAX];
  int taken = 0, given = 0;
  for (int k = 0; k < ports; k++)
    for (int leaf = 0; leaf < q->ports[k].leaves; leaf++) {
      void *to = place[k] + q->ports[k].offsets[leaf];
      if (k < q->takes) params[taken++] = to;
      else results[given++] = to;
    }
  if (q->run(params, results, dl_arena, DL_LIST_BYTES)) {
    fprintf(stderr, "error: %s: its lists outgrew %lld bytes\n", q->name, (long long)DL_LIST_BYTES);
    return 1;
  }
  for (int k = q->takes; k < ports; k++)
    if (file[k] && dl_write(q->ports + k, file[k], place[k])) return DL_WRONG;
  const char *comma = "";
  printf("{");
  for (int k = q->takes; k < ports; k++)
    if (dl_is_number(q->ports + k)) {
      printf("%s\"%s\": ", comma, q->ports[k].name);
      dl_print_number(q->ports + k, place[k]);
      comma = ", ";
    }
  printf("}\n");
  return fflush(stdout) ? DL_WRONG : 0;
}
