/* fuzz_state.c - any bytes as the state.json of a checkpoint: an error, or
 * numbers from which a run could go on; writing them and reading again gives
 * the same.
 */
#include "runtime/checkpoint.h"

#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static char dir[] = "/tmp/megac_fuzz_state_XXXXXX";
static char file[64];

static void remove_files(void)
{
    unlink(file);
    rmdir(dir);
}

static void prepare(void)
{
    if (*file)
        return;
    if (!mkdtemp(dir))
        abort();
    snprintf(file, sizeof file, "%s/state.json", dir);
    atexit(remove_files);
}

static void must(bool holds)
{
    if (!holds)
        abort();
}

/* The spec's lines may not come back: keys may hold line ends. */
static void try_again(CheckpointState *s)
{
    CheckpointState back;
    Status failed = checkpoint_state_write(s, dir);

    if (!failed)
        failed = checkpoint_state_read(dir, &back);
    must(!failed);
    must(memcmp(&back.past, &s->past, sizeof back.past) == 0);
    must(back.updates == s->updates && back.data == s->data);
    status_drop(checkpoint_state_check(s, dir, s->seed, back.fixed));
    checkpoint_state_drop(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    CheckpointState s;
    Buf text = {0};
    Status failed;

    prepare();
    buf_write(&text, bytes, size);
    if (!text.s || !buf_write_file(&text, file))
        abort();
    failed = checkpoint_state_read(dir, &s);
    if (!failed) {
        must(s.past.step >= 0 && s.past.samples[PLAN_TRAIN] >= 0);
        try_again(&s);
        checkpoint_state_drop(&s);
    }
    status_drop(failed);
    buf_free(&text);
    return 0;
}
