/* The compiled twin of a function of ledgerlog/wire/pieces.py: the CRC-32C of each piece of joined bytes.

   It knows no format and no rule: the caller gives the value from which each CRC starts. pieces.py defines the
   result, and has the same function in Python; tests/unit/test_pieces.py compares them.

   Lengths come from the network. Before a byte is read, it is certain that its piece lies within the data.
   Each length is read once, because another thread may change the array meanwhile. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(WITHOUT_HARDWARE)
#define HAS_HARDWARE 0
#elif defined(__GNUC__) && defined(__x86_64__)
#include <nmmintrin.h>
#define HAS_HARDWARE 1
#define WITH_CRC __attribute__((target("sse4.2")))
#define STEP_8(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define STEP_1(crc, byte) _mm_crc32_u8((crc), (byte))
#elif defined(__GNUC__) && defined(__aarch64__) && !defined(__AARCH64EB__)
#if defined(__linux__)
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif
#endif
#define HAS_HARDWARE 1
#if defined(__ARM_FEATURE_CRC32)
#define WITH_CRC
#elif defined(__clang__)
#define WITH_CRC __attribute__((target("crc")))
#else
#define WITH_CRC __attribute__((target("+crc")))
#endif
/* The instructions themselves: arm_acle.h of older compilers declares its functions only for a whole file. */
WITH_CRC static inline uint32_t
STEP_8(uint32_t crc, uint64_t word)
{
    __asm__("crc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
WITH_CRC static inline uint32_t
STEP_1(uint32_t crc, uint8_t byte)
{
    __asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}
#else
#define HAS_HARDWARE 0
#endif

/* The same number as in pieces.py, which says when to raise it. */
#define CONTRACT 1

/* For at least this many bytes, other threads may run meanwhile. For fewer, the change of threads costs more
   than the CRC. */
#define UNLOCKED_BYTES (1 << 20)

/* The largest number of bytes that one of three streams takes; see crc_hardware. */
#define LONG_BYTES 1024
#define SHORT_BYTES 256

#define POLYNOMIAL 0x82F63B78u /* Castagnoli's, reflected */

/* Functions over the state of a CRC, which is its complement. */
typedef uint32_t (*crc_function)(uint32_t state, const uint8_t *data, size_t size);

/* --- by tables: for processors without the instruction --------------------------------------------- */

static uint32_t by_byte[8][256]; /* by_byte[n][b]: the state after byte b and n bytes of zeros */

static void
make_tables(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ (state & 1 ? POLYNOMIAL : 0);
        }
        by_byte[0][byte] = state;
    }
    for (int n = 1; n < 8; n++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = by_byte[n - 1][byte];
            by_byte[n][byte] = (before >> 8) ^ by_byte[0][before & 0xFF];
        }
    }
}

static uint32_t
crc_by_tables(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        state ^= data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
        state = by_byte[7][state & 0xFF] ^ by_byte[6][state >> 8 & 0xFF] ^ by_byte[5][state >> 16 & 0xFF]
                ^ by_byte[4][state >> 24] ^ by_byte[3][data[4]] ^ by_byte[2][data[5]] ^ by_byte[1][data[6]]
                ^ by_byte[0][data[7]];
    }
    while (size--) {
        state = (state >> 8) ^ by_byte[0][(state ^ *data++) & 0xFF];
    }
    return state;
}

/* --- by hardware ----------------------------------------------------------------------------------- */

#if HAS_HARDWARE

/* zeros_*[n][b]: the state after LONG_BYTES or SHORT_BYTES of zeros, if byte n of the state was b and the
   others were 0. */
static uint32_t zeros_long[4][256], zeros_short[4][256];

static void
make_zeros(uint32_t table[4][256], size_t size)
{
    static const uint8_t zeros[LONG_BYTES];
    for (int n = 0; n < 4; n++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            table[n][byte] = crc_by_tables(byte << (8 * n), zeros, size);
        }
    }
}

static inline uint32_t
after_zeros(uint32_t table[4][256], uint32_t state)
{
    return table[0][state & 0xFF] ^ table[1][state >> 8 & 0xFF] ^ table[2][state >> 16 & 0xFF]
           ^ table[3][state >> 24];
}

static inline uint64_t
word_at(const uint8_t *data)
{
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* An instruction takes three cycles, and a new one can begin in each. So long data is three streams. A state
   is linear: that of a stream, moved over as many zeros as the next stream has bytes, combines with that of
   the next by exclusive or. */
WITH_CRC static inline uint32_t
three_streams(uint32_t state, const uint8_t *data, size_t stream, uint32_t zeros[4][256])
{
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = data + stream; data < end; data += 8) {
        state = STEP_8(state, word_at(data));
        second = STEP_8(second, word_at(data + stream));
        third = STEP_8(third, word_at(data + 2 * stream));
    }
    return after_zeros(zeros, after_zeros(zeros, state) ^ second) ^ third;
}

WITH_CRC static uint32_t
crc_by_hardware(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 3 * LONG_BYTES; data += 3 * LONG_BYTES, size -= 3 * LONG_BYTES) {
        state = three_streams(state, data, LONG_BYTES, zeros_long);
    }
    for (; size >= 3 * SHORT_BYTES; data += 3 * SHORT_BYTES, size -= 3 * SHORT_BYTES) {
        state = three_streams(state, data, SHORT_BYTES, zeros_short);
    }
    for (; size >= 8; data += 8, size -= 8) {
        state = STEP_8(state, word_at(data));
    }
    while (size--) {
        state = STEP_1(state, *data++);
    }
    return state;
}

static int
has_instruction(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.2");
#elif defined(__ARM_FEATURE_CRC32)
    return 1;
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#else
    return 0;
#endif
}

#endif

/* --- the module ------------------------------------------------------------------------------------ */

static crc_function crc = crc_by_tables;

static inline uint32_t
number_at(const uint8_t *numbers, Py_ssize_t index)
{
    uint32_t number;
    memcpy(&number, numbers + 4 * index, sizeof number);
    return number;
}

/* Write the CRC of each piece. Return 0 if the pieces do not make up the data. */
static int
each_crc(const uint8_t *data, size_t left, const uint8_t *lengths, Py_ssize_t count, uint32_t seed,
         const uint8_t *seeds, uint8_t *written)
{
    for (Py_ssize_t index = 0; index < count; index++) {
        size_t length = number_at(lengths, index);
        if (length > left) {
            return 0;
        }
        uint32_t start = seeds != NULL ? number_at(seeds, index) : seed + (uint32_t)index;
        uint32_t value = ~crc(~start, data, length);
        memcpy(written + 4 * index, &value, sizeof value);
        data += length;
        left -= length;
    }
    return left == 0;
}

static int
get_numbers(PyObject *object, Py_buffer *view, const char *what)
{
    if (PyObject_GetBuffer(object, view, PyBUF_ND | PyBUF_FORMAT) < 0) {
        return -1;
    }
    if (view->ndim == 1 && view->itemsize == 4 && view->format != NULL && strcmp(view->format, "I") == 0) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "%s must be an array of unsigned 32-bit numbers", what);
    PyBuffer_Release(view);
    return -1;
}

PyDoc_STRVAR(piece_checksums_doc, "piece_checksums(seeds, data, lengths)\n--\n\n"
                                  "Return the CRC-32C of each piece as bytes; see ledgerlog/wire/pieces.py.");

static PyObject *
piece_checksums(PyObject *Py_UNUSED(module), PyObject *const *arguments, Py_ssize_t argument_count)
{
    if (argument_count != 3) {
        PyErr_SetString(PyExc_TypeError, "piece_checksums takes seeds, data and lengths");
        return NULL;
    }
    Py_buffer seeds = {0}, data = {0}, lengths = {0};
    PyObject *result = NULL;
    uint32_t seed = 0;
    if (PyLong_Check(arguments[0])) {
        unsigned long long number = PyLong_AsUnsignedLongLong(arguments[0]);
        if (number > UINT32_MAX) {
            if (!PyErr_Occurred() || PyErr_ExceptionMatches(PyExc_OverflowError)) {
                PyErr_SetString(PyExc_ValueError, "a seed must be an unsigned 32-bit number");
            }
            return NULL;
        }
        seed = (uint32_t)number;
    }
    else if (get_numbers(arguments[0], &seeds, "seeds") < 0) {
        return NULL;
    }
    if (PyObject_GetBuffer(arguments[1], &data, PyBUF_SIMPLE) < 0
        || get_numbers(arguments[2], &lengths, "lengths") < 0) {
        goto done;
    }
    Py_ssize_t count = lengths.len / 4;
    if (seeds.obj != NULL && seeds.len != lengths.len) {
        PyErr_Format(PyExc_ValueError, "%zd seeds for %zd pieces", seeds.len / 4, count);
        goto done;
    }
    result = PyBytes_FromStringAndSize(NULL, lengths.len);
    if (result == NULL) {
        goto done;
    }
    uint8_t *written = (uint8_t *)PyBytes_AsString(result);
    PyThreadState *unlocked = data.len >= UNLOCKED_BYTES ? PyEval_SaveThread() : NULL;
    int fits = each_crc(data.buf, (size_t)data.len, lengths.buf, count, seed, seeds.buf, written);
    if (unlocked != NULL) {
        PyEval_RestoreThread(unlocked);
    }
    if (!fits) {
        Py_CLEAR(result);
        PyErr_Format(PyExc_ValueError, "the lengths of the pieces do not add up to the %zd bytes", data.len);
    }
done:
    if (seeds.obj != NULL) {
        PyBuffer_Release(&seeds);
    }
    if (data.obj != NULL) {
        PyBuffer_Release(&data);
    }
    if (lengths.obj != NULL) {
        PyBuffer_Release(&lengths);
    }
    return result;
}

static PyMethodDef functions[] = {
    {"piece_checksums", (PyCFunction)(void (*)(void))piece_checksums, METH_FASTCALL, piece_checksums_doc},
    {NULL, NULL, 0, NULL},
};

static int
on_import(PyObject *module)
{
    /* Here and not in pieces.py, because the wire's Python is pure and reads no environment. */
    const char *pure = getenv("LEDGERLOG_PURE");
    if (PyModule_AddIntConstant(module, "IS_SWITCHED_OFF", pure != NULL && *pure != '\0') < 0) {
        return -1;
    }
    if (PyModule_AddIntConstant(module, "CONTRACT", CONTRACT) < 0) {
        return -1;
    }
    make_tables();
#if HAS_HARDWARE
    if (has_instruction()) {
        make_zeros(zeros_long, LONG_BYTES);
        make_zeros(zeros_short, SHORT_BYTES);
        crc = crc_by_hardware;
    }
#endif
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, on_import},
    {0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "ledgerlog.wire._pieces",
    .m_slots = slots,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__pieces(void)
{
    return PyModuleDef_Init(&module);
}
