/* fuzz_safetensors.c - any bytes as a set of tensors: errors, or tensors that
 * lie in their files, and that a model of the same names and shapes takes.
 *
 * Bytes that begin with '{' are an index, beside the parts "a.safetensors" with
 * a tensor "a" and "b.safetensors" with "b"; others are a file.
 */
#include "runtime/plan.h"
#include "runtime/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void must(Status s)
{
    if (!s)
        return;
    fprintf(stderr, "%s\n", status_text(s));
    abort();
}

/* A part with one vector of the name. */
static void write_part(const char *name)
{
    SafeSet set = {.v = calloc(1, sizeof(SafeTensor)), .n = 1};

    set.v[0] = (SafeTensor){.name = strdup(name), .rows = 2};
    must(safe_layout(&set, name, 0));
    must(safe_create(set.part[0].name, &set.part[0]));
    safe_close(&set);
}

static char folder[256];

static void leave(void)
{
    char command[300];

    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (system(command) != 0)
        perror(folder);
}

/* A folder of its own for the process, entered once: in TMPDIR, which may be
 * one that waits for no disk. */
static void enter(void)
{
    const char *around = getenv("TMPDIR");
    static bool done;

    if (done)
        return;
    snprintf(folder, sizeof folder, "%s/megac_fuzz_XXXXXX",
             around ? around : "/tmp");
    if (!mkdtemp(folder) || chdir(folder) != 0)
        abort();
    atexit(leave);
    write_part("a");
    write_part("b");
    done = true;
}

static void write_file(const char *name, const uint8_t *bytes, size_t size)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0666);

    if (fd < 0)
        abort();
    must(safe_write(name, fd, (const char *)bytes, size, 0));
    close(fd);
}

/* Adds up all bytes, so that none may lie outside of its file. */
static unsigned touch(const SafeSet *set)
{
    unsigned sum = 0;

    for (uint32_t i = 0; i < set->n; i++) {
        const SafeTensor *t = &set->v[i];
        if (safe_find(set, t->name) != t)
            abort();
        for (uint64_t k = 0; k < t->end - t->begin; k++)
            sum += (unsigned char)safe_bytes(set, t)[k];
    }
    return sum;
}

/* Whether a type and a shape that can be written. */
static bool is_plain(const SafeSet *set)
{
    for (uint32_t i = 0; i < set->n; i++)
        if (set->v[i].rows < 0 || set->v[i].dtype == PLAN_DTYPES)
            return false;
    return true;
}

static void copy_and_compare(SafeSet *set)
{
    SafeCopy how = {".", "copy", 0, PLAN_DTYPES};
    SafeSet copy;

    must(safe_copy(set, &how));
    must(safe_open("copy.safetensors", &copy));
    must(safe_fit(set, &copy));
    if (touch(set) != touch(&copy))
        abort();
    safe_close(&copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    const char *name = size && bytes[0] == '{' ? "x.json" : "x.safetensors";
    SafeSet set;
    Status s;

    enter();
    write_file(name, bytes, size);
    s = safe_open(name, &set);
    if (s) {
        status_drop(s);
        return 0;
    }
    touch(&set);
    if (is_plain(&set))
        copy_and_compare(&set);
    safe_close(&set);
    return 0;
}
