/* A compiled call without Python code between the caller and the program (direct.py).
 *
 * One function, `call`, which CPython calls by its vectorcall protocol. It takes a plan, made by direct.py for one
 * program and one kind of arguments, and gives Python's result; or NotImplemented for whatever the plan does not
 * describe (other types, an error that the program met, a global that changed), and the caller goes the long way, which
 * checks everything again and raises the errors. So nothing here raises, but for a lack of memory.
 *
 * No header of Python or NumPy is needed: the functions are of Python's stable ABI, and the fields of objects and arrays
 * that are read are those that both keep where they are, since extensions have them compiled in. direct.py compares
 * them with what Python says of an array before it uses any of this.
 */
#include <stddef.h>
#include <stdint.h>

typedef struct object {
  ptrdiff_t count;
  void *type;
} object;

typedef struct {
  object head;
  char *data;
  int axes;
  ptrdiff_t *shape;
  ptrdiff_t *strides;
  object *base;
  object *dtype;
  int flags;
} array;

/* Of an array: row by row, aligned, writable. */
#define DL_LAYOUT 0x101
#define DL_WRITABLE 0x400

typedef int dl_entry(void *const *params, void *const *results, char *arena, int64_t list_bytes_max);
typedef enum { ARRAY, FLOAT, INT, BOOL, SAME } dl_argument_kind;
/* As an array, as `array[()]`, as a number of Python's, in memory that goes with the call. */
typedef enum { NEW, SCALAR, PYTHON_F64, PYTHON_F32, PYTHON_I64, PYTHON_I32, PYTHON_BOOL, HIDDEN, CHANGED } dl_result_kind;

typedef struct {
  int64_t kind;
  object *what; /* the dtype of an array; SAME: the value */
  const ptrdiff_t *shape;
  int64_t axes, bytes;
  int64_t param;   /* of the program; SAME: none */
  int64_t changed; /* the result that is its new content, or -1 */
} dl_argument;

typedef struct {
  int64_t kind;
  object *made_of; /* arguments of numpy.empty */
  int64_t bytes;
  int64_t donor; /* the parameter in whose memory it lies, or -1 */
} dl_result;

typedef struct {
  object *owner, *name, *value; /* value: None also where there is none */
} dl_outside;

typedef struct {
  dl_entry *entry;
  const dl_argument *arguments;
  const dl_result *results;
  const dl_outside *outside;
  void *const *constants;
  int64_t arguments_count, params_count, results_count, outside_count, constants_count;
  int64_t arena_bytes, list_bytes_max;
  int64_t fault; /* the result that is the fault code, or -1 */
  int64_t shown; /* how many results make Python's; -1: one, as it is */
  object *array_type, *float_type, *int_type, *bool_type;
  object *empty, *no_key, *not_implemented, *none, *yes, *no;
  object *arena, *current, *finish; /* functions, or NULL */
} dl_plan;

void *malloc(size_t);
void free(void *);
void *memcpy(void *restrict, const void *restrict, size_t);

object *PyObject_CallObject(object *, object *);
object *PyObject_CallFunctionObjArgs(object *, ...);
object *PyObject_GetItem(object *, object *);
int PyObject_RichCompareBool(object *, object *, int);
object *PyDict_GetItemWithError(object *, object *);
object *PyTuple_New(ptrdiff_t);
object *PyTuple_GetItem(object *, ptrdiff_t);
int PyTuple_SetItem(object *, ptrdiff_t, object *);
object *PyFloat_FromDouble(double);
double PyFloat_AsDouble(object *);
object *PyLong_FromLongLong(long long);
long long PyLong_AsLongLong(object *);
void *PyLong_AsVoidPtr(object *);
object *PyErr_Occurred(void);
void PyErr_Clear(void);
void Py_IncRef(object *);
void Py_DecRef(object *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);

#define DL_EQUAL 2 /* Py_EQ */
#define DL_FEW 16  /* arguments and results of most programs */
#define DL_ALIGNMENT 64
#define DL_ARENA_HERE 4096

typedef union {
  double f64;
  float f32;
  int64_t i64;
  int32_t i32;
  uint8_t u8;
} dl_number;

static object *new_reference(object *x) {
  Py_IncRef(x);
  return x;
}

static int is_current(const dl_plan *plan) {
  for (int64_t i = 0; i < plan->outside_count; i++) {
    const dl_outside *o = &plan->outside[i];
    object *found = PyDict_GetItemWithError(o->owner, o->name);
    if (!found) {
      if (PyErr_Occurred()) return PyErr_Clear(), 0;
      found = plan->none;
    }
    if (found != o->value) return 0;
  }
  if (!plan->current) return 1;
  object *said = PyObject_CallObject(plan->current, NULL);
  if (!said) return PyErr_Clear(), 0;
  Py_DecRef(said);
  return said == plan->yes;
}

/* Where an argument lies; NULL: it is not what the plan says. `number` holds one of Python's. */
static void *address(const dl_plan *plan, const dl_argument *a, object *given, dl_number *number) {
  switch (a->kind) {
  case ARRAY: {
    const array *x = (const array *)given;
    const int wanted = a->changed >= 0 ? DL_LAYOUT | DL_WRITABLE : DL_LAYOUT;
    if (given->type != plan->array_type || x->dtype != a->what || x->axes != a->axes) return NULL;
    if ((x->flags & wanted) != wanted) return NULL;
    for (int64_t i = 0; i < a->axes; i++)
      if (x->shape[i] != a->shape[i]) return NULL;
    return x->data;
  }
  case FLOAT:
    if (given->type != plan->float_type) return NULL;
    number->f64 = PyFloat_AsDouble(given);
    return number;
  case INT:
    if (given->type != plan->int_type) return NULL;
    number->i64 = PyLong_AsLongLong(given);
    if (number->i64 == -1 && PyErr_Occurred()) return PyErr_Clear(), NULL;
    return number;
  case BOOL:
    if (given->type != plan->bool_type) return NULL;
    number->u8 = given == plan->yes;
    return number;
  default:
    if (given->type != a->what->type) return NULL;
    const int equal = given == a->what ? 1 : PyObject_RichCompareBool(given, a->what, DL_EQUAL);
    if (equal < 0) PyErr_Clear();
    return equal == 1 ? number : NULL;
  }
}

/* Whether an array that the program changes shares no memory with another argument. */
static int are_apart(const dl_plan *plan, void *const *params) {
  for (int64_t i = 0; i < plan->arguments_count; i++) {
    const dl_argument *a = &plan->arguments[i];
    if (a->changed < 0) continue;
    const char *start = params[a->param], *end = start + a->bytes;
    for (int64_t j = 0; j < plan->arguments_count; j++) {
      const dl_argument *b = &plan->arguments[j];
      if (j == i || b->kind != ARRAY) continue;
      const char *other = params[b->param];
      if (other < end && start < other + b->bytes) return 0;
    }
  }
  return 1;
}

static object *presented(const dl_plan *plan, const dl_result *r, object *made, const dl_number *n) {
  switch (r->kind) {
  case NEW: return new_reference(made);
  case SCALAR: return PyObject_GetItem(made, plan->no_key);
  case PYTHON_F64: return PyFloat_FromDouble(n->f64);
  case PYTHON_F32: return PyFloat_FromDouble((double)n->f32);
  case PYTHON_I64: return PyLong_FromLongLong(n->i64);
  case PYTHON_I32: return PyLong_FromLongLong(n->i32);
  default: return new_reference(n->u8 ? plan->yes : plan->no);
  }
}

static object *python_result(const dl_plan *plan, object *const *made, const dl_number *numbers) {
  if (plan->shown < 0) return presented(plan, plan->results, made[0], numbers);
  object *all = PyTuple_New(plan->shown);
  if (!all) return NULL;
  for (int64_t i = 0; i < plan->shown; i++) {
    object *one = presented(plan, &plan->results[i], made[i], &numbers[i]);
    if (!one || PyTuple_SetItem(all, i, one)) return Py_DecRef(all), NULL;
  }
  if (!plan->finish) return all;
  object *built = PyObject_CallFunctionObjArgs(plan->finish, all, NULL);
  Py_DecRef(all);
  return built;
}

/* Runs the program; 0 where it cannot have its memory, or its lists outgrew theirs. */
static int is_run(const dl_plan *plan, void *const *params, void *const *results) {
  char here[DL_ARENA_HERE + DL_ALIGNMENT];
  char *arena = here + (-(uintptr_t)here & (DL_ALIGNMENT - 1));
  if (plan->arena) {
    object *said = PyObject_CallObject(plan->arena, NULL);
    if (!said) return PyErr_Clear(), 0;
    arena = PyLong_AsVoidPtr(said);
    Py_DecRef(said);
  }
  void *state = PyEval_SaveThread();
  const int code = plan->entry(params, results, arena, plan->list_bytes_max);
  PyEval_RestoreThread(state);
  return code == 0;
}

/* With memory for the results, of which `made` are new arrays. NULL: an error of Python's is set. */
static object *with_results(const dl_plan *plan, void **params, void **targets, dl_number *numbers, object **made) {
  for (int64_t i = 0; i < plan->results_count; i++) {
    const dl_result *r = &plan->results[i];
    if (r->donor >= 0) {
      targets[i] = params[r->donor];
    } else if (r->kind == NEW || r->kind == SCALAR || r->kind == CHANGED || r->bytes > (int64_t)sizeof(dl_number)) {
      made[i] = PyObject_CallObject(plan->empty, r->made_of);
      if (!made[i]) return NULL;
      targets[i] = ((array *)made[i])->data;
    } else {
      targets[i] = &numbers[i];
    }
  }
  if (plan->fault >= 0) numbers[plan->fault].i64 = 0;
  if (!is_run(plan, params, targets) || (plan->fault >= 0 && numbers[plan->fault].i64))
    return new_reference(plan->not_implemented);
  for (int64_t i = 0; i < plan->arguments_count; i++) {
    const dl_argument *a = &plan->arguments[i];
    if (a->changed >= 0 && params[a->param] != targets[a->changed])
      memcpy(params[a->param], targets[a->changed], (size_t)a->bytes);
  }
  return python_result(plan, made, numbers);
}

/* self: a tuple of the plan's address and what the plan holds on to. */
__attribute__((visibility("default"))) object *call(object *self, object *const *given, ptrdiff_t count) {
  const dl_plan *plan = PyLong_AsVoidPtr(PyTuple_GetItem(self, 0));
  const int64_t n = plan->arguments_count, m = plan->results_count, k = plan->params_count;
  const int64_t all = k + plan->constants_count + m;
  if (count != n || !is_current(plan)) return new_reference(plan->not_implemented);
  void *few_pointers[DL_FEW], **params = few_pointers;
  dl_number few_numbers[DL_FEW], *numbers = few_numbers;
  object *few_made[DL_FEW], **made = few_made;
  void *more = NULL;
  if (all > DL_FEW || n + m > DL_FEW) {
    more = malloc((size_t)(n + m) * sizeof(dl_number) + (size_t)(all + m) * sizeof(void *));
    if (!more) return new_reference(plan->not_implemented);
    numbers = more;
    params = (void **)(numbers + n + m);
    made = (object **)(params + all);
  }
  int fits = 1;
  for (int64_t i = 0; fits && i < n; i++) {
    const dl_argument *a = &plan->arguments[i];
    void *const where = address(plan, a, given[i], &numbers[m + i]);
    fits = where != NULL;
    if (a->kind != SAME) params[a->param] = where;
  }
  object *result;
  if (fits && are_apart(plan, params)) {
    for (int64_t i = 0; i < plan->constants_count; i++) params[k + i] = plan->constants[i];
    for (int64_t i = 0; i < m; i++) made[i] = NULL;
    result = with_results(plan, params, params + k + plan->constants_count, numbers, made);
    for (int64_t i = 0; i < m; i++)
      if (made[i]) Py_DecRef(made[i]);
  } else {
    result = new_reference(plan->not_implemented);
  }
  free(more);
  return result;
}
