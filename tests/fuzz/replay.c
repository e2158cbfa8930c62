/* replay.c - runs a fuzz target once over each file given, without libFuzzer,
 * so that every build and every compiler replays the seeds.
 */
#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        Buf text = {0};
        if (!buf_read_file(&text, argv[i])) {
            perror(argv[i]);
            return 1;
        }
        LLVMFuzzerTestOneInput((const uint8_t *)buf_str(&text), text.len);
        buf_free(&text);
    }
    return argc > 1 ? 0 : 1;
}
