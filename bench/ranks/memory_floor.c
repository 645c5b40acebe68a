/* The arithmetic and the memory traffic of an all-reduce, and nothing else: every part is read once and written once. */
#include <stddef.h>

typedef float *restrict part;

static void two(part a, part b, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] = a[i] + b[i];
}

static void three(part a, part b, part c, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] = c[i] = a[i] + b[i] + c[i];
}

static void four(part a, part b, part c, part d, size_t n) {
    for (size_t i = 0; i < n; i++) a[i] = b[i] = c[i] = d[i] = a[i] + b[i] + c[i] + d[i];
}

int reduce_parts(float **parts, int num_parts, size_t n) {
    switch (num_parts) {
    case 2: two(parts[0], parts[1], n); return 0;
    case 3: three(parts[0], parts[1], parts[2], n); return 0;
    case 4: four(parts[0], parts[1], parts[2], parts[3], n); return 0;
    default: return -1;
    }
}
