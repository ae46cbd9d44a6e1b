/*
 * A stand-in for libnvidia-ml.so.1, driven by the text file that FAKE_NVML_SCENARIO names. Types are declared by
 * hand: only their layout in memory matters. The file is read again whenever it changes.
 *
 * One line: TARGET KEY VALUE. TARGET is the index of a GPU, * (every GPU) or system. KEY is the name of a function,
 * for functions with a selector FUNCTION.NUMBER, for field values field.NUMBER, or * (every key). VALUE is what the
 * function answers, in NVML's units; !CODE makes it fail with that return code. Of several lines the last counts;
 * a function without a line is not supported. Beside functions there are the keys
 *
 *     system gpus N                number of GPUs
 *     system generation N          a new number is a driver that was loaded again: sessions are lost
 *     TARGET KEY:delay MS          the call takes so long
 *
 * Values of fields are TYPE VALUE with TYPE as nvmlValueType_t counts. FAKE_NVML_TRACE names a file to which every
 * call adds a line. A symbol is left out with -DNAME=absent_NAME.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, VERSION_MISMATCH = 25 };
enum { SYSTEM = -1, EVERY_GPU = -2, MAX_LINES = 1024, MAX_GPUS = 64, TEXT = 128 };

typedef struct { int target; char key[TEXT], value[TEXT]; } line_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned version; int sensor, temperature; } temperature_v1_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef union {
    double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; int i; unsigned short us;
} value_t;
typedef struct { unsigned id, scope; long long time, latency; int type, code; value_t value; } field_t;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static line_t lines[MAX_LINES];
static int count;
static struct stat read_state;
static int session; /* generation of the open session, 0 without one */
static char handles[MAX_GPUS];

static void read_scenario(void)
{
    const char *path = getenv("FAKE_NVML_SCENARIO");
    struct stat state;
    char text[3 * TEXT], target[TEXT];
    FILE *file;
    if (!path || stat(path, &state) || !(file = fopen(path, "r")))
        return;
    if (state.st_ino != read_state.st_ino || state.st_size != read_state.st_size
        || state.st_mtim.tv_sec != read_state.st_mtim.tv_sec || state.st_mtim.tv_nsec != read_state.st_mtim.tv_nsec) {
        read_state = state;
        count = 0;
        while (count < MAX_LINES && fgets(text, sizeof text, file)) {
            line_t *line = &lines[count];
            line->value[0] = 0;
            if (sscanf(text, "%127s %127s %127[^\n]", target, line->key, line->value) < 2 || target[0] == '#')
                continue;
            line->target = !strcmp(target, "system") ? SYSTEM : !strcmp(target, "*") ? EVERY_GPU : atoi(target);
            count++;
        }
    }
    fclose(file);
}

static const char *find(int target, const char *key, int wildcard)
{
    for (int i = count - 1; i >= 0; i--) {
        int same_target = lines[i].target == target || (lines[i].target == EVERY_GPU && target >= 0);
        if (same_target && (!strcmp(lines[i].key, key) || (wildcard && !strcmp(lines[i].key, "*"))))
            return lines[i].value;
    }
    return NULL;
}

static long system_number(const char *key, long otherwise)
{
    const char *value = find(SYSTEM, key, 0);
    return value ? atol(value) : otherwise;
}

/* Waits the delay of a call and copies the answer of the scenario to text. */
static int answer(int target, const char *key, char *text)
{
    char delay_key[2 * TEXT];
    const char *value, *delay, *trace = getenv("FAKE_NVML_TRACE");
    FILE *file;
    long milliseconds;
    int code = SUCCESS;
    pthread_mutex_lock(&mutex);
    read_scenario();
    if (trace && (file = fopen(trace, "a"))) {
        fprintf(file, "%d %s\n", target, key);
        fclose(file);
    }
    snprintf(delay_key, sizeof delay_key, "%s:delay", key);
    delay = find(target, delay_key, 0);
    milliseconds = delay ? atol(delay) : 0;
    value = find(target, key, 1);
    if (!session || session != system_number("generation", 1))
        code = UNINITIALIZED;
    else if (!value)
        code = NOT_SUPPORTED;
    else if (value[0] == '!')
        code = atoi(value + 1);
    else
        strcpy(text, value);
    pthread_mutex_unlock(&mutex);
    if (milliseconds)
        nanosleep(&(struct timespec){ milliseconds / 1000, milliseconds % 1000 * 1000000 }, NULL);
    return code;
}

static int answer_selected(int target, const char *function, int selector, char *text)
{
    char key[TEXT];
    snprintf(key, sizeof key, "%s.%d", function, selector);
    return answer(target, key, text);
}

static int gpu_of(void *handle) { return (int)((char *)handle - handles); }

static unsigned long long number(const char *text) { return strtoull(text, NULL, 0); }

static int answer_text(int target, const char *key, char *out, unsigned size)
{
    char text[TEXT];
    int code = answer(target, key, text);
    if (code == SUCCESS)
        snprintf(out, size, "%s", text);
    return code;
}

static int answer_number(int target, const char *key, unsigned long long *out)
{
    char text[TEXT];
    int code = answer(target, key, text);
    if (code == SUCCESS)
        *out = number(text);
    return code;
}

/* The session. */

int nvmlInitWithFlags(unsigned flags)
{
    const char *value;
    int code;
    (void)flags;
    pthread_mutex_lock(&mutex);
    read_scenario();
    value = find(SYSTEM, "nvmlInitWithFlags", 0);
    code = value && value[0] == '!' ? atoi(value + 1) : SUCCESS;
    if (code == SUCCESS)
        session = (int)system_number("generation", 1);
    pthread_mutex_unlock(&mutex);
    return code;
}

int nvmlShutdown(void)
{
    int was = session;
    session = 0;
    return was ? SUCCESS : UNINITIALIZED;
}

const char *nvmlErrorString(int code) { return code ? "error of the fake library" : "Success"; }

/* Functions by the shape of their answer. */

#define SYSTEM_TEXT(name) \
    int name(char *out, unsigned size) { return answer_text(SYSTEM, #name, out, size); }

#define GPU_TEXT(name) \
    int name(void *gpu, char *out, unsigned size) { return answer_text(gpu_of(gpu), #name, out, size); }

#define RETURN_NUMBER(type, target, key) \
    unsigned long long n; \
    int code = answer_number(target, key, &n); \
    if (code == SUCCESS) \
        *out = (type)n; \
    return code;

#define SYSTEM_NUMBER(name, type) \
    int name(type *out) { RETURN_NUMBER(type, SYSTEM, #name) }

#define GPU_NUMBER(name, type) \
    int name(void *gpu, type *out) { RETURN_NUMBER(type, gpu_of(gpu), #name) }

#define GPU_SELECTED_NUMBER(name, type) \
    int name(void *gpu, int selector, type *out) \
    { \
        char key[TEXT]; \
        snprintf(key, sizeof key, #name ".%d", selector); \
        RETURN_NUMBER(type, gpu_of(gpu), key) \
    }

SYSTEM_TEXT(nvmlSystemGetDriverVersion)
SYSTEM_TEXT(nvmlSystemGetNVMLVersion)
SYSTEM_NUMBER(nvmlSystemGetCudaDriverVersion_v2, int)
GPU_TEXT(nvmlDeviceGetName)
GPU_TEXT(nvmlDeviceGetSerial)
GPU_TEXT(nvmlDeviceGetUUID)
GPU_TEXT(nvmlDeviceGetVbiosVersion)
GPU_NUMBER(nvmlDeviceGetArchitecture, unsigned)
GPU_NUMBER(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long)
GPU_NUMBER(nvmlDeviceGetEnforcedPowerLimit, unsigned)
GPU_NUMBER(nvmlDeviceGetPerformanceState, int)
GPU_NUMBER(nvmlDeviceGetPowerUsage, unsigned)
GPU_SELECTED_NUMBER(nvmlDeviceGetClockInfo, unsigned)
GPU_SELECTED_NUMBER(nvmlDeviceGetMaxClockInfo, unsigned)
GPU_SELECTED_NUMBER(nvmlDeviceGetTemperature, unsigned)

/* Functions with a shape of their own. */

int nvmlDeviceGetCount_v2(unsigned *out) { RETURN_NUMBER(unsigned, SYSTEM, "gpus") }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out)
{
    char text[TEXT];
    int code;
    if (index >= MAX_GPUS || index >= (unsigned)system_number("gpus", 0))
        return INVALID_ARGUMENT;
    code = answer((int)index, "nvmlDeviceGetHandleByIndex_v2", text);
    *out = &handles[index];
    return code == NOT_SUPPORTED ? SUCCESS : code; /* needs no line in the scenario */
}

int nvmlDeviceGetPciInfo_v3(void *gpu, pci_t *out)
{
    return answer_text(gpu_of(gpu), "nvmlDeviceGetPciInfo_v3", out->bus_id, sizeof out->bus_id);
}

int nvmlDeviceGetMemoryAffinity(void *gpu, unsigned words, unsigned long *out, int scope)
{
    char text[TEXT];
    int code = answer_selected(gpu_of(gpu), "nvmlDeviceGetMemoryAffinity", scope, text);
    if (code == SUCCESS && words)
        out[0] = (unsigned long)number(text);
    return code;
}

int nvmlDeviceGetUtilizationRates(void *gpu, utilization_t *out)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetUtilizationRates", text);
    if (code == SUCCESS)
        sscanf(text, "%u %u", &out->gpu, &out->memory);
    return code;
}

int nvmlDeviceGetMemoryInfo_v2(void *gpu, memory_v2_t *out)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetMemoryInfo_v2", text);
    if (out->version != (2u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        sscanf(text, "%llu %llu %llu %llu", &out->total, &out->reserved, &out->free, &out->used);
    return code;
}

int nvmlDeviceGetTemperatureV(void *gpu, temperature_v1_t *out)
{
    char text[TEXT];
    int code = answer_selected(gpu_of(gpu), "nvmlDeviceGetTemperatureV", out->sensor, text);
    if (out->version != (1u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        out->temperature = atoi(text);
    return code;
}

static void set_field(field_t *field, const char *text)
{
    char *value;
    field->type = (int)strtol(text, &value, 10);
    switch (field->type) {
    case 0: field->value.d = strtod(value, NULL); break;
    case 1: field->value.u = (unsigned)number(value); break;
    case 2: field->value.ul = (unsigned long)number(value); break;
    case 3: field->value.ull = number(value); break;
    case 4: field->value.ll = strtoll(value, NULL, 0); break;
    case 5: field->value.i = (int)strtol(value, NULL, 0); break;
    case 6: field->value.us = (unsigned short)number(value); break;
    default: break;
    }
}

int nvmlDeviceGetFieldValues(void *gpu, int size, field_t *fields)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetFieldValues", text);
    if (code != SUCCESS && code != NOT_SUPPORTED) /* needs no line in the scenario */
        return code;
    for (int i = 0; i < size; i++) {
        fields[i].code = answer_selected(gpu_of(gpu), "field", (int)fields[i].id, text);
        if (fields[i].code == SUCCESS)
            set_field(&fields[i], text);
    }
    return SUCCESS;
}
