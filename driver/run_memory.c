/* run_memory.c - whether all ranks together fit into this machine.
 *
 * `megac compile` holds one rank against one machine, for it cannot know where
 * the others will run.  Here they all run, so the sum is known; found out by
 * the kernel's killer, the answer would come minutes later and name nobody.
 * The manifest says what each class of ranks needs.
 */
#include "driver/run.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>

static json_int_t class_bytes(const json_t *class)
{
    return json_integer_value(
        json_object_get(json_object_get(class, "memory"), "total"));
}

static json_int_t class_ranks(const json_t *class)
{
    return (json_int_t)json_array_size(json_object_get(class, "ranks"));
}

/* What the machine can give without swapping, in bytes: Linux' own estimate. */
static Status available(int64_t *out_bytes)
{
    FILE *f = fopen("/proc/meminfo", "r");
    char line[128];
    bool found = false;

    if (!f)
        return status_system(errno, "cannot read /proc/meminfo");
    while (!found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %" SCNd64 " kB", out_bytes) == 1;
    fclose(f);
    *out_bytes *= 1024;
    return found ? STATUS_NONE
                 : status_make(STATUS_SYSTEM, "/proc/meminfo: no MemAvailable");
}

static double gib(int64_t bytes)
{
    return (double)bytes / 1073741824.0;
}

static CliExit compare(const json_t *classes, int64_t there)
{
    int64_t sum = 0;
    json_t *class;
    size_t i;

    json_array_foreach(classes, i, class)
        sum += class_ranks(class) * class_bytes(class);
    if (sum <= there)
        return CLI_DONE;
    fprintf(stderr, "megac: error: the ranks need %.1f GiB together, and this "
                    "machine has %.1f GiB to give\n", gib(sum), gib(there));
    json_array_foreach(classes, i, class)
        fprintf(stderr, "  %s: %lld ranks of %.3f GiB\n",
                json_string_value(json_object_get(class, "name")),
                (long long)class_ranks(class), gib(class_bytes(class)));
    return CLI_FIT;
}

CliExit run_check_memory(Arena *a, const char *dir)
{
    const char *path = arena_printf(a, "%s/manifest.json", dir);
    json_error_t error;
    json_t *manifest = json_load_file(path, 0, &error);
    int64_t there = 0;

    if (!manifest)
        return cli_failed(status_make(STATUS_INPUT, "%s: %s", path,
                                      error.text));
    Status status = available(&there);
    CliExit code = status ? cli_failed(status)
                          : compare(json_object_get(manifest, "classes"),
                                    there);
    json_decref(manifest);
    return code;
}
