/*
 * A stand-in for libnvidia-ml.so.1, driven by the text file that FAKE_NVML_SCENARIO names. Types are declared by
 * hand: only their layout in memory matters. The file is read again whenever it changes.
 *
 * One line: TARGET KEY VALUE. TARGET is the index of a GPU, GPU/N (its MIG device N), * (every GPU) or system. KEY is
 * the name of a function, for functions with a selector FUNCTION.NUMBER, or * (every key). VALUE is what the function
 * answers, in NVML's units; !CODE makes it fail with that return code, !abort ends the process. Of several lines the
 * last counts; a function without a line is not supported. Beside functions there are the keys
 *
 *     system gpus N                    number of GPUs
 *     system generation N              a new number is a driver that was loaded again: sessions are lost
 *     system fields N                  the driver knows no field beyond this number
 *     TARGET KEY:delay MS              the call takes so long
 *     TARGET field.N[.SCOPE] TYPE V    a field value, with TYPE as nvmlValueType_t counts
 *     TARGET gpm[.INSTANCE].N V        a metric of GPM between any two samples
 *     TARGET event.N XID               an XID event; each N is told once, and none from before the event set
 *
 * Processes are words PID:BYTES[:GPU INSTANCE:COMPUTE INSTANCE], samples of their use PID:PERCENT:TIME. A MIG device exists when it has a nvmlDeviceGetUUID.
 * FAKE_NVML_TRACE names a file to which every call adds a line. A symbol is left out with -DNAME=absent_NAME.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { TIMEOUT = 10, VERSION_MISMATCH = 25 };
#define SCENARIO_VARIABLE "FAKE_NVML_SCENARIO"
#define TRACE_VARIABLE "FAKE_NVML_TRACE"
#include "scenario.h"

typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned version; int sensor, temperature; } temperature_v1_t;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
typedef union {
    double d; unsigned u; unsigned long ul; unsigned long long ull; long long ll; int i; unsigned short us;
} value_t;
typedef struct { unsigned long long total, free, used; } memory_v1_t;
typedef struct { unsigned long long total, free, used; } bar1_t;
typedef struct { unsigned version; int margin; } margin_t;
typedef struct { unsigned version; unsigned long long counts[11]; unsigned exceeded; } sram_t;
typedef struct { unsigned max, high, partial, low, none; } histogram_t;
typedef struct { unsigned version, channel, tpc; } repair_t;
typedef struct {
    unsigned version; unsigned char cluster[16]; int status; unsigned clique; unsigned char state; unsigned health;
    unsigned char summary;
} fabric_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } share_t;
typedef struct { void *gpu; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;
typedef struct { int target, instance; } sample_t;
typedef struct { unsigned id; int code; double value; const char *texts[3]; } metric_t;
typedef struct { unsigned version, count; sample_t *first, *second; metric_t metrics[]; } metrics_t;
typedef struct { unsigned version, supported; } support_t;
typedef struct { unsigned id, scope; long long time, latency; int type, code; value_t value; } field_t;

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
    long milliseconds;
    (void)flags;
    pthread_mutex_lock(&mutex);
    read_scenario();
    milliseconds = system_number("nvmlInitWithFlags:delay", 0);
    pthread_mutex_unlock(&mutex);
    nanosleep(&(struct timespec){ milliseconds / 1000, milliseconds % 1000 * 1000000 }, NULL);
    pthread_mutex_lock(&mutex);
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

#define GPU_STRUCTURE(name, type, ...) \
    int name(void *gpu, type *out) \
    { \
        char text[TEXT]; \
        int code = answer(gpu_of(gpu), #name, text); \
        if (code == SUCCESS) \
            sscanf(text, __VA_ARGS__); \
        return code; \
    }

#define GPU_UTILIZATION(name) \
    int name(void *gpu, unsigned *out, unsigned *period) \
    { \
        *period = 20000; \
        RETURN_NUMBER(unsigned, gpu_of(gpu), #name) \
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
GPU_NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long)
GPU_NUMBER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long)
GPU_NUMBER(nvmlDeviceGetSupportedEventTypes, unsigned long long)
GPU_NUMBER(nvmlDeviceGetNumFans, unsigned)
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned)
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned)
GPU_NUMBER(nvmlDeviceGetCurrPcieLinkWidth, unsigned)
GPU_NUMBER(nvmlDeviceGetMaxPcieLinkWidth, unsigned)
GPU_NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned)
GPU_NUMBER(nvmlDeviceGetGpuInstanceId, unsigned)
GPU_NUMBER(nvmlDeviceGetComputeInstanceId, unsigned)
GPU_UTILIZATION(nvmlDeviceGetEncoderUtilization)
GPU_UTILIZATION(nvmlDeviceGetDecoderUtilization)
GPU_UTILIZATION(nvmlDeviceGetJpgUtilization)
GPU_UTILIZATION(nvmlDeviceGetOfaUtilization)
GPU_STRUCTURE(nvmlDeviceGetUtilizationRates, utilization_t, "%u %u", &out->gpu, &out->memory)
GPU_STRUCTURE(nvmlDeviceGetMemoryInfo, memory_v1_t, "%llu %llu %llu", &out->total, &out->free, &out->used)
GPU_STRUCTURE(nvmlDeviceGetBAR1MemoryInfo, bar1_t, "%llu %llu %llu", &out->total, &out->free, &out->used)
GPU_STRUCTURE(nvmlDeviceGetRowRemapperHistogram, histogram_t, "%u %u %u %u %u", &out->max, &out->high, &out->partial,
              &out->low, &out->none)
GPU_SELECTED_NUMBER(nvmlDeviceGetFanSpeed_v2, unsigned)
GPU_SELECTED_NUMBER(nvmlDeviceGetNvLinkState, int)
GPU_SELECTED_NUMBER(nvmlDeviceGetTemperatureThreshold, unsigned)
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
        char key[TEXT];
        if (fields[i].id > system_number("fields", 1 << 30)) {
            fields[i].code = INVALID_ARGUMENT;
            continue;
        }
        snprintf(key, sizeof key, "field.%u.%u", fields[i].id, fields[i].scope);
        if (!find(gpu_of(gpu), key, 0))
            snprintf(key, sizeof key, "field.%u", fields[i].id);
        fields[i].code = look_up(gpu_of(gpu), key, text, sizeof text);
        if (fields[i].code == SUCCESS)
            set_field(&fields[i], text);
    }
    return SUCCESS;
}

int nvmlDeviceGetMarginTemperature(void *gpu, margin_t *out)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetMarginTemperature", text);
    if (out->version != (1u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        out->margin = atoi(text);
    return code;
}

int nvmlDeviceGetSramEccErrorStatus(void *gpu, sram_t *out)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetSramEccErrorStatus", text);
    if (out->version != (1u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        out->exceeded = (unsigned)number(text);
    return code;
}

int nvmlDeviceGetRepairStatus(void *gpu, repair_t *out)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetRepairStatus", text);
    if (out->version != (1u << 24 | sizeof *out))
        return VERSION_MISMATCH;
    if (code == SUCCESS)
        sscanf(text, "%u %u", &out->channel, &out->tpc);
    return code;
}

/* The line holds the newest version that the driver knows, the state and the word of conditions. */
int nvmlDeviceGetGpuFabricInfoV(void *gpu, fabric_t *out)
{
    char text[TEXT];
    unsigned newest, state, health;
    int code = answer(gpu_of(gpu), "nvmlDeviceGetGpuFabricInfoV", text);
    if (code == SUCCESS && sscanf(text, "%u %u %i", &newest, &state, (int *)&health) == 3) {
        if (out->version >> 24 > newest)
            return VERSION_MISMATCH;
        out->state = (unsigned char)state;
        out->health = health;
    }
    return code;
}

/* GPM. */

int nvmlGpmQueryDeviceSupport(void *gpu, support_t *out)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlGpmQueryDeviceSupport", text);
    if (code == SUCCESS)
        out->supported = (unsigned)number(text);
    return code;
}

int nvmlGpmSampleAlloc(sample_t **out)
{
    *out = malloc(sizeof **out);
    return SUCCESS;
}

int nvmlGpmSampleFree(sample_t *sample)
{
    free(sample);
    return SUCCESS;
}

int nvmlGpmMigSampleGet(void *gpu, unsigned instance, sample_t *sample)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlGpmSampleGet", text);
    *sample = (sample_t){ gpu_of(gpu), (int)instance };
    return code == NOT_SUPPORTED ? SUCCESS : code; /* needs no line in the scenario */
}

int nvmlGpmSampleGet(void *gpu, sample_t *sample) { return nvmlGpmMigSampleGet(gpu, (unsigned)-1, sample); }

int nvmlGpmMetricsGet(metrics_t *request)
{
    char text[TEXT], key[TEXT];
    if (request->version != 1)
        return VERSION_MISMATCH;
    for (unsigned i = 0; i < request->count; i++) {
        metric_t *metric = &request->metrics[i];
        if (request->second->instance < 0)
            snprintf(key, sizeof key, "gpm.%u", metric->id);
        else
            snprintf(key, sizeof key, "gpm.%d.%u", request->second->instance, metric->id);
        metric->code = look_up(request->second->target, key, text, sizeof text);
        if (metric->code == SUCCESS)
            metric->value = strtod(text, NULL);
    }
    return SUCCESS;
}

/* MIG. */

int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceGetMigMode", text);
    if (code == SUCCESS)
        *current = *pending = (unsigned)number(text);
    return code;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned index, void **out)
{
    char text[TEXT];
    int target = MAX_GPUS + gpu_of(gpu) * MAX_MIG + (int)index;
    int code = answer(gpu_of(gpu), "nvmlDeviceGetMigDeviceHandleByIndex", text);
    if (code != SUCCESS && code != NOT_SUPPORTED)
        return code;
    if (index >= MAX_MIG || !find(target, "nvmlDeviceGetUUID", 0))
        return NOT_FOUND;
    *out = &handles[target];
    return SUCCESS;
}

/* Processes. */

static int processes(void *gpu, unsigned *size, process_t *out)
{
    char text[LONG_TEXT], *rest = text, *word;
    unsigned found = 0, room = out ? *size : 0;
    int code = answer_at_most(gpu_of(gpu), "nvmlDeviceGetComputeRunningProcesses", text, sizeof text);
    if (code != SUCCESS)
        return code;
    while ((word = strsep(&rest, " "))) {
        process_t process = { 0, 0, (unsigned)-1, (unsigned)-1 };
        if (sscanf(word, "%u:%llu:%u:%u", &process.pid, &process.memory, &process.gpu_instance,
                   &process.compute_instance) < 2)
            continue;
        if (found < room)
            out[found] = process;
        found++;
    }
    *size = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *size, process_t *out)
{
    return processes(gpu, size, out);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *gpu, unsigned *size, process_t *out)
{
    return processes(gpu, size, out);
}

/* Only samples that are newer than `since`; the driver says that it found none. */
int nvmlDeviceGetProcessUtilization(void *gpu, share_t *out, unsigned *size, unsigned long long since)
{
    char text[LONG_TEXT], *rest = text, *word;
    unsigned found = 0, room = out ? *size : 0;
    int code = answer_at_most(gpu_of(gpu), "nvmlDeviceGetProcessUtilization", text, sizeof text);
    if (code != SUCCESS)
        return code;
    while ((word = strsep(&rest, " "))) {
        share_t share = { 0, 0, 0, 0, 0, 0 };
        if (sscanf(word, "%u:%u:%llu", &share.pid, &share.sm, &share.time) < 3 || share.time <= since)
            continue;
        if (found < room)
            out[found] = share;
        found++;
    }
    *size = found;
    return !found ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* Events. One event set is enough. */

static int event_told;
static int event_registered[MAX_GPUS];

static int next_event(event_t *out)
{
    int lowest = 0, number, found = 0;
    for (int i = 0; i < count; i++) {
        int target = lines[i].target;
        if (target < 0 || target >= MAX_GPUS || sscanf(lines[i].key, "event.%d", &number) != 1)
            continue;
        if (number > event_told && (!lowest || number < lowest)) {
            lowest = number;
            found = event_registered[target];
            if (out)
                *out = (event_t){ &handles[target], 8, strtoull(lines[i].value, NULL, 0), 0, 0 };
        }
    }
    if (lowest)
        event_told = lowest;
    return lowest && found ? 1 : lowest ? -1 : 0;
}

int nvmlEventSetCreate(void **out)
{
    char text[TEXT];
    int code = answer(SYSTEM, "nvmlEventSetCreate", text);
    if (code != SUCCESS && code != NOT_SUPPORTED)
        return code;
    pthread_mutex_lock(&mutex);
    while (next_event(NULL))
        continue;
    memset(event_registered, 0, sizeof event_registered);
    pthread_mutex_unlock(&mutex);
    *out = malloc(1);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(void *gpu, unsigned long long types, void *set)
{
    char text[TEXT];
    int code = answer(gpu_of(gpu), "nvmlDeviceRegisterEvents", text);
    (void)set;
    if (code != SUCCESS && code != NOT_SUPPORTED)
        return code;
    event_registered[gpu_of(gpu)] = (types & 8) != 0;
    return SUCCESS;
}

int nvmlEventSetWait_v2(void *set, event_t *out, unsigned milliseconds)
{
    (void)set;
    for (unsigned waited = 0; waited < milliseconds; waited += 20) {
        const char *failure;
        int found, code;
        pthread_mutex_lock(&mutex);
        read_scenario();
        failure = find(SYSTEM, "nvmlEventSetWait_v2", 0);
        code = failure ? atoi(failure + 1) : 0;
        found = session != system_number("generation", 1) ? -2 : code ? 0 : next_event(out);
        pthread_mutex_unlock(&mutex);
        if (code)
            return code;
        if (found == -2)
            return UNINITIALIZED;
        if (found == 1)
            return SUCCESS;
        nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
    }
    return TIMEOUT;
}

int nvmlEventSetFree(void *set)
{
    free(set);
    return SUCCESS;
}
