/*
 * The text file that drives a fake library, and what it says: fake_nvml.c describes the language. Who includes this
 * names the variables SCENARIO_VARIABLE and TRACE_VARIABLE and the return codes SUCCESS, UNINITIALIZED, NOT_SUPPORTED.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SYSTEM = -1, EVERY_GPU = -2, MAX_LINES = 4096, MAX_GPUS = 64, MAX_MIG = 16, TEXT = 128, LONG_TEXT = 1024 };

typedef struct { int target, before; char key[TEXT], value[LONG_TEXT]; } line_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static line_t lines[MAX_LINES];
static int count;
enum { BUCKETS = 4096 };
static int buckets[BUCKETS]; /* of keys: number of the last line, and in `before` that of the line before it; 0 none */
static struct stat read_state;
static int session; /* generation of the open session, 0 without one */
/* The GPUs, then MAX_MIG places for the MIG devices of each. */
static char handles[MAX_GPUS * (1 + MAX_MIG)];

static unsigned hash(const char *text)
{
    unsigned code = 5381;
    while (*text)
        code = code * 33 + (unsigned char)*text++;
    return code % BUCKETS;
}

static int target_of(const char *text)
{
    const char *slash = strchr(text, '/');
    if (slash)
        return MAX_GPUS + atoi(text) * MAX_MIG + atoi(slash + 1);
    return !strcmp(text, "system") ? SYSTEM : !strcmp(text, "*") ? EVERY_GPU : atoi(text);
}

static void read_scenario(void)
{
    const char *path = getenv(SCENARIO_VARIABLE);
    struct stat state;
    static char text[2 * TEXT + LONG_TEXT];
    char target[TEXT];
    FILE *file;
    if (!path || stat(path, &state))
        return;
    if (state.st_ino == read_state.st_ino && state.st_size == read_state.st_size
        && state.st_mtim.tv_sec == read_state.st_mtim.tv_sec && state.st_mtim.tv_nsec == read_state.st_mtim.tv_nsec)
        return;
    if (!(file = fopen(path, "r")))
        return;
    read_state = state;
    count = 0;
    memset(buckets, 0, sizeof buckets);
    while (count < MAX_LINES && fgets(text, sizeof text, file)) {
        line_t *line = &lines[count];
        line->value[0] = 0;
        if (sscanf(text, "%127s %127s %1023[^\n]", target, line->key, line->value) < 2 || target[0] == '#')
            continue;
        line->target = target_of(target);
        line->before = buckets[hash(line->key)];
        buckets[hash(line->key)] = ++count;
    }
    fclose(file);
}

/* Number of the last line for the key, 0 without one. */
static int last_line(int target, const char *key)
{
    int is_gpu = target >= 0 && target < MAX_GPUS;
    int found = buckets[hash(key)];
    for (; found; found = lines[found - 1].before) {
        const line_t *line = &lines[found - 1];
        if ((line->target == target || (line->target == EVERY_GPU && is_gpu)) && !strcmp(line->key, key))
            break;
    }
    return found;
}

static const char *find(int target, const char *key, int wildcard)
{
    int found = last_line(target, key), every = wildcard ? last_line(target, "*") : 0;
    if (every > found)
        found = every;
    return found ? lines[found - 1].value : NULL;
}

static long system_number(const char *key, long otherwise)
{
    const char *value = find(SYSTEM, key, 0);
    return value ? atol(value) : otherwise;
}

/* Copies the answer of the scenario to text. */
static int look_up(int target, const char *key, char *text, size_t size)
{
    const char *value = find(target, key, 1);
    if (!session || session != system_number("generation", 1))
        return UNINITIALIZED;
    if (!value)
        return NOT_SUPPORTED;
    if (value[0] == '!' && value[1] != 'a')
        return atoi(value + 1);
    snprintf(text, size, "%s", value);
    return SUCCESS;
}

/* The same after the delay of the call. */
static int answer_at_most(int target, const char *key, char *text, size_t size)
{
    char delay_key[2 * TEXT];
    const char *delay, *trace = getenv(TRACE_VARIABLE);
    FILE *file;
    long milliseconds;
    int code;
    pthread_mutex_lock(&mutex);
    read_scenario();
    if (trace && (file = fopen(trace, "a"))) {
        fprintf(file, "%d %s\n", target, key);
        fclose(file);
    }
    snprintf(delay_key, sizeof delay_key, "%s:delay", key);
    delay = find(target, delay_key, 0);
    if (!delay && target >= 0)
        delay = find(target, "*:delay", 0);
    milliseconds = delay ? atol(delay) : 0;
    code = look_up(target, key, text, size);
    pthread_mutex_unlock(&mutex);
    if (milliseconds)
        nanosleep(&(struct timespec){ milliseconds / 1000, milliseconds % 1000 * 1000000 }, NULL);
    if (code == SUCCESS && !strcmp(text, "!abort"))
        abort();
    return code;
}

static int answer(int target, const char *key, char *text) { return answer_at_most(target, key, text, TEXT); }

static int answer_selected(int target, const char *function, int selector, char *text)
{
    char key[TEXT];
    snprintf(key, sizeof key, "%s.%d", function, selector);
    return answer(target, key, text);
}
